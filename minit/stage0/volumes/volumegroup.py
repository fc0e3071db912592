"""
The group of a named volume, as Kubernetes' fsGroup: it owns all files, may read and write them, and has new ones too.

Pods may have the volume at the same time, so nothing in it is trusted: no link is followed, no mount point is crossed,
and what is changed is held by a descriptor.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from minit import syscalls
from minit.stage0.files.diskerrors import disk_errors
from minit.stage0.files.locks import directory_lock
from minit.stage0.volumes.volumestore import home_of

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


def give_to_group(data: Path, name: str, group: int, *, if_root_differs: bool) -> None:
    """
    Give a volume that is there to a group; with `if_root_differs` not if its uppermost directory is so already.

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
