"""Files that volumes need before a pod runs, in its own directories and at paths of the host."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from minit.base.errors import PodError, describe
from minit.kubernetes.volumes import PodVolume
from minit.linux import syscalls
from minit.podfiles import paths
from minit.stage0.files.durable import disk_errors
from minit.stage0.files.locks import directory_lock
from minit.stage0.pods.poddirectory import Pod
from minit.stage0.volumes import NAMED, home_of

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

_INSIDE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# What the group may do; new files of a directory are the group's.
_FILE_MODE = 0o660
_DIRECTORY_MODE = 0o2770
_KINDS = {
    stat.S_IFREG: _FILE_MODE,
    stat.S_IFIFO: _FILE_MODE,
    stat.S_IFSOCK: _FILE_MODE,
    stat.S_IFDIR: _DIRECTORY_MODE,
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
            _open_to_group(top, volume.group)


def _open_to_group(top: Path, group: int) -> None:
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


def give_to_group(data: Path, name: str, group: int, *, if_root_differs: bool) -> None:
    """
    Give a named volume to a group, as Kubernetes' fsGroup: the group owns all files, new ones too, and may write them.

    With `if_root_differs` nothing is done if the uppermost directory is so already. Pods may have the volume at the
    same time, so nothing in it is trusted: no link is followed, no mount point is crossed, and a descriptor holds what
    is changed.

    Other bits of modes stay, but for those that chown(2) takes from programs. Links and devices stay as they are, and
    so does what is deeper than a path can say. StoreError if something cannot be changed.
    """
    home = home_of(data, name)
    with disk_errors(f'volume "{name}"', data), directory_lock(home, exclusive=True):
        top = os.open(home / "data", _DIRECTORY)
        try:
            if not (if_root_differs and _belongs(top, group)):
                _give_tree(top, group)
        finally:
            os.close(top)


def _belongs(fd: int, group: int) -> bool:
    status = os.fstat(fd)
    return status.st_gid == group and status.st_mode & _DIRECTORY_MODE == _DIRECTORY_MODE


def _give_tree(top: int, group: int) -> None:
    pending = ["."]
    while pending:
        directory = pending.pop()
        try:
            fd = syscalls.openat2(top, directory, _DIRECTORY, resolve=_INSIDE)
        except OSError:
            continue  # gone meanwhile, or not for us to enter
        try:
            for entry in os.listdir(fd):
                if _give(fd, entry, group):
                    pending.append(f"{directory}/{entry}")
        finally:
            os.close(fd)
    # Last: a walk that is interrupted is not taken for a whole one.
    _give(top, ".", group)


def _give(directory: int, entry: str, group: int) -> bool:
    """Give one entry of a directory to the group; return whether it is a directory itself."""
    try:
        # Opens nothing: a pipe would wait, and a device do something.
        fd = syscalls.openat2(directory, entry, os.O_PATH | os.O_NOFOLLOW, resolve=_INSIDE)
    except OSError:
        return False
    try:
        status = os.fstat(fd)
        kind = stat.S_IFMT(status.st_mode)
        if kind not in _KINDS:
            return False
        held = f"/proc/self/fd/{fd}"
        if status.st_gid != group:
            os.chown(held, -1, group)
        os.chmod(held, stat.S_IMODE(os.fstat(fd).st_mode) | _KINDS[kind])
        return kind == stat.S_IFDIR
    finally:
        os.close(fd)
