"""
The owner of a directory: a session of tests, until every process that has its claim open has ended.

The kernel knows that of a session in another PID namespace too, or with other mounts, and of the directory of a control
group.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def claim(directory: Path) -> int | None:
    """Return a descriptor that is the claim; None if the directory is somebody's or is not there."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever had the claim before may have removed it.
        if os.path.samestat(os.stat(directory), os.fstat(fd)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return None
