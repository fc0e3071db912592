"""
The log sidecar of one process of an app: reads its output, writes the log file and the console copy, ends at end of
file. The processes of an app, its own and its event handlers, share the log file.

A small epoll loop, not a trio program. Output is tee'd, written, and only then consumed from the app's pipe, and an
unfinished line stays in the pipe: a sidecar that is killed may repeat a chunk but loses nothing, since PID 1 holds
the read ends and hands them to a new one.
"""

from __future__ import annotations

import _signal
import errno
import fcntl
import os
import select

from minit import syscalls
from minit.iottymux.logfile import LINE_BYTES, Log
from minit.stdio import line_end
from minit.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# A pipe has 16 slots of up to a page each. Half of them hold a line of ordinary writes; where the writes are tiny and
# cannot share a slot (splice(2), O_DIRECT), waiting for the end of the line would block the app for ever.
_SCRATCH_BYTES = 8 * 4096
# A write of at most PIPE_BUF bytes reaches a pipe whole, so lines of several apps do not mix on the console.
_CONSOLE_BYTES = 4096
_SIGNALS = (_signal.SIGIO, _signal.SIGHUP)


class Stream(Value):
    """One output of an app: `name` is stdout or stderr, `fd` the read end of its pipe, `console` the pod's own."""

    name: str
    fd: int
    console: int


def run_sidecar(app: str, pid: int, streams: Sequence[Stream], log: Log, renewed: bool = False) -> None:
    """Copy the streams of `app` until each is at its end; `renewed` says that a killed sidecar had them before."""
    prefix = f"{app}[{pid}]: ".encode()
    consoles = {stream.fd: _Console(stream.console, prefix, renewed) for stream in streams}
    scratch = _Scratch()
    null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    poller = select.epoll()
    growth = _watch_growth(streams)
    poller.register(growth, select.EPOLLIN)
    for stream in streams:
        # Edge-triggered: an unfinished line left in the pipe must not wake the loop again.
        poller.register(stream.fd, select.EPOLLIN | select.EPOLLET)
    by_fd = {stream.fd: stream for stream in streams}
    while by_fd:
        events = dict(poller.poll())
        if events.pop(growth, 0):
            if _signal.SIGHUP in syscalls.read_signals(growth):
                log.reopen()
            events = {**dict.fromkeys(by_fd, 0), **events}
        for fd, event in events.items():
            stream = by_fd[fd]
            ended = bool(event & select.EPOLLHUP)
            while data := scratch.tee(fd):
                taken = data.rfind(b"\n") + 1
                if not taken and (ended or scratch.was_full or len(data) == LINE_BYTES):
                    taken = len(data)
                if not taken:
                    break
                lines = _lines(data[:taken])
                log.write(stream.name, data[:taken])
                consoles[fd].write(lines)
                # Not read: a packet (O_DIRECT) of which only a part is read loses the rest.
                while taken:
                    taken -= os.splice(fd, null, taken)
            if ended:
                poller.unregister(fd)
                del by_fd[fd]


def _watch_growth(streams: Sequence[Stream]) -> int:
    """
    Return a descriptor that is readable when any of the pipes has got more, by SIGIO, and on SIGHUP.

    epoll alone does not tell: a write(2) larger than the pipe sleeps when that is full, and whenever it goes on it
    wakes readers only if the pipe was empty, which an unfinished line keeps it from being (fs/pipe.c). It sends SIGIO
    each time, from Linux 5.14 on.
    """
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _SIGNALS)
    for stream in streams:
        fcntl.fcntl(stream.fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(stream.fd, fcntl.F_SETFL, fcntl.fcntl(stream.fd, fcntl.F_GETFL) | os.O_ASYNC)
    return syscalls.signalfd(_SIGNALS)


class _Scratch:
    """A pipe for reading others without consuming; `was_full` tells whether the last one filled all its slots."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC)
        fcntl.fcntl(self._writer, fcntl.F_SETPIPE_SZ, _SCRATCH_BYTES)
        self._room = select.poll()
        self._room.register(self._writer, select.POLLOUT)
        self.was_full = False

    def tee(self, fd: int) -> bytes:
        """Return what the pipe `fd` holds first, at most LINE_BYTES; empty if it holds nothing."""
        try:
            size = syscalls.tee(fd, self._writer, LINE_BYTES)
        except BlockingIOError:
            return b""
        self.was_full = not self._room.poll(0)
        data = b""
        while len(data) < size:
            data += os.read(self._reader, size - len(data))
        return data


def _lines(data: bytes) -> list[bytes]:
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


class _Console:
    """The copy on the pod's own stdout or stderr, each line prefixed; silent once nobody can read it any more."""

    def __init__(self, fd: int, prefix: bytes, torn: bool) -> None:
        self._fd: int | None = fd
        self._prefix = prefix
        self._line_end = line_end(fd)
        # The line that a killed predecessor was writing to a file or terminal may have no end.
        self._unfinished = b"\n" if torn else b""

    def write(self, lines: Sequence[bytes]) -> None:
        """Write the lines, waiting as long as the reader takes."""
        block, self._unfinished = self._unfinished, b""
        for line in lines:
            text = self._prefix + line.removesuffix(b"\n") + self._line_end
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
