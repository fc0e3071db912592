"""
The sidecar of one process of an app: reads its output, writes the log file and the console copy, serves the streams
that clients attach to, and ends at end of file. The processes of an app, its own and its event handlers, share the log.

A small epoll loop, not a trio program. Logged output is tee'd, written, and only then consumed from the app's pipe, and
an unfinished line stays in the pipe: a sidecar that is killed may repeat a chunk but loses nothing, since PID 1 holds
the read ends and hands them to a new one.
"""

from __future__ import annotations

import _signal
import errno
import fcntl
import os
import select
import stat

from minit import syscalls
from minit.iottymux.logfile import LINE_BYTES, Log
from minit.iottymux.loop import Loop
from minit.stdio import line_end
from minit.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from minit.iottymux.mux import Mux
    from minit.iottymux.output import LineLog

# A pipe has 16 slots of up to a page each. Half of them hold a line of ordinary writes; where the writes are tiny and
# cannot share a slot (splice(2), O_DIRECT), waiting for the end of the line would block the app for ever.
_SCRATCH_BYTES = 8 * 4096
# A write of at most PIPE_BUF bytes reaches a pipe whole, so lines of several apps do not mix on the console.
_CONSOLE_BYTES = 4096
_EVENTS = select.EPOLLIN | select.EPOLLET
_SIGNALS = (_signal.SIGIO, _signal.SIGHUP)


class Stream(Value):
    """One output of an app: `name` is stdout or stderr, `fd` the read end of its pipe, `console` the pod's own."""

    name: str
    fd: int
    console: int


def run_sidecar(
    app: str,
    pid: int,
    streams: Sequence[Stream],
    log: Log,
    renewed: bool = False,
    attachable: Mapping[str, int] | None = None,
    attachable_log: LineLog | None = None,
    null: int | None = None,
    filter: bytes = b"",
) -> None:
    """
    Serve the streams of process `pid` of `app` until each is at its end.

    `streams` are logged; `attachable` has the descriptors of all others by the names in minit.iottymux.mux, and
    `attachable_log` is where what comes through its pipes is logged, if it is. `renewed` says that a killed sidecar had
    them before. `null` is /dev/null if that cannot be opened. From the first turn on nothing is done that `filter`, a
    filter of system calls, could forbid.
    """
    if null is None:
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    loop = Loop()
    logs: list[LineLog] = [log] if attachable_log is None else [log, attachable_log]
    readers = _Readers(loop, streams, f"{app}[{pid}]: ".encode(), logs, null, renewed)
    mux: Mux | None = None
    if attachable:
        from minit.iottymux.mux import Mux  # loaded by the launcher

        mux = Mux(loop, app, attachable, null, attachable_log, renewed=renewed)
    if filter:
        syscalls.install_seccomp_filter(filter)
    while True:
        served = mux is None or mux.check()
        if served and readers.all_ended:
            break
        loop.turn(None if mux is None or served else mux.patience_seconds)
    if mux is not None:
        mux.close()


class _Readers:
    """What copies logged output, line by line, to the first of the logs and to the console; it reopens all of them."""

    def __init__(
        self, loop: Loop, streams: Sequence[Stream], prefix: bytes, logs: Sequence[LineLog], null: int, renewed: bool
    ) -> None:
        self._loop = loop
        self._logs = logs
        self._scratch = _Scratch()
        self._null = null
        self._consoles = {stream.fd: _Console(stream.console, prefix, renewed) for stream in streams}
        self._open = {stream.fd: stream for stream in streams}
        # What is logged, and taken from the pipe when the console has it too.
        self._logged = dict.fromkeys(self._open, 0)
        self._hung_up: set[int] = set()
        self._awaited: set[int] = set()
        self._growth = _watch_growth(streams)
        loop.watch(self._growth, self._on_signal)
        for stream in streams:
            # Edge-triggered: an unfinished line left in the pipe must not wake the loop again.
            loop.watch(stream.fd, lambda events, fd=stream.fd: self._on_event(fd, events), _EVENTS)  # type: ignore[misc]

    @property
    def all_ended(self) -> bool:
        """Whether every stream is at its end."""
        return not self._open

    def _on_signal(self, events: int) -> None:
        if _signal.SIGHUP in syscalls.read_signals(self._growth):
            for log in self._logs:
                log.reopen()
        self._go_on()

    def _on_event(self, fd: int, events: int) -> None:
        if events & select.EPOLLHUP:
            self._hung_up.add(fd)
        self._go_on_with(fd)

    def _go_on(self) -> None:
        for fd in [*self._open]:
            self._go_on_with(fd)

    def _go_on_with(self, fd: int) -> None:
        if self._read(fd) and fd in self._hung_up:
            self._loop.unwatch(fd)
            del self._open[fd]

    def _read(self, fd: int) -> bool:
        """Pass on what a stream has; False if its console has to take more first."""
        console = self._consoles[fd]
        while True:
            if not console.flush():
                self._await(self._open[fd].console)
                return False
            # Not read: a packet (O_DIRECT) of which only a part is read loses the rest.
            while self._logged[fd]:
                self._logged[fd] -= os.splice(fd, self._null, self._logged[fd])
            data = self._scratch.tee(fd)
            taken = data.rfind(b"\n") + 1
            if not taken and (fd in self._hung_up or self._scratch.was_full or len(data) == LINE_BYTES):
                taken = len(data)
            if not taken:
                return True
            self._logs[0].write(self._open[fd].name, data[:taken])
            console.put(data[:taken])
            self._logged[fd] = taken

    def _await(self, console: int) -> None:
        """Go on when a console takes more; clients of the app's other streams are served meanwhile."""
        if console not in self._awaited:
            self._awaited.add(console)
            self._loop.watch(console, lambda _: self._on_console(console), select.EPOLLOUT)

    def _on_console(self, console: int) -> None:
        self._awaited.remove(console)
        self._loop.unwatch(console)
        self._go_on()


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


class _Console:
    """
    The copy on the pod's own stdout or stderr, each line prefixed; silent once nobody can read it any more.

    O_NONBLOCK is not ours to set, so nothing is written before it would be taken.
    """

    def __init__(self, fd: int, prefix: bytes, torn: bool) -> None:
        self._fd: int | None = fd
        self._prefix = prefix
        self._line_end = line_end(fd)
        # The line that a killed predecessor was writing to a file or terminal may have no end.
        self._unfinished = b"\n" if torn else b""
        self._waiting = b""
        self._room: select.poll | None = None
        if _can_be_full(fd):
            self._room = select.poll()
            self._room.register(fd, select.POLLOUT)

    def put(self, data: bytes) -> None:
        """Have lines written by `flush`, after those before."""
        # One replacement for all lines: a loop over them is what would limit the speed of the log.
        text = data.removesuffix(b"\n").replace(b"\n", self._line_end + self._prefix)
        self._waiting += self._unfinished + self._prefix + text + self._line_end
        self._unfinished = b""

    def flush(self) -> bool:
        """Write what waits, and return whether all of it is written."""
        while self._waiting and self._fd is not None:
            if self._room is not None and not self._room.poll(0):
                return False
            try:
                self._waiting = self._waiting[os.write(self._fd, self._next_block()) :]
            except BlockingIOError:
                return False  # the caller of rkt left O_NONBLOCK on it
            except OSError as error:
                if error.errno not in (errno.EPIPE, errno.EIO, errno.ENOSPC, errno.EBADF):
                    raise
                self._fd = None
        self._waiting = b""
        return True

    def _next_block(self) -> bytes:
        if self._room is None or len(self._waiting) <= _CONSOLE_BYTES:
            return self._waiting
        end = self._waiting.rfind(b"\n", 0, _CONSOLE_BYTES) + 1
        # Of a longer line as much as is taken at once, or the rest would be waited for.
        return self._waiting[: end or _CONSOLE_BYTES]


def _can_be_full(fd: int) -> bool:
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
