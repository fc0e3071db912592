"""The log file of an app, which the sidecars of its processes share."""

from __future__ import annotations

import errno
import fcntl
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# A longer line is logged in parts, tagged P as in the CRI log format. Nothing larger is taken from a pipe at a time
# either: what is consumed in small steps shows PID 1 that a slow reader of the console does read.
LINE_BYTES = 16 * 1024
# More than any line of the log, with its time and stream.
_TORN_BYTES = LINE_BYTES + 128


class Log:
    """The log file, lines as in the CRI log format: `TIME STREAM F|P TEXT`."""

    def __init__(self, app: str, directory: int) -> None:
        self._name = f"{app}.log"
        self._directory = directory
        self._fd: int | None = None
        self._lost_bytes = 0

    def write(self, stream: str, lines: Sequence[bytes]) -> None:
        """Append the lines; a full disk loses them here, with a note once there is space, but blocks no app."""
        now = time.time_ns()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9)) + f".{now % 10**9:09d}Z {stream} "
        full, part = stamp.encode() + b"F ", stamp.encode() + b"P "
        records = []
        for line in lines:
            text = line[:-1] if line.endswith(b"\n") else line
            while len(text) > LINE_BYTES:
                records.append(part + text[:LINE_BYTES])
                text = text[LINE_BYTES:]
            records.append((full if line.endswith(b"\n") else part) + text)
        data = b"\n".join(records) + b"\n"
        if self._lost_bytes:
            data = full + b"minit: %d bytes of log were lost\n" % self._lost_bytes + data
        try:
            if self._fd is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                self._fd = os.open(self._name, flags, 0o640, dir_fd=self._directory)
            # What is cut off below must not be a line that another sidecar of the app is writing.
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                _append(self._fd, data)
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._lost_bytes = 0
        except OSError:
            self._lost_bytes += len(data)


def _append(fd: int, data: bytes) -> None:
    size_bytes = os.fstat(fd).st_size
    if size_bytes and os.pread(fd, 1, size_bytes - 1) != b"\n":
        # A sidecar was killed while it wrote this line: its text is still in the pipe.
        start = max(0, size_bytes - _TORN_BYTES)
        size_bytes = start + os.pread(fd, _TORN_BYTES, start).rfind(b"\n") + 1
        os.ftruncate(fd, size_bytes)
    if os.write(fd, data) < len(data):
        # The disk is full: half a line would spoil the next one too.
        os.ftruncate(fd, size_bytes)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
