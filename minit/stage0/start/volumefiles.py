"""Files that volumes need before a pod runs, in its own directories and at paths of the host."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from minit import paths
from minit.errors import PodError, describe
from minit.stage0.kubernetes.storage.podvolumes import PodVolume
from minit.stage0.pods.poddirectory import Pod
from minit.stage0.volumes.volumegroup import give_to_group
from minit.stage0.volumes.volumestore import NAMED

# For the group of a Pod, as Kubernetes has it.
_READABLE = 0o440
_GROUP_DIRECTORY = 0o2775
_IS_THERE: dict[str, Callable[[int], bool]] = {
    "Directory": stat.S_ISDIR,
    "DirectoryOrCreate": stat.S_ISDIR,
    "File": stat.S_ISREG,
    "FileOrCreate": stat.S_ISREG,
    "Socket": stat.S_ISSOCK,
    "CharDevice": stat.S_ISCHR,
    "BlockDevice": stat.S_ISBLK,
}


def write_volume_files(pod: Pod, volumes: Iterable[PodVolume]) -> None:
    """Write the files of volumes to where stage1 makes the directories of empty ones, which it leaves as they are."""
    for volume in volumes:
        if not volume.files:
            continue
        top = pod.path / paths.POD_SHARED_VOLUMES / volume.volume.name
        os.makedirs(top, 0o755)
        for file in volume.files:
            path = top / file.path
            try:
                os.makedirs(path.parent, 0o755, exist_ok=True)
                with open(path, "xb") as opened:
                    opened.write(pod.uuid.encode() if file.data is None else file.data)
                    if volume.group is not None:
                        os.fchown(opened.fileno(), -1, volume.group)
                    os.fchmod(opened.fileno(), file.mode if volume.group is None else file.mode | _READABLE)
            except OSError as error:
                raise PodError(f'volume "{volume.volume.name}": {file.path}: {describe(error)}') from error
        if volume.group is not None:
            _give_to_group(top, volume.group)


def _give_to_group(top: Path, group: int) -> None:
    """Let a group look into all directories of a volume that nobody else has seen yet."""
    for directory, _, _ in os.walk(top):
        os.chown(directory, -1, group)
        os.chmod(directory, _GROUP_DIRECTORY)


def give_named_volumes(data: Path, volumes: Iterable[PodVolume], *, if_root_differs: bool) -> None:
    """Give the named volumes that are for a group to it; StoreError for what cannot be changed."""
    for volume in volumes:
        if volume.volume.kind == NAMED and volume.group is not None:
            assert volume.volume.source is not None
            give_to_group(data, volume.volume.source, volume.group, if_root_differs=if_root_differs)


def prepare_host_paths(volumes: Iterable[PodVolume]) -> None:
    """Make what Kubernetes makes of the sources of volumes, and check the others; PodError for what is not there."""
    for volume in volumes:
        if not volume.host_type:
            continue
        assert volume.volume.source is not None
        path = Path(volume.volume.source)
        try:
            if volume.host_type == "DirectoryOrCreate":
                os.makedirs(path, 0o755, exist_ok=True)
            elif volume.host_type == "FileOrCreate" and not path.exists():
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            mode = path.stat().st_mode
        except OSError as error:
            raise PodError(f'volume "{volume.volume.name}": {describe(error)}') from error
        if not _IS_THERE[volume.host_type](mode):
            raise PodError(f'volume "{volume.volume.name}": {path}: expected hostPath.type {volume.host_type}')
