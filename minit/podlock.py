"""The lock of a pod directory, by which everybody knows whether its pod runs."""

from __future__ import annotations

import fcntl
import os


def is_locked(directory: str) -> bool:
    """
    Return whether somebody holds the lock of a pod directory, as launcher and PID 1 do for as long as they live.

    FileNotFoundError if there is no such directory.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
