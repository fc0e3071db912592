"""
Directories that others fill: their size on the disk, and their removal.

No symbolic link is followed and no mount point crossed, whatever happens in the directory meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from minit.base.value import Value
from minit.linux import syscalls

# Deeper directories are moved up and then emptied: a pod may nest directories far beyond the limit of open files.
_MAX_DEPTH = 64

_INSIDE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
_BLOCK_BYTES = 512


def remove_content(fd: int) -> None:
    """Remove all in the directory `fd`; OSError at a mount point, EXDEV or EBUSY, or an undeletable file."""
    # Directories may be moved up into `fd` meanwhile.
    while names := os.listdir(fd):
        for name in names:
            _remove(fd, name, fd, 0)


def remove_entry(parent_fd: int, name: str) -> None:
    """Remove the entry `name` of the directory `parent_fd`, with all below; OSError as `remove_content`."""
    _remove(parent_fd, name, parent_fd, 0)


def _remove(parent_fd: int, name: str, top_fd: int, depth: int) -> None:
    try:
        os.unlink(name, dir_fd=parent_fd)
        return
    except IsADirectoryError:
        pass
    if depth >= _MAX_DEPTH:
        os.rename(name, f"moved-up-{os.urandom(8).hex()}", src_dir_fd=parent_fd, dst_dir_fd=top_fd)
        return
    while True:
        fd = syscalls.openat2(parent_fd, name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, resolve=_INSIDE)
        try:
            names = os.listdir(fd)
            for below in names:
                _remove(fd, below, top_fd, depth + 1)
        finally:
            os.close(fd)
        try:
            os.rmdir(name, dir_fd=parent_fd)
            return
        except OSError as error:
            # Another process may have added entries meanwhile.
            if not names or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


class DiskUsage(Value):
    """Bytes and inodes."""

    size_bytes: int = 0
    inodes: int = 0


def used_bytes(path: Path, seen: set[int] | None = None) -> int:
    """Return the bytes of `disk_usage`."""
    return disk_usage(path, seen).size_bytes


def disk_usage(path: Path, seen: set[int] | None = None) -> DiskUsage:
    """
    Return the usage of a directory with all below, nothing for a missing directory.

    A file with several names counts once, and not at all if `seen` has the inode, which is added to `seen`. No link is
    followed and no mount point crossed; a file that cannot be read, or is gone meanwhile, does not count.
    """
    try:
        root = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return DiskUsage()
    total = inodes = 0
    seen = set() if seen is None else seen
    pending = ["."]
    try:
        while pending:
            directory = pending.pop()
            try:
                fd = syscalls.openat2(root, directory, os.O_RDONLY | os.O_DIRECTORY, resolve=_INSIDE)
            except OSError:
                continue
            try:
                total += os.fstat(fd).st_blocks * _BLOCK_BYTES
                inodes += 1
                for name in os.listdir(fd):
                    status = _status(name, fd)
                    if status is None or status.st_ino in seen:
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        pending.append(f"{directory}/{name}")
                        continue
                    if status.st_nlink > 1:
                        seen.add(status.st_ino)
                    total += status.st_blocks * _BLOCK_BYTES
                    inodes += 1
            finally:
                os.close(fd)
    finally:
        os.close(root)
    return DiskUsage(size_bytes=total, inodes=inodes)


def _status(name: str, directory: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return None
