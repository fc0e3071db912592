"""Emptying directories that others have filled: no symbolic link is followed and no mount point crossed."""

from __future__ import annotations

import os

from minit.linux import syscalls

# Deeper directories are moved up before they are emptied: a pod may nest them far beyond the limit of open files.
_MAX_DEPTH = 64


def remove_content(fd: int) -> None:
    """Remove everything in the directory `fd`; OSError at a mount point, EXDEV or EBUSY, or what cannot be removed."""
    _empty(fd, fd, 0)


def remove_entry(parent_fd: int, name: str) -> None:
    """Remove what has a name in the directory `parent_fd`, with everything in it; OSError as for its content."""
    _remove(parent_fd, name, parent_fd, 0)


def _empty(fd: int, top_fd: int, depth: int) -> None:
    """Remove everything in the directory `fd`, again if directories were moved up into it meanwhile."""
    while True:
        with os.scandir(fd) as entries:
            names = [entry.name for entry in entries]
        if not names:
            return
        for name in names:
            _remove(fd, name, top_fd, depth)


def _remove(parent_fd: int, name: str, top_fd: int, depth: int) -> None:
    try:
        os.unlink(name, dir_fd=parent_fd)
        return
    except IsADirectoryError:
        pass
    if depth >= _MAX_DEPTH:
        os.rename(name, f"moved-up-{os.urandom(8).hex()}", src_dir_fd=parent_fd, dst_dir_fd=top_fd)
        return
    fd = syscalls.openat2(
        parent_fd,
        name,
        os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW,
        resolve=syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV,
    )
    try:
        _empty(fd, top_fd, depth + 1)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent_fd)
