"""
`enter` while the command runs: waits for the end, passes signals on and relays the terminal.

A module beside `enterpod`, which is about the time before there is a command.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import NoReturn

from minit.base.errors import LaunchError
from minit.launcher.enter.commandgroup import EXIT_TIMED_OUT, Guard
from minit.launcher.enter.enterchild import GO
from minit.launcher.enter.enterconsole import EnterConsole
from minit.launcher.relay import Relay
from minit.linux import syscalls
from minit.linux.loop import Loop, wait_readable
from minit.linux.messages import Socket
from minit.linux.stdio import complain

# Signals of a terminal to a job would never arrive there: the command is in a session of its own.
_FOR_ALL = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
_ENDING = (*_FOR_ALL, signal.SIGTERM)
_FOR_THE_COMMAND = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_DEADLY = (*_FOR_ALL, *_FOR_THE_COMMAND)
_WITHOUT_RELAY = (signal.SIGTSTP, signal.SIGCONT)
_HELD = (*_DEADLY, signal.SIGCHLD)
_REPORT_BYTES = 4096
# How long an app may keep a command from the exec by stops, and how often `enter` continues the command meanwhile.
_STOPPED_SECONDS = 10.0
_CONTINUE_SECONDS = 0.1


def hold_signals() -> None:
    """Keep signals for the watch to read, from before a command could miss one."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_HELD, *_WITHOUT_RELAY))


class EnterWatch:
    """
    The loop over the processes of `minit.launcher.enter.enterchild`.

    `first` is the process that enters, `link` the socket to that process; `console` is given if the command has a
    terminal, and `guard` if the command has a time limit.
    """

    def __init__(self, first: int, link: Socket, console: EnterConsole | None, guard: Guard | None) -> None:
        self._first = first
        self._link: Socket | None = link
        self._first_status: int | None = None
        self._console = console
        self._guard = guard
        self._relay: Relay | None = None
        self._command: int | None = None
        self._status: int | None = None
        self._interrupted = False
        self._is_stop_wanted = False
        # Of the monotonic clock: the first time that an entering process was found stopped.
        self._stopped_at: float | None = None
        # A signal ignored by the caller, with nohup(1) say, is not for the command either.
        self._ignored = [number for number in _DEADLY if signal.getsignal(number) == signal.SIG_IGN]
        # The relay suspends and resumes in another way.
        self._signals = syscalls.signalfd((*_HELD, *_WITHOUT_RELAY) if console is None else _HELD)
        self._loop = Loop()
        self._loop.watch(link.fileno(), lambda _: self._on_link())
        self._loop.watch(self._signals, lambda _: self._on_signals())
        self._next_continue = self._loop.deadline(self._continue)
        # The command's time.
        self._is_over = False
        if guard is not None:
            pidfd = os.pidfd_open(guard.pid)
            self._loop.watch(pidfd, lambda _: self._end_in_time(pidfd))

    def run(self) -> int:
        """
        Return the command's exit code; dies as the command dies. LaunchError if there never was a command.

        With a time limit nothing of the command is left then; EXIT_TIMED_OUT if the time was over, LaunchError if the
        command was killed for want of a guard.
        """
        try:
            try:
                while self._status is None and not self._is_over:
                    self._turn()
            except LaunchError:
                # The entering process may have been killed, for the same reason.
                if self._guard is None or not self._guard.finish():
                    raise
                self._is_over = True
            else:
                self._is_over = self._guard is not None and self._guard.finish()
            if self._relay is not None:
                self._drain(self._relay)
        finally:
            if self._relay is not None:
                self._relay.close()
        if self._is_over:
            complain("enter: the time limit of the command is over")
            return EXIT_TIMED_OUT
        if self._status is None:
            raise LaunchError("the guard of the command was killed, and so the command")
        if os.WIFSIGNALED(self._status):
            _die(os.WTERMSIG(self._status))
        return os.waitstatus_to_exitcode(self._status)

    def _end_in_time(self, guard: int) -> None:
        """Wait no longer, not even for a command kept alive by a freezer."""
        self._loop.unwatch(guard)
        if self._status is not None:
            return  # the guard has ended as it was told to
        self._is_over = True
        if self._first_status is None:
            os.kill(self._first, signal.SIGKILL)

    def _turn(self) -> None:
        if self._relay is not None:
            self._relay.rewatch()
        self._loop.turn()

    def _on_link(self) -> None:
        """Learn the outcome of the first process, and let the second one be the command; later, learn of the exec."""
        assert self._link is not None
        if self._command is not None:
            # An earlier handler may have read from the link already.
            if wait_readable([self._link.fileno()], 0):
                self._loop.unwatch(self._link.fileno())
                self._link.close()
                self._link = None
                self._next_continue.clear()
            return
        try:
            text = self._link.recv(_REPORT_BYTES, socket.MSG_DONTWAIT).decode(errors="surrogateescape")
        except BlockingIOError:
            text = ""  # it was killed; a second process ends when there is nobody to tell it to go
        if self._first_status is None:
            _, self._first_status = os.waitpid(self._first, 0)
        if not text.isdecimal():
            self._give_up(text, self._first_status)
        self._command = int(text)
        try:
            self._link.send(GO)
        except BrokenPipeError:
            pass  # it has ended already, and has said why
        if self._console is not None:
            self._relay = self._console.start_relay(self._loop, self._hang_up)
        # The process may have ended by now.
        self._collect()

    def _give_up(self, text: str, status: int) -> NoReturn:
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number in _DEADLY:
                _die(number)
            text = f"killed by signal {number} on the way, perhaps as the app has used up its memory"
        raise LaunchError(text)

    def _on_signals(self) -> None:
        if self._link is not None and wait_readable([self._link.fileno()], 0):
            self._on_link()  # so that a signal finds the command that it is for
        for number in syscalls.read_signals(self._signals):
            if number == signal.SIGCHLD:
                self._collect()
            elif self._status is not None:
                self._interrupted = True
            elif number in self._ignored:
                continue
            elif self._command is None:
                if number in _DEADLY:
                    # The process may be held up for ever, by a frozen control group say; nobody has said "go".
                    os.kill(self._first, signal.SIGKILL)
                    _die(number)
            elif number in _FOR_THE_COMMAND:
                os.kill(self._command, number)
                self._wake_up(number)
            elif number == signal.SIGTSTP:
                # A stop by the keyboard would be ignored there: the parent is in another session.
                self._is_stop_wanted = True
                self._signal_all(signal.SIGSTOP)
            else:
                self._signal_all(number)
                self._wake_up(number)

    def _wake_up(self, number: int) -> None:
        """Have a command that somebody has stopped notice a signal."""
        if number in _ENDING:
            self._signal_all(signal.SIGCONT)

    def _continue(self) -> None:
        """Continue a process stopped by an app before the exec; LaunchError if the exec never comes."""
        assert self._command is not None and self._stopped_at is not None
        if time.monotonic() >= self._stopped_at + _STOPPED_SECONDS:
            os.kill(self._command, signal.SIGKILL)
            raise LaunchError("the process that enters is stopped by another of the pod, again and again")
        os.kill(self._command, signal.SIGCONT)

    def _collect(self) -> None:
        """
        Note the end of the command; stop with the command, if the caller wanted that or a person can see the stop.
        """
        if self._command is None:
            pid, status = os.waitpid(self._first, os.WNOHANG)
            if pid:
                self._first_status = status
                self._on_link()
            return
        while self._command is not None and self._status is None:
            pid, status = os.waitpid(self._command, os.WUNTRACED | os.WNOHANG)
            if pid == 0:
                return
            if not os.WIFSTOPPED(status):
                self._status = status
            elif self._is_stop_wanted:
                # A SIGCONT ends this stop, and is passed on like any other signal.
                self._is_stop_wanted = False
                os.kill(os.getpid(), signal.SIGSTOP)
            elif self._link is not None:
                now = time.monotonic()
                self._stopped_at = self._stopped_at or now
                self._next_continue.set(now + _CONTINUE_SECONDS)
            elif self._relay is not None:
                self._relay.pause()
                self._signal_all(signal.SIGCONT)
            # Else somebody else has stopped the command, as an app may, but not the waiting caller.

    def _signal_all(self, number: int) -> None:
        """Signal the command's process group, or the command if not yet in a group of its own."""
        assert self._command is not None
        try:
            os.killpg(self._command, number)
        except ProcessLookupError:
            os.kill(self._command, number)

    def _hang_up(self) -> None:
        if self._status is None:
            self._signal_all(signal.SIGHUP)

    def _drain(self, relay: Relay) -> None:
        """Deliver the command's output, to a slow reader too, unless a signal says that nobody wants the rest."""
        relay.finish()
        while not relay.is_drained() and not self._interrupted:
            self._turn()


def _die(number: int) -> NoReturn:
    """End by the same signal, as far as possible."""
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
    os.kill(os.getpid(), number)
    os._exit(128 + number)
