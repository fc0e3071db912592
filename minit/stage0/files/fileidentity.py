"""By what a file that was read before is known to be the same, so that it need not be read again."""

from __future__ import annotations

import os

# Two changes within the clock tick of a file system leave the same time; that of vfat is the slowest.
_CLOCK_TICK_NS = 2_000_000_000


def identity(status: os.stat_result) -> str:
    """Return a word that changes with the file, and with another one in its place."""
    numbers = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return ":".join(map(str, numbers))


def is_settled(status: os.stat_result, read_since_ns: int) -> bool:
    """Tell whether a file that was read since then has another identity after its next change."""
    return max(status.st_mtime_ns, status.st_ctime_ns) + _CLOCK_TICK_NS <= read_since_ns
