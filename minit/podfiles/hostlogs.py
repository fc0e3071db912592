"""
Log files in a directory of the host, which a program of the host rotates, as a kubelet does: `0.log` is renamed to
`0.log.20161006-001709`, and later compressed. No link in the directory is followed, openat2(2).
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat

from minit.linux import syscalls

_RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_COMPRESSED = (".gz", ".tmp")


def open_log(directory: int, path: str, flags: int, mode: int = 0) -> int:
    """Open the regular file at `path` below a directory, without waiting; OSError if there is something else."""
    fd = syscalls.openat2(directory, path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode, _RESOLVE)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "expected a regular file", path)
    return fd


def open_parent(directory: int, path: str) -> int:
    """Open the directory that a log is in."""
    return syscalls.openat2(directory, posixpath.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY, resolve=_RESOLVE)


def rotated_names(directory: int, name: str) -> list[str]:
    """Return the names of a log's older files in a directory, the newest first, without those that are compressed."""
    found = [each for each in os.listdir(directory) if each.startswith(f"{name}.")]
    return sorted((each for each in found if not each.endswith(_COMPRESSED)), reverse=True)
