"""The room that a directory takes on its file system, whatever is in it and happens to it meanwhile."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from minit import syscalls

_INSIDE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
_BLOCK_BYTES = 512


def used_bytes(path: Path, seen: set[int] | None = None) -> int:
    """
    Return the bytes that a directory takes with all below it, 0 if there is none.

    A file with several names counts once, and not at all if its inode is among the `seen`, to which it is added. No
    link is followed and no mount point crossed; what cannot be read, or is gone meanwhile, does not count.
    """
    try:
        root = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    total = 0
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
            finally:
                os.close(fd)
    finally:
        os.close(root)
    return total


def _status(name: str, directory: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return None
