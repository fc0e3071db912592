"""A log that never outgrows its place: the file that is written, and the one before it."""

from __future__ import annotations

import errno
import os

# An app that has the log as a volume may have put a FIFO in its place.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MODE = 0o640


class BoundedLog:
    """The file `path`, which becomes PATH.1 before it is larger than `size_bytes`."""

    def __init__(self, path: str, size_bytes: int) -> None:
        self._path = path
        self._limit_bytes = size_bytes
        self._fd: int | None = None

    def append(self, data: bytes) -> None:
        """Append whole lines, all or none of them, for a torn one is none; OSError, of a full disk say."""
        fd, size_bytes = self._open(len(data))
        if os.write(fd, data) < len(data):
            os.ftruncate(fd, size_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open(self, more_bytes: int) -> tuple[int, int]:
        """Return the file to append to, and its size; a new one if somebody has removed it."""
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
            # Somebody removed it, perhaps behind the mount of the overlay.
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
