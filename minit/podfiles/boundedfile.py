"""Files of a bounded size: reading a foreign file, and writing a log with a single older file."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO

from minit.base.errors import LaunchError, StoreError, describe

_BLOCK_BYTES = 1 << 16

# An app with the log as a volume may have put a FIFO in its place.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MODE = 0o640


def read_bounded(fd: int, path: str, maximum_bytes: int) -> bytes:
    """Return all of an open file and close the descriptor; LaunchError for a larger file, OSError with `path`."""
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
    """Return the first bytes of a file, also of an irregular or a growing file."""
    expected = min(os.fstat(file.fileno()).st_size + 1, limit_bytes)
    data = file.read(expected)
    return data if len(data) < expected else data + file.read(limit_bytes - expected)


def read_given(path: Path, what: str, limit_bytes: int) -> bytes:
    """Return a file that a user has named; StoreError, with `what` first, for an unreadable or a larger file."""
    try:
        with open(path, "rb") as file:
            data = read_at_most(file, limit_bytes + 1)
    except OSError as error:
        raise StoreError(f"{what}: {describe(error)}") from error
    if len(data) > limit_bytes:
        raise StoreError(f"{what}: {path}: more than {limit_bytes} bytes")
    return data


class BoundedLog:
    """The log `path`, which becomes PATH.1 before growing larger than `size_bytes`."""

    def __init__(self, path: str, size_bytes: int) -> None:
        self._path = path
        self._limit_bytes = size_bytes
        self._fd: int | None = None

    def append(self, data: bytes) -> None:
        """Append whole lines, all or none, so that no line is torn; OSError, of a full disk say."""
        fd, size_bytes = self._open(len(data))
        if os.write(fd, data) < len(data):
            os.ftruncate(fd, size_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open(self, more_bytes: int) -> tuple[int, int]:
        """Return the open log and its size; a new log if somebody has removed the file."""
        if self._fd is not None:
            status = os.fstat(self._fd)
            is_full = status.st_size + more_bytes > self._limit_bytes
            if status.st_nlink and not is_full:
                return self._fd, status.st_size
            if is_full:
                self._move_away()
            fd, self._fd = self._fd, None
            os.close(fd)
        self._fd = os.open(self._path, _FLAGS, _MODE)
        return self._fd, os.fstat(self._fd).st_size

    def _move_away(self) -> None:
        try:
            os.rename(self._path, f"{self._path}.1")
        except OSError as error:
            # Somebody removed the file, perhaps behind the mount of the overlay.
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
