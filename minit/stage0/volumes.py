"""
Named volumes: directories that outlive pods, and begin with a copy of the image's files at the place of the mount.

    minit/volumes/NAME/data       the files
    minit/volumes/NAME/created    the mtime is the time of the volume's making
    minit/volumes/NAME/used       there since a pod first had the volume

A volume appears and vanishes whole, by a rename. A manifest has a directory of the host in the volume's place, so that
stage1 knows nothing of names. `minit/stage0/start/appfiles.py` copies the image's files.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minit.base.errors import StoreError
from minit.base.value import Value, replace
from minit.linux.mountinfo import find_mounts
from minit.manifest.pod import PodManifest, Volume
from minit.stage0.files.durable import create_file, disk_errors, make_directory, sync_directory
from minit.stage0.files.temporary import scratch_directory

NAMED = "named"
"""The kind of a volume whose source is a name, until it is in a manifest."""
NAME_FORM = "a name of letters, digits, dots, dashes and underscores that begins with a letter or digit"

# Docker's names. None begins with a dot, as the scratch directory beside the volumes does.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_PRIVATE_MODE = 0o700  # nobody on the host reaches setuid programs that a pod leaves in a volume
_DATA_MODE = 0o755
_FILE_MODE = 0o644


class NamedVolume(Value):
    """A volume of the store; `path` is the directory with the files, times are in nanoseconds since 1970."""

    name: str
    path: str
    created_ns: int


def is_volume_name(text: str) -> bool:
    """Tell whether a volume may be called `text`."""
    return _NAME.fullmatch(text) is not None


def located(volume: Volume, data: Path) -> Volume:
    """Return a volume in the form of a manifest: a directory of the host for the kind `named`."""
    if volume.kind != NAMED:
        return volume
    assert volume.source is not None
    return replace(volume, kind="host", source=str(home_of(data, volume.source) / "data"))


def names_in(manifest: PodManifest, data: Path) -> frozenset[str]:
    """Return the names of the volumes that a pod declares, mounted or not."""
    declared = [*manifest.volumes]
    declared += [mount.app_volume for app in manifest.apps for mount in app.mounts if mount.app_volume]
    return frozenset(name for volume in declared if (name := name_of(volume, data)) is not None)


def name_of(volume: Volume, data: Path) -> str | None:
    """Return the name if a manifest's volume is a named volume or a part of a named volume, else None."""
    top = f"{data / 'minit/volumes'}/"
    if volume.source is None or not volume.source.startswith(top):
        return None
    name = volume.source.removeprefix(top).partition("/")[0]
    return name if is_volume_name(name) else None


def home_of(data: Path, name: str) -> Path:
    """Return the directory of a volume, there or not; StoreError for an impossible name."""
    if not is_volume_name(name):
        raise StoreError(f'"{name}" cannot name a volume: expected {NAME_FORM}')
    return data / "minit/volumes" / name


def create_volume(data: Path, name: str) -> bool:
    """Make an empty volume, 0755 and root's; return whether there was none."""
    home = home_of(data, name)
    if home.exists():
        return False
    with disk_errors(f'make volume "{name}"', data), volume_scratch(data) as scratch:
        new = scratch / name
        make_directory(new, _PRIVATE_MODE)
        make_directory(new / "data", _DATA_MODE)
        create_file(new / "created", b"", _FILE_MODE)
        sync_directory(new)
        try:
            os.rename(new, home)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False  # another process was faster
        sync_directory(home.parent)
    return True


def list_volumes(data: Path) -> list[NamedVolume]:
    """Return all volumes by name."""
    volumes = []
    top = data / "minit/volumes"
    for name in sorted(os.listdir(top)) if top.exists() else ():
        if not is_volume_name(name):
            continue
        try:
            created_ns = (top / name / "created").stat().st_mtime_ns
        except FileNotFoundError:
            continue  # removed meanwhile
        volumes.append(NamedVolume(name=name, path=str(top / name / "data"), created_ns=created_ns))
    return volumes


def take_away(data: Path, name: str, scratch: Path) -> None:
    """Move a volume that no pod has into a scratch directory; StoreError for no volume, or for mounts in the volume."""
    home = home_of(data, name)
    if not home.exists():
        raise StoreError(f'there is no volume "{name}"')
    mounts = [mount for mount in find_mounts(f"{home}/") if mount.mount_point.startswith(f"{home}/")]
    if mounts:
        raise StoreError(f'volume "{name}": something is mounted on {mounts[0].mount_point}: unmount it first')
    with disk_errors(f'remove volume "{name}"', data):
        os.rename(home, scratch / name)
        sync_directory(home.parent)


@contextmanager
def volume_scratch(data: Path) -> Iterator[Path]:
    """Yield a scratch directory on the file system of the volumes, which is removed at the end."""
    make_directory(data / "minit/volumes", _PRIVATE_MODE)
    with scratch_directory(data / "minit/volumes/.tmp") as scratch:
        yield scratch
