"""
What happened in the pod, for its users: numbered, the last of it in memory, all in a file that outlives the pod.

Whoever reads gets all of it from that file, or knows by the numbers how much is missing: nobody can hold PID 1 up. What
the events mean is in docs/events.md.
"""

from __future__ import annotations

import errno
import os
import time

from minit import jsontext, paths

KEPT_EVENTS = 1000
# Of each of the two files.
FILE_BYTES = 1 << 19
_WRITE_BYTES = 1 << 16
_SECOND_NS = 1_000_000_000
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class Events:
    """
    The last KEPT_EVENTS events of the pod, each a line of JSON.

    They are numbered from 1 on. `flush` writes those that are not in the file yet; what could not be written is tried
    again with the next ones, as long as it is kept.
    """

    def __init__(self) -> None:
        self.last = 0
        self._kept: list[tuple[int, str, dict[str, object]]] = []
        self._written = 0
        self._fd: int | None = None

    def add(self, event: str, fields: dict[str, object]) -> None:
        """Number an event and keep it."""
        self.last += 1
        self._kept.append((time.time_ns(), event, fields))
        if len(self._kept) >= 2 * KEPT_EVENTS:
            # Now and then, since it moves all that are left.
            del self._kept[:-KEPT_EVENTS]

    def since(self, number: int, limit_bytes: int) -> tuple[list[bytes], int]:
        """Return the lines of kept events after `number`, as many as fit, and the number of the last one of them."""
        first = self.last - len(self._kept) + 1
        number = min(max(number, first - 1), self.last)
        lines: list[bytes] = []
        while number < self.last:
            line = self._encode(number + 1)
            limit_bytes -= len(line)
            if lines and limit_bytes < 0:
                break
            lines.append(line)
            number += 1
        return lines, number

    def flush(self) -> None:
        """Append to the file what is not in it yet; a disk that takes nothing is tried again the next time."""
        try:
            while self._written < self.last:
                lines, last = self.since(self._written, _WRITE_BYTES)
                self._append(b"".join(line + b"\n" for line in lines))
                self._written = last
        except OSError:
            pass  # a full disk, say; there is no other place to say so

    def _encode(self, number: int) -> bytes:
        time_ns, event, fields = self._kept[number - self.last - 1]
        return jsontext.dump({"seq": number, "time": _format_time(time_ns), "event": event, **fields})

    def _append(self, data: bytes) -> None:
        fd, size_bytes = self._open(len(data))
        if os.write(fd, data) < len(data):
            # Whole lines or none of them: a reader could not go on after a torn one.
            os.ftruncate(fd, size_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open(self, more_bytes: int) -> tuple[int, int]:
        """Return the file to append to, and its size."""
        if self._fd is not None:
            status = os.fstat(self._fd)
            is_full = status.st_size + more_bytes > FILE_BYTES
            if status.st_nlink and not is_full:
                return self._fd, status.st_size
            if is_full:
                _move_away()
            fd, self._fd = self._fd, None
            os.close(fd)
        self._fd = os.open(paths.STAGE1_EVENTS, _FLAGS, 0o640)
        return self._fd, os.fstat(self._fd).st_size


def _move_away() -> None:
    try:
        os.rename(paths.STAGE1_EVENTS, paths.STAGE1_EVENTS + ".1")
    except OSError as error:
        # Somebody removed it, perhaps behind the mount of the overlay.
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise


def _format_time(time_ns: int) -> str:
    seconds, fraction = divmod(time_ns, _SECOND_NS)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{fraction:09d}Z"
