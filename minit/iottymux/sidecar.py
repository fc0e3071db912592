"""
The sidecar of a process of an app: reads its output, writes the log file and the console copy, serves the streams for
clients, and ends at end of file. The processes of an app, its own and its event handlers, share the log.

A small epoll loop, not a trio program. Logged output moves from the app's pipe into a buffer, and leaves the buffer
after the write: a killed sidecar may repeat a chunk on the console but loses nothing, since PID 1 holds the read ends
and the buffers and hands them to a new sidecar.
"""

from __future__ import annotations

import os
import select
import signal
import stat
from collections.abc import Mapping, Sequence
from functools import partial

from minit.base.harmless import harmless
from minit.base.value import Value
from minit.iottymux.buffers import LineBuffer
from minit.iottymux.logfile import LINE_BYTES, Log
from minit.iottymux.mux import Mux
from minit.iottymux.protocol import STDERR, STDOUT
from minit.iottymux.ring import LineLog
from minit.linux import syscalls
from minit.linux.loop import Loop, Wait
from minit.linux.stdio import is_console_shared, line_end

LEAVE = signal.SIGUSR1
"""Tells a sidecar to leave its streams to the next sidecar, of another version, as soon as nothing is half done."""
SIGNALS = (signal.SIGHUP, LEAVE)
"""The signals of PID 1 to a sidecar, which is born with them blocked; SIGHUP says that log files were moved."""

# A write of at most PIPE_BUF bytes reaches a pipe whole, so lines of several apps do not mix on the console.
_CONSOLE_BYTES = 4096
# Bytes without any effect on a terminal but their own display.
_PLAIN = bytes([0x09, 0x0A, *range(0x20, 0x7F)])
# So many passes mostly empty an app's pipe; then other streams have their turn.
_PASSES_PER_TURN = 4


class Stream(Value):
    """
    An output of an app: `name` is stdout or stderr, `fd` the read end of its pipe, `buffer` the file of a LineBuffer,
    `console` the pod's own stream.
    """

    name: str
    fd: int
    buffer: int
    console: int


def run_sidecar(
    app: str,
    pid: int,
    streams: Sequence[Stream],
    log: Log,
    renewed: bool = False,
    attachable: Mapping[str, int] | None = None,
    logged: Sequence[str] = (),
    plain_log: LineLog | None = None,
    null: int | None = None,
    filter: bytes = b"",
) -> None:
    """
    Serve the streams of process `pid` of `app` until each is at its end, or until PID 1 says LEAVE.

    `streams` are logged; `attachable` has the descriptors of all others by the names in minit.iottymux.mux. The
    attachable outputs among `logged` are in `log` too. These and all pipes are in `plain_log`, if there is one.
    `renewed` says that another sidecar had the streams before. `null` is /dev/null where the sidecar cannot open it.
    From the first turn on the sidecar makes no system call that `filter` could forbid.
    """
    if null is None:
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    loop = Loop()
    plain_logs = [] if plain_log is None else [plain_log]
    readers = _Readers(loop, streams, f"{app}[{pid}]: ".encode(), [log, *plain_logs])
    mux: Mux | None = None
    if attachable:
        pipes = {STDOUT, STDERR}
        logs = {name: [*([log] if name in logged else []), *plain_logs] for name in pipes.union(logged)}
        mux = Mux(loop, app, attachable, null, logs, renewed=renewed)
    if filter:
        syscalls.install_seccomp_filter(filter)
    if renewed:
        readers.go_on()
    while True:
        served = mux is None or mux.check()
        if served and readers.all_ended:
            break
        if readers.may_leave and (mux is None or mux.may_leave):
            if mux is not None:
                mux.leave()
            return
        loop.turn(None if mux is None or served else mux.patience_seconds)
    if mux is not None:
        mux.close()


class _Readers:
    """The readers of logged output, which goes in lines to the first log and the console; all logs are reopened."""

    def __init__(self, loop: Loop, streams: Sequence[Stream], prefix: bytes, logs: Sequence[LineLog]) -> None:
        self._loop = loop
        self._logs = logs
        self._buffers = {stream.fd: LineBuffer(stream.buffer, LINE_BYTES) for stream in streams}
        self._consoles = {
            stream.fd: _Console(stream.console, prefix, self._buffers[stream.fd].is_interrupted) for stream in streams
        }
        self._open = {stream.fd: stream for stream in streams}
        # Logged bytes, which leave the buffer when the console has them too.
        self._logged = dict.fromkeys(self._open, 0)
        # Streams that wait for a console.
        self._held: set[int] = set()
        self._is_to_leave = False
        self._signals = syscalls.signalfd(SIGNALS)
        loop.watch(self._signals, lambda _: self._on_signals())
        for fd, stream in self._open.items():
            self._buffers[fd].find_logged(partial(logs[0].written_bytes, stream.name))
            self._watch(fd)

    @property
    def all_ended(self) -> bool:
        """Tell whether every stream is at its end."""
        return not self._open

    @property
    def may_leave(self) -> bool:
        """Tell whether another sidecar is to go on, and no console has a part of a line."""
        return self._is_to_leave and not self._held

    def go_on(self) -> None:
        """Pass on the bytes taken by a sidecar before, even if nothing more comes."""
        for fd in [*self._open]:
            self._read(fd)

    def _watch(self, fd: int) -> None:
        self._loop.watch(fd, lambda _: self._read_on(fd))

    def _on_signals(self) -> None:
        numbers = syscalls.read_signals(self._signals)
        self._is_to_leave |= LEAVE in numbers
        if signal.SIGHUP in numbers:
            for log in self._logs:
                log.reopen()

    def _read_on(self, fd: int) -> None:
        for _ in range(_PASSES_PER_TURN):
            if not self._read(fd):
                return

    def _read(self, fd: int) -> bool:
        """Pass on some output of a stream whose console has taken all before; return whether to go on."""
        stream, buffer, console = self._open[fd], self._buffers[fd], self._consoles[fd]
        data = buffer.take(fd)
        taken = data.rfind(b"\n") + 1
        if not taken and (buffer.is_ended or buffer.is_full):
            taken = len(data)
        if taken:
            self._log(stream, data[:taken])
            console.put(data[:taken])
            self._logged[fd] = taken
            self._flush(fd)
        elif buffer.is_ended:
            self._loop.unwatch(fd)
            del self._open[fd]
        return taken > 0 and buffer.is_full and fd not in self._held

    def _log(self, stream: Stream, data: bytes) -> None:
        buffer = self._buffers[stream.fd]
        if len(data) > buffer.logged_bytes:
            self._logs[0].write(stream.name, data[buffer.logged_bytes :], buffer.note_logging)

    def _flush(self, fd: int) -> None:
        """Have the console take its output, now or later; clients of other streams are served meanwhile."""
        console = self._open[fd].console
        if self._consoles[fd].flush():
            self._buffers[fd].pass_on(self._logged[fd])
            if fd in self._held:
                self._held.remove(fd)
                self._loop.unwatch(console)
                self._watch(fd)
        elif fd not in self._held:
            self._held.add(fd)
            self._buffers[fd].note_logged(self._logged[fd])
            self._loop.unwatch(fd)
            self._loop.watch(console, lambda _: self._flush(fd), select.EPOLLOUT)


class _Console:
    """
    The copy on the pod's own stdout or stderr, each line prefixed; silent once nobody can read it any more.

    The sidecar must not set O_NONBLOCK, so it writes only what the console takes.
    """

    def __init__(self, fd: int, prefix: bytes, torn: bool) -> None:
        self._fd: int | None = fd
        self._prefix = prefix
        self._line_end = line_end(fd)
        # The line of a killed predecessor to a file or terminal may have no end.
        self._unfinished = b"\n" if torn else b""
        self._waiting = b""
        self._is_shared = is_console_shared()
        self._room = Wait({fd: select.POLLOUT}) if _can_be_full(fd) else None

    def put(self, data: bytes) -> None:
        """Queue lines for `flush`, after the lines before."""
        if self._is_shared and data.translate(None, _PLAIN):
            data = _harmless_lines(data)
        # A single replacement for all lines: a loop over lines would limit the speed of the log.
        text = data.removesuffix(b"\n").replace(b"\n", self._line_end + self._prefix)
        self._waiting += self._unfinished + self._prefix + text + self._line_end
        self._unfinished = b""

    def flush(self) -> bool:
        """Write the queue; return whether all of it is written."""
        while self._waiting and self._fd is not None:
            if self._room is not None and not self._room.ready(0):
                return False
            try:
                self._waiting = self._waiting[os.write(self._fd, self._next_block()) :]
            except BlockingIOError:
                return False  # the caller of rkt left O_NONBLOCK on it
            except OSError:
                self._fd = None  # whatever it is: the log goes on
        self._waiting = b""
        return True

    def _next_block(self) -> bytes:
        if self._room is None or len(self._waiting) <= _CONSOLE_BYTES:
            return self._waiting
        end = self._waiting.rfind(b"\n", 0, _CONSOLE_BYTES) + 1
        # Of a longer line as much as is taken at once, or the rest would be waited for.
        return self._waiting[: end or _CONSOLE_BYTES]


def _harmless_lines(data: bytes) -> bytes:
    """Return lines in which nothing acts on a terminal, or hides; CR LF ends a line as well as LF does."""
    lines = data.decode(errors="surrogateescape").split("\n")
    return "\n".join([harmless(line.removesuffix("\r")) for line in lines]).encode()


def _can_be_full(fd: int) -> bool:
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
