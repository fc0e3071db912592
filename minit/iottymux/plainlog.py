"""
The log file of rkt's log mode k8s-plain: `TIME STREAM LINE`, in a directory of the host that the pod's manifest names.

It is never rotated here; who made the directory does that, and asks for `reopen`.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable

from minit.podfiles.hostlogs import open_log

PLAIN_LOG = "plain-log"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class PlainLog:
    """The file `name` in `directory`; it is begun anew unless a sidecar that was killed has written to it."""

    kind = PLAIN_LOG

    def __init__(self, name: str, directory: int, renewed: bool = False) -> None:
        self._name = name
        self._directory = directory
        self._flags = _FLAGS if renewed else _FLAGS | os.O_TRUNC
        self._fd: int | None = None
        self._lost_bytes = 0
        self._is_in_line = False

    def write(self, stream: str, data: bytes, note_time: Callable[[int], object] = lambda _: None) -> None:
        """Append output; a full disk loses it here, with a note once there is space, but blocks no app."""
        now_ns = time.time_ns()
        note_time(now_ns)
        lines = format_lines(stream, data, now_ns)
        note = b"\n" if self._is_in_line else b""
        if self._lost_bytes:
            note += format_lines(stream, b"minit: %d bytes of log were lost\n" % self._lost_bytes, now_ns)
        try:
            self._append(note + lines)
            self._lost_bytes = 0
            # The end of one stream may have no newline, and the other one goes on.
            self._is_in_line = not lines.endswith(b"\n")
        except OSError:
            self._lost_bytes += len(lines)

    def written_bytes(self, stream: str, now_ns: int) -> int:
        """Return 0: what a sidecar was killed in is written once more."""
        return 0

    def note_lost(self, size_bytes: int) -> None:
        """Say that so much is missing, before the next output."""
        self._lost_bytes += size_bytes

    def reopen(self) -> None:
        """Go on in the file that has the name now."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._is_in_line = False
        try:
            self._open()
        except OSError:
            pass  # the next line tries again, and says what was lost

    def _append(self, data: bytes) -> None:
        fd = self._open()
        size_bytes = os.fstat(fd).st_size
        if os.write(fd, data) < len(data):
            os.ftruncate(fd, size_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open(self) -> int:
        if self._fd is None:
            # rkt's mode, of which the umask takes what it does not want.
            self._fd = open_log(self._directory, self._name, self._flags, 0o777)
            self._flags = _FLAGS
        return self._fd


def format_lines(stream: str, data: bytes, now_ns: int) -> bytes:
    """Return the lines with time and stream; the time is Go's RFC3339Nano in the zone of the host."""
    seconds, fraction_ns = divmod(now_ns, 10**9)
    local = time.localtime(seconds)
    fraction = f".{fraction_ns:09d}".rstrip("0").rstrip(".")
    offset = time.strftime("%z", local)
    zone = "Z" if local.tm_gmtoff == 0 else f"{offset[:3]}:{offset[3:]}"
    start = f"{time.strftime('%Y-%m-%dT%H:%M:%S', local)}{fraction}{zone} {stream} ".encode()
    whole, end, rest = data.rpartition(b"\n")
    lines = start + whole.replace(b"\n", b"\n" + start) + b"\n" if end else b""
    return lines + (start + rest if rest else b"")
