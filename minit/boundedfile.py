"""Reading a whole file that somebody else made, and that may be larger than what it should hold."""

from __future__ import annotations

import os

from minit.errors import LaunchError

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
