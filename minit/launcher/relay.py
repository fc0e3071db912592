"""
The relay between the caller's terminal, pipe or file and a terminal in the pod: the console, or the terminal of an
`enter`.

Bytes pass unchanged, in both directions at once. Nothing here waits: each direction has a buffer of its own, and when
the buffer is full the source is not read. Keys for programs (Ctrl-C, Ctrl-Z) are bytes for the pod's terminal; job
control of the caller's shell meets the launcher alone.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import termios
import time
from collections.abc import Callable

from minit.base.carried import Carried, Descriptor
from minit.linux import syscalls
from minit.linux.loop import Interest, Loop, wait_readable
from minit.linux.stdio import expect_raw_terminal, reopen_without_blocking
from minit.linux.terminal import CTRL_D, CallerTerminal, edits_lines, end_of_file_key, read_size
from minit.supervisor.exec.podconsole import open_slave

_BUFFER_BYTES = 64 * 1024
# A write of so much does not block where epoll(7) reports room, PIPE_BUF of pipe(7).
_WRITE_BYTES = 4096
# The first pause before a look whether the app has read the end of the input, which nobody tells; longer each time.
_FIRST_LOOK_SECONDS = 0.1
_LONGEST_LOOK_SECONDS = 10.0
# A shell with `ignoreeof` ignores ten (bash(1)); to other line editors the key may be like any other.
_MOST_END_KEYS = 11
# Ctrl-], three times within a second, as in systemd-nspawn (ptyfwd.c).
_ESCAPE_KEY = 0x1D
_ESCAPE_TIMES = 3
_ESCAPE_SECONDS = 1.0
_SIGNALS = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)


class Relay(Carried):
    """
    Both directions between the caller and `master`, the console's end outside of the pod.

    Output goes to the caller's descriptor `output`. The caller's terminal, if any, is raw from the beginning until
    `close`, but for times of suspension. `hung_up` is called if the terminal goes away, `escaped` if somebody there
    types the escape. `rewatch` comes before each turn of `loop`.
    """

    _terminal: CallerTerminal
    _escapes: list[float]
    _master: Descriptor | None
    _slave: Descriptor | None
    _input: Descriptor | None
    _caller_output: int
    _output: Descriptor | None
    _to_app: bytes
    _to_caller: bytes
    _input_ended: bool
    _end_keys: int
    _end_look_at: float | None
    _end_look_seconds: float
    _last_byte: bytes

    def __init__(
        self,
        loop: Loop,
        master: int,
        terminal: CallerTerminal,
        *,
        hung_up: Callable[[], None],
        escaped: Callable[[], None] | None = None,
        output: int = 1,
    ) -> None:
        self._terminal = terminal
        self._escapes = []
        self._master = master
        # While somebody has the slave open, an app may close all descriptors, or hang up as login programs do, and open
        # the slave again later: to the master nothing happens.
        self._slave = open_slave(master)
        self._input = reopen_without_blocking(0, os.O_RDONLY) if terminal.is_read else None
        self._caller_output = output
        self._output = reopen_without_blocking(output, os.O_WRONLY)
        self._to_app = self._to_caller = b""
        self._input_ended = False
        self._end_keys = 0
        self._end_look_at = None
        self._end_look_seconds = _FIRST_LOOK_SECONDS
        self._last_byte = b"\n"
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self.attach(loop, hung_up=hung_up, escaped=escaped)
        self._resume()

    def attach(self, loop: Loop, *, hung_up: Callable[[], None], escaped: Callable[[], None] | None = None) -> None:
        """Be a part of a loop, also in another program than the one that began."""
        self._interest = Interest(loop, self._handle)
        self._hung_up = hung_up
        self._escaped = escaped if self._terminal.settings is not None else None
        self._end_look = loop.deadline(self._look_for_end)
        if self._end_look_at is not None:
            self._end_look.set(self._end_look_at)
        self._signals = syscalls.signalfd(_SIGNALS)
        if self._terminal.settings is not None:
            expect_raw_terminal()

    def leave(self) -> None:
        """Note what the loop knows, for another program."""
        self._end_look_at = self._end_look.moment

    def rewatch(self) -> None:
        """Have the loop wait for the descriptors with work now."""
        interest = {self._signals: select.POLLIN}
        if self._input is not None and len(self._to_app) < _BUFFER_BYTES:
            interest[self._input] = select.POLLIN
        if self._output is not None and self._to_caller:
            interest[self._output] = select.POLLOUT
        if self._master is not None:
            events = select.POLLIN if len(self._to_caller) < _BUFFER_BYTES else 0
            events |= select.POLLOUT if self._to_app else 0
            if events:
                interest[self._master] = events
        self._interest.set(interest)

    def _handle(self, fd: int, events: int) -> None:
        if fd == self._signals:
            self._on_signals()
        elif fd == self._input:
            self._read_input()
        elif fd == self._output:
            self._write_output()
        elif fd == self._master:
            if events & ~select.POLLOUT:
                self._read_console()
            if events & select.POLLOUT:
                self._write_console()

    def finish(self) -> None:
        """Take no more input: the pod has ended, and there will be no more output."""
        self._input, self._to_app = None, b""
        self._close_slave()

    def is_drained(self) -> bool:
        """After `finish`, return whether all output is delivered, or nobody reads output."""
        while self._master is not None and len(self._to_caller) < _BUFFER_BYTES:
            self._read_console()
        return not self._to_caller

    def pause(self) -> None:
        """Stop this process, as the job behind has been stopped, until SIGCONT."""
        self._terminal.restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._resume()

    def close(self) -> None:
        """Give the caller's terminal back."""
        self._terminal.restore()

    # Output, from the console to descriptor 1.

    def _read_console(self) -> None:
        assert self._master is not None
        try:
            data = os.read(self._master, _BUFFER_BYTES)
        except OSError:
            # Nothing now (EAGAIN); and nothing ever again once the pod has ended (EIO), unless somebody outside has the
            # slave.
            if self._slave is None:
                self._close_master()
            return
        if self._output is not None:
            self._to_caller += data
        if self._end_look.moment is not None and self._end_look_seconds > _FIRST_LOOK_SECONDS:
            self._set_end_look(_FIRST_LOOK_SECONDS)  # a prompt, perhaps

    def _write_output(self) -> None:
        assert self._output is not None
        try:
            size = os.write(self._output, self._to_caller[:_WRITE_BYTES])
        except BlockingIOError:
            return
        except OSError:
            # Nobody reads any more, or there is no space; the app goes on.
            self._output, size = None, len(self._to_caller)
        self._to_caller = self._to_caller[size:]

    # Input, from descriptor 0 to the console.

    def _read_input(self) -> None:
        assert self._input is not None
        try:
            data = os.read(self._input, _WRITE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # EIO of a terminal that is gone
        self._to_app += data
        if data:
            self._last_byte = data[-1:]
            if self._escaped is not None and self._ends_with_escape(data):
                self._escaped()
            return
        self._input = None
        if self._terminal.settings is not None:
            self._hang_up()
        else:
            self._input_ended = True
            self._end_input()

    def _ends_with_escape(self, data: bytes) -> bool:
        """Tell whether the escape's last key is among the keys typed just now."""
        now = time.monotonic()
        for key in data:
            typed = [moment for moment in self._escapes if now - moment <= _ESCAPE_SECONDS]
            self._escapes = [*typed, now] if key == _ESCAPE_KEY else []
            if len(self._escapes) == _ESCAPE_TIMES:
                return True
        return False

    def _write_console(self) -> None:
        assert self._master is not None
        try:
            size = os.write(self._master, self._to_app)
        except BlockingIOError:
            return
        except OSError:
            size = len(self._to_app)  # hung up from inside: nobody hears it
        self._to_app = self._to_app[size:]
        self._end_input()

    def _end_input(self) -> None:
        """Say "end of file" once everything before is written: the first such key only ends an unfinished line."""
        if self._input_ended and not self._to_app and self._master is not None:
            self._input_ended = False
            self._to_app = end_of_file_key(self._master) * (1 if self._last_byte == b"\n" else 2)
            self._set_end_look(_FIRST_LOOK_SECONDS)

    def _look_for_end(self) -> None:
        """Say "end of file" again once read: every read beyond the end finds the end, as in a file."""
        if self._master is None or self._slave is None:
            return
        if not self._to_app and not wait_readable([self._slave], 0):
            self._to_app = end_of_file_key(self._master)
            if not self._to_app and self._end_keys < _MOST_END_KEYS and edits_lines(self._master):
                self._end_keys += 1
                self._to_app = CTRL_D
        self._set_end_look(_FIRST_LOOK_SECONDS if self._to_app else 2 * self._end_look_seconds)

    def _set_end_look(self, seconds: float) -> None:
        self._end_look_seconds = min(seconds, _LONGEST_LOOK_SECONDS)
        self._end_look.set(time.monotonic() + self._end_look_seconds)

    def _hang_up(self) -> None:
        """Let the pod be stopped, and the pod's terminal hang up if output went to the lost one too."""
        if os.fstat(0).st_rdev == os.fstat(self._caller_output).st_rdev:
            self._to_caller = b""
            self._close_slave()
            self._close_master()
        self._hung_up()

    # The caller's terminal.

    def _on_signals(self) -> None:
        for number in syscalls.read_signals(self._signals):
            if number == signal.SIGTSTP:
                self._suspend()
            self._resume()

    def _suspend(self) -> None:
        """Stop as a program without a terminal of its own would, until SIGCONT."""
        self._terminal.restore()
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTSTP,))
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTSTP,))

    def _resume(self) -> None:
        """Make the terminal raw, in the background after waiting for the foreground, and take the size over."""
        self._terminal.make_raw()
        size = read_size()
        if size is not None and self._master is not None:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def _close_master(self) -> None:
        if self._master is not None:
            self._interest.set({})
            os.close(self._master)
            self._master = None

    def _close_slave(self) -> None:
        if self._slave is not None:
            os.close(self._slave)
            self._slave = None
