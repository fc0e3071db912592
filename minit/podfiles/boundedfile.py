"""Reading a whole file that somebody else made, and that may be larger than what it should hold."""

from __future__ import annotations

import os
from typing import BinaryIO

from minit.base.errors import LaunchError

_BLOCK_BYTES = 1 << 16


def read_bounded(fd: int, path: str, maximum_bytes: int) -> bytes:
    """Return all of an open file and close it; LaunchError if it is larger, OSError with `path` if it fails."""
    data = b""
    try:
        while len(data) <= maximum_bytes and (block := os.read(fd, _BLOCK_BYTES)):
            data += block
    except OSError as error:
        # A failed read(2) names no file.
        error.filename = path
        raise
    finally:
        os.close(fd)
    if len(data) > maximum_bytes:
        raise LaunchError(f"{path}: larger than {maximum_bytes} bytes")
    return data


def read_at_most(file: BinaryIO, limit_bytes: int) -> bytes:
    """Return the first bytes of a file, also of one that is no regular file, or grows meanwhile."""
    expected = min(os.fstat(file.fileno()).st_size + 1, limit_bytes)
    data = file.read(expected)
    return data if len(data) < expected else data + file.read(limit_bytes - expected)
