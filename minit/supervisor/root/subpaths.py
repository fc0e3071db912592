"""
Opening a part of a volume, by descriptors: whoever can write to the volume decides what links are in it.

The kernel resolves the path beneath the volume and nowhere else, openat2(2), in one step: there is no moment at which a
directory can be exchanged for a link (the class of CVE-2017-1002101 and CVE-2021-25741).
"""

from __future__ import annotations

import errno
import os
import stat

from minit.base.errors import LaunchError
from minit.linux import syscalls

_RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_MAGICLINKS
_RESOLVE_IN_IMAGE = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
_ATTEMPTS = 32
_PERMISSIONS, _OWNERS_ALONE = 0o777, 0o700


def clone_part(source: str, sub_path: str, *, recursive: bool = False, of_image: bool = False) -> int:
    """
    Return a detached mount of what is at a path, or with a `sub_path` of what that leads to there.

    Nothing is made in the tree `of_image`, whose links are those of a root.
    """
    flags = syscalls.OPEN_TREE_CLONE | (syscalls.AT_RECURSIVE if recursive else 0)
    if not sub_path:
        return syscalls.open_tree(syscalls.AT_FDCWD, source, flags)
    volume = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        part = _open_in_image(volume, sub_path) if of_image else _open_sub_path(volume, sub_path)
    finally:
        os.close(volume)
    try:
        return syscalls.open_tree(part, "", flags)
    finally:
        os.close(part)


def _open_sub_path(volume: int, path: str) -> int:
    """
    Return an O_PATH descriptor of what `path` leads to in the directory `volume`.

    Missing directories are made, with the mode and owner of the one they are in. LaunchError if a link leads out of the
    volume.
    """
    names = [name for name in path.split("/") if name not in ("", ".")]
    here = _open(volume, ".", path)
    for depth in range(1, len(names) + 1):
        found = _descend(volume, here, names[:depth], path)
        os.close(here)
        here = found
    return here


def _open_in_image(volume: int, path: str) -> int:
    try:
        return syscalls.openat2(volume, path, os.O_PATH, resolve=_RESOLVE_IN_IMAGE)
    except FileNotFoundError as error:
        raise LaunchError(f'"{path}" is not in the image') from error


def _descend(volume: int, parent: int, names: list[str], path: str) -> int:
    for _ in range(_ATTEMPTS):
        try:
            return _open(volume, "/".join(names), path)
        except FileNotFoundError:
            _make(parent, names[-1])
    # A link to nothing stays one.
    raise LaunchError(f'"{path}": a link in the volume leads to nothing')


def _open(volume: int, path: str, whole: str) -> int:
    try:
        return syscalls.openat2(volume, path, os.O_PATH, resolve=_RESOLVE)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise LaunchError(f'"{whole}": a link leads out of the volume') from error
        raise


def _make(parent: int, name: str) -> None:
    above = os.fstat(parent)
    try:
        os.mkdir(name, _OWNERS_ALONE, dir_fd=parent)
    except FileExistsError:
        return
    made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        # Another one that somebody has put in its place keeps its owner: who moves it must not get it.
        if os.fstat(made).st_mode & _PERMISSIONS != _OWNERS_ALONE or os.listdir(made):
            return
        os.fchown(made, above.st_uid, above.st_gid)
        os.fchmod(made, stat.S_IMODE(above.st_mode))
    finally:
        os.close(made)
