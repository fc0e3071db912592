"""
Finding and making the places inside an app's root where something is mounted.

The image, and whoever else writes to a volume, decides what symlinks lie on the way, and may change them meanwhile. So
every name is looked up by itself, in a directory that is held by a descriptor, and never through a symlink: links are
read and followed as text, and ".." goes back to the descriptor that led here. Nothing outside the root is ever opened,
even if names are exchanged. Unlike with openat2(RESOLVE_IN_ROOT) missing directories on the way can be made, and 255
links may be followed rather than 40 (stage1 contract 8.3). Where nothing is to be made that call comes first.
"""

from __future__ import annotations

import errno
import os
import stat

from minit.base.errors import LaunchError
from minit.linux import syscalls

_MAX_LINKS = 255
# Names of a resolved path that are links or gone when they are walked: somebody changes them, and it is resolved anew.
_ATTEMPTS = 32
_CHANGED = (errno.ELOOP, errno.ENOENT)
_KINDS = {True: ("directory", "file"), False: ("file", "directory")}
# More links than the kernel follows, one of those in /proc that are no text, or a race with whoever renames something.
_UNDECIDED = (errno.ELOOP, errno.EAGAIN)
_RESOLVE = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def resolve_target(root: int, target: str) -> tuple[str, ...]:
    """
    Return the names that lead from the directory `root` to `target`, without any symlink or "..".

    The last ones may be missing; ".." above the root is the root. OSError if there are too many symlinks, or
    something on the way is neither a directory nor a symlink.
    """
    names: list[str] = []
    # Of the root and of those first `names` that exist.
    directories = [root]
    pending = target.split("/")[::-1]
    links = 0
    try:
        while pending:
            name = pending.pop()
            if name in ("", "."):
                continue
            if name == "..":
                if len(directories) > 1 and len(directories) > len(names):
                    os.close(directories.pop())
                names = names[:-1]
                continue
            if len(directories) == len(names) + 1:
                found = _look_up(directories[-1], name)
                if found is not None:
                    directories.append(found)
                    if stat.S_ISLNK(os.fstat(found).st_mode):
                        links += 1
                        if links > _MAX_LINKS:
                            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                        text = os.readlink("", dir_fd=found)
                        os.close(directories.pop())
                        if text.startswith("/"):
                            names = []
                            _close_all_but_first(directories)
                        pending += text.split("/")[::-1]
                        continue
            names.append(name)
    finally:
        _close_all_but_first(directories)
    return tuple(names)


def open_target(root: int, target: str, *, is_directory: bool) -> int:
    """
    Return an O_PATH descriptor of `target` inside the directory `root`, for mounting on it.

    Missing names are made: directories with mode 0755, and unless the target `is_directory` an empty file. LaunchError
    if it is the root itself, or not of the kind that is mounted; OSError for what resolving or making it met.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        names = resolve_target(root, target)
        if not names:
            raise LaunchError("it is the root of the app")
        try:
            found = _open_names(root, names, is_directory)
        except OSError as error:
            if error.errno not in _CHANGED or attempt == _ATTEMPTS:
                raise
            continue
        if stat.S_ISDIR(os.fstat(found).st_mode) == is_directory:
            return found
        os.close(found)
        raise LaunchError("cannot mount a {} on a {}".format(*_KINDS[is_directory]))
    raise AssertionError


def open_existing(root: int, target: str) -> int | None:
    """Return an O_PATH descriptor of what `target` leads to inside the directory `root`, None if that is missing."""
    try:
        return syscalls.openat2(root, target or "/", os.O_PATH, resolve=_RESOLVE)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _UNDECIDED:
            raise
    here = os.dup(root)
    for name in resolve_target(root, target):
        try:
            found = _look_up(here, name)
        finally:
            os.close(here)
        if found is None:
            return None
        here = found
    return here


def _open_names(root: int, names: tuple[str, ...], is_directory: bool) -> int:
    here = os.dup(root)
    for depth, name in enumerate(names, 1):
        try:
            found = _look_up(here, name)
            if found is None:
                _make(here, name, is_directory or depth < len(names))
                found = os.open(name, _LOOK, dir_fd=here)
        finally:
            os.close(here)
        here = found
        if stat.S_ISLNK(os.fstat(here).st_mode):
            os.close(here)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return here


def _look_up(directory: int, name: str) -> int | None:
    try:
        return os.open(name, _LOOK, dir_fd=directory)
    except FileNotFoundError:
        return None


def _make(directory: int, name: str, is_directory: bool) -> None:
    try:
        if is_directory:
            os.mkdir(name, 0o755, dir_fd=directory)
        else:
            # Not open(2): whatever somebody puts there meanwhile is not opened.
            os.mknod(name, stat.S_IFREG | 0o644, dir_fd=directory)
    except FileExistsError:
        pass  # somebody was faster; what it is shows next


def _close_all_but_first(directories: list[int]) -> None:
    while len(directories) > 1:
        os.close(directories.pop())
