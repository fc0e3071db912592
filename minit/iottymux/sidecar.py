"""
The log sidecar of one app: reads its output, writes the log file and the console copy, ends at end of file.

A small epoll loop, not a trio program. Output is tee'd, written, and only then consumed from the app's pipe, and an
unfinished line stays in the pipe: a sidecar that is killed may repeat a chunk but loses nothing, since PID 1 holds
the read ends and hands them to a new one.
"""

from __future__ import annotations

import errno
import os
import select
import time

from minit import syscalls
from minit.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_PIPE_BYTES = 64 * 1024
# A longer line is logged in parts, tagged P as in the CRI log format; below what 16 slots of a pipe always hold.
_LINE_BYTES = 16 * 1024
# A write of at most PIPE_BUF bytes reaches a pipe whole, so lines of several apps do not mix on the console.
_CONSOLE_BYTES = 4096


class Stream(Value):
    """One output of an app: `name` is stdout or stderr, `fd` the read end of its pipe, `console` the pod's own."""

    name: str
    fd: int
    console: int


def run_sidecar(app: str, pid: int, streams: Sequence[Stream], log_directory: int) -> None:
    """Copy the streams of `app` until each is at its end."""
    log = _Log(app, log_directory)
    consoles = {stream.fd: _Console(stream.console, f"{app}[{pid}]: ".encode()) for stream in streams}
    scratch_read, scratch_write = os.pipe2(os.O_CLOEXEC)
    poller = select.epoll()
    for stream in streams:
        # Edge-triggered: an unfinished line left in the pipe must not wake the loop again.
        poller.register(stream.fd, select.EPOLLIN | select.EPOLLET)
    by_fd = {stream.fd: stream for stream in streams}
    while by_fd:
        for fd, events in poller.poll():
            stream = by_fd[fd]
            ended = bool(events & select.EPOLLHUP)
            while data := _tee(fd, scratch_read, scratch_write):
                taken = data.rfind(b"\n") + 1
                if not taken and (ended or len(data) >= _LINE_BYTES):
                    taken = len(data)
                if not taken:
                    break
                lines = _lines(data[:taken])
                log.write(stream.name, lines)
                consoles[fd].write(lines)
                _consume(fd, taken)
            if ended:
                poller.unregister(fd)
                del by_fd[fd]


def _tee(fd: int, scratch_read: int, scratch_write: int) -> bytes:
    """Return what the pipe holds without consuming it; empty if it holds nothing."""
    try:
        size = syscalls.tee(fd, scratch_write, _PIPE_BYTES)
    except BlockingIOError:
        return b""
    data = b""
    while len(data) < size:
        data += os.read(scratch_read, size - len(data))
    return data


def _consume(fd: int, size_bytes: int) -> None:
    while size_bytes:
        size_bytes -= len(os.read(fd, size_bytes))


def _lines(data: bytes) -> list[bytes]:
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


class _Log:
    """The log file, lines as in the CRI log format: `TIME STREAM F|P TEXT`."""

    def __init__(self, app: str, directory: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(f"{app}.log", flags, 0o640, dir_fd=directory)
        self._lost_bytes = 0

    def write(self, stream: str, lines: Sequence[bytes]) -> None:
        """Append the lines; a full disk loses them here, with a note once there is space, but blocks no app."""
        now = time.time_ns()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9)) + f".{now % 10**9:09d}Z {stream} "
        full, part = stamp.encode() + b"F ", stamp.encode() + b"P "
        records = []
        for line in lines:
            text = line[:-1] if line.endswith(b"\n") else line
            while len(text) > _LINE_BYTES:
                records.append(part + text[:_LINE_BYTES])
                text = text[_LINE_BYTES:]
            records.append((full if line.endswith(b"\n") else part) + text)
        data = b"\n".join(records) + b"\n"
        if self._lost_bytes:
            data = full + b"minit: %d bytes of log were lost\n" % self._lost_bytes + data
        try:
            os.write(self._fd, data)
            self._lost_bytes = 0
        except OSError:
            self._lost_bytes += len(data)


class _Console:
    """The copy on the pod's own stdout or stderr, each line prefixed; silent once nobody can read it any more."""

    def __init__(self, fd: int, prefix: bytes) -> None:
        self._fd: int | None = fd
        self._prefix = prefix

    def write(self, lines: Sequence[bytes]) -> None:
        """Write the lines, waiting as long as the reader takes."""
        block = b""
        for line in lines:
            text = self._prefix + line + (b"" if line.endswith(b"\n") else b"\n")
            if block and len(block) + len(text) > _CONSOLE_BYTES:
                self._write_all(block)
                block = b""
            block += text
        self._write_all(block)

    def _write_all(self, data: bytes) -> None:
        while data and self._fd is not None:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                # The caller of rkt left O_NONBLOCK on its terminal or pipe; it is not ours to clear.
                writable = select.poll()
                writable.register(self._fd, select.POLLOUT)
                writable.poll()
            except OSError as error:
                if error.errno not in (errno.EPIPE, errno.EIO, errno.ENOSPC, errno.EBADF):
                    raise
                self._fd = None
