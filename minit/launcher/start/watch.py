"""
The launcher once there is a PID 1: signals for PID 1, the caller's terminal, and the end.

A module beside `launch`, which is about the time before there is a PID 1.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable

from minit.base.carried import Carried, Descriptor
from minit.base.errors import EXIT_FAILURE
from minit.launcher.relay import Relay
from minit.launcher.start.killed import KillWitness, tell_killed
from minit.linux import syscalls
from minit.linux.hostnotify import READY, STOPPING, Host
from minit.linux.loop import Loop, wait_readable
from minit.linux.messages import Socket, receive_message, send_message
from minit.linux.stdio import complain
from minit.linux.terminal import CallerTerminal
from minit.podfiles import paths
from minit.podfiles.podfile import record_failure, write_pod_file
from minit.supervisor.supervisor import HALT_SIGNALS

FORWARDED = (*HALT_SIGNALS, signal.SIGHUP)
# How long PID 1 has to be gone after saying its code. The kernel keeps PID 1 until the last process of the namespace
# can be reaped; a tracer on the host or a frozen control group may put that off for ever.
_PATIENCE_SECONDS = 2.0
# How long PID 1 has to begin to stop, and how late PID 1 may be, on a busy machine, with an announced end.
_SLACK_SECONDS = 20.0
_LATE = f"PID 1 does not stop the pod: it is killed, {_SLACK_SECONDS:g} s after it was due"
_PAUSE_SECONDS = 0.01


def heard_signals() -> list[int]:
    """
    Return the signals of FORWARDED for the pod: without a SIGHUP ignored by the caller, nohup(1) say.

    Blocked, such a SIGHUP would come all the same. A shell without job control has processes ignore others as well.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in FORWARDED if not (ignored and number == signal.SIGHUP)]


class Watch(Carried):
    """
    The launcher's loop, over the pidfd of PID 1 and the socket to PID 1.

    `terminal` is given for a pod with a console, `host` is told about the whole pod, `witness` knows how PID 1 was
    killed, if killed. The FORWARDED signals are blocked. `cause` says which app failed, once PID 1 has ended, if the
    pod ended with a failed app.
    """

    cause: str | None
    _pid: int
    _pidfd: Descriptor
    _link: Socket
    _terminal: CallerTerminal | None
    _host: Host
    _witness: KillWitness
    _relay: Relay | None
    _interrupted: bool
    _code: int | None
    _is_killed: bool
    _has_ended: bool
    _patience_until: float | None
    _due_at: float
    _is_due: bool

    def __init__(
        self, pid: int, pidfd: int, link: Socket, terminal: CallerTerminal | None, host: Host, witness: KillWitness
    ) -> None:
        self.cause = None
        self._pid = pid
        self._pidfd = pidfd
        self._link = link
        self._terminal = terminal
        self._host = host
        self._witness = witness
        self._relay = None
        self._interrupted = False
        self._code = None
        self._is_killed = False
        self._has_ended = False
        self._patience_until = None
        # PID 1 is killed a little after, unless PID 1 ends before or asks for more time.
        self._due_at = 0.0
        self._is_due = False
        self.attach()

    def attach(self) -> None:
        """Make the loop, also in another program than the one that began."""
        self._image: int | None = None
        self._signals = syscalls.signalfd(heard_signals())
        self._loop = Loop()
        self._loop.watch(self._link.fileno(), lambda _: self._on_link())
        self._loop.watch(self._pidfd, lambda _: self._on_end())
        self._loop.watch(self._signals, lambda _: self._on_signals())
        self._patience = self._loop.deadline(lambda: self._loop.unwatch(self._pidfd))
        if self._patience_until is not None:
            self._patience.set(self._patience_until)
        self._due = self._loop.deadline(self._on_overdue)
        if self._is_due:
            self._due.set(self._due_at)
        if self._relay is not None:
            self._relay.attach(self._loop, hung_up=self._leave_console, escaped=self._stop_at_once)

    def leave(self) -> None:
        """Note what the loop knows, for another program."""
        self._patience_until = self._patience.moment
        self._is_due = self._due.moment is not None
        if self._relay is not None:
            self._relay.leave()

    def add_helper(self, fd: int, heard: Callable[[], None]) -> None:
        """Have a function called when there is something to read from a helper of the pod, or its end."""
        self._loop.watch(fd, lambda _: heard())

    def remove_helper(self, fd: int) -> None:
        """Listen to a helper no more."""
        self._loop.unwatch(fd)

    def run(self, upgrade: Callable[[int], None], ended: Callable[[], None]) -> int:
        """
        Return the pod's exit code when PID 1 has ended and all output of the console is delivered.

        `upgrade` is called between two turns of the loop, with a mount of another image that PID 1 has sent. `ended` is
        called at the end of PID 1.
        """
        try:
            while self._pidfd in self._loop:
                self._turn()
                if self._image is not None:
                    image, self._image = self._image, None
                    upgrade(image)
            ended()
            if self._relay is not None:
                self._drain(self._relay)
        finally:
            if self._relay is not None:
                self._relay.close()
        return self._exit_code()

    def _turn(self) -> None:
        if self._relay is not None:
            self._relay.rewatch()
        self._loop.turn()

    def _on_overdue(self) -> None:
        now = time.monotonic()
        if now < self._due_at + _SLACK_SECONDS:
            self._kill()
        else:
            # A launcher frozen together with PID 1 has no reason to complain.
            self._set_due(now + _SLACK_SECONDS)

    def _set_due(self, moment: float) -> None:
        self._due_at = moment
        self._due.set(moment)

    def _kill(self) -> None:
        """End a PID 1 that does not end by itself; the ends of the apps stay unknown."""
        complain(f"stage1: {_LATE}")
        record_failure(_LATE)
        self._is_killed = True
        syscalls.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._expect_end(None)

    def _drain(self, relay: Relay) -> None:
        """
        Deliver the rest of the apps' output, to a slow reader too, unless a signal says that nobody wants the rest.
        """
        relay.finish()
        while not relay.is_drained() and not self._interrupted:
            self._turn()

    def _on_signals(self) -> None:
        if self._pidfd in self._loop and wait_readable([self._pidfd], 0):
            self._on_end()  # they are not for PID 1 then
        for number in syscalls.read_signals(self._signals):
            self._interrupted = self._pidfd not in self._loop
            self._forward(number)

    def _forward(self, number: int) -> None:
        # Not as a signal: PID 1 tells two requests to stop from one request on two ways.
        try:
            send_message(self._link, {"stop": number})
        except (BrokenPipeError, ConnectionResetError):
            # PID 1 is ending, or the console has been left, a hang-up already.
            if number != signal.SIGHUP:
                syscalls.pidfd_send_signal(self._pidfd, number)
        self._expect_answer()

    def _expect_answer(self) -> None:
        """Give PID 1 time to say how long the stop takes, an answer to each request."""
        soon = time.monotonic() + _SLACK_SECONDS
        if self._pidfd in self._loop and (self._due.moment is None or soon < self._due.moment):
            self._set_due(soon)

    def _on_link(self) -> None:
        message, descriptors = receive_message(self._link)
        if message is None:
            self._loop.unwatch(self._link.fileno())
            self._expect_end(self._code)
            return
        if "code" in message:
            assert isinstance(message["code"], int)
            if "failed" in message:
                record_failure(str(message["failed"]))
            if "cause" in message:
                self.cause = str(message["cause"])
            self._expect_end(message["code"])
            return
        if "seconds" in message:
            assert isinstance(message["seconds"], (int, float))
            self._set_due(time.monotonic() + message["seconds"] + _SLACK_SECONDS)
            return
        if "ready" in message or "stopping" in message:
            self._host.tell(READY if "ready" in message else STOPPING)
            return
        if "upgrade" in message:
            [self._image] = descriptors
            return
        # PID 1 has its namespaces, root and control socket: the pod can be entered from now on.
        write_pod_file(paths.POD_PID, b"%d\n" % self._pid)
        if descriptors and self._terminal is not None:
            [master] = descriptors
            self._relay = Relay(
                self._loop, master, self._terminal, hung_up=self._leave_console, escaped=self._stop_at_once
            )

    def _expect_end(self, code: int | None) -> None:
        """Wait for the end of PID 1 a little while only; None if PID 1 could not say a code."""
        self._code = code
        self._due.clear()
        if self._pidfd in self._loop:
            self._patience.set(time.monotonic() + _PATIENCE_SECONDS)

    def _leave_console(self) -> None:
        """Have PID 1 stop the pod and let go of the console, as without a launcher."""
        self._link.shutdown(socket.SHUT_WR)
        self._expect_answer()

    def _stop_at_once(self) -> None:
        for _ in range(2):
            self._forward(signal.SIGTERM)

    def _on_end(self) -> None:
        # The last words of PID 1 are heard before.
        while self._link.fileno() in self._loop and wait_readable([self._link.fileno()], 0):
            self._on_link()
        self._loop.unwatch(self._pidfd)
        self._patience.clear()
        self._due.clear()
        self._has_ended = True

    def _collect(self) -> os.waitid_result | None:
        """Return how PID 1 ended, None if only a tracer could tell, or if PID 1 has not ended."""
        # A tracer is told first; an honest tracer takes but a moment to pass the end on.
        until = time.monotonic() + (_PATIENCE_SECONDS if self._has_ended else 0)
        while (result := os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)) is None:
            if time.monotonic() >= until:
                return None
            time.sleep(_PAUSE_SECONDS)
        return result

    def _exit_code(self) -> int:
        result = self._collect()
        if result is None:
            complain("stage1: the pod has ended, but for processes that a tracer or a freezer keeps from ending")
            return EXIT_FAILURE if self._code is None else self._code
        if result.si_code == os.CLD_EXITED:
            return result.si_status
        if self._is_killed:
            tell_killed("late", _LATE)
        if result.si_status == signal.SIGKILL and not self._is_killed:
            complain(f"stage1: {self._witness.tell()}: how apps that ran have ended is not known")
            # Ended by force: a caller waiting for rkt sees the same.
            os.kill(os.getpid(), signal.SIGKILL)
        if not self._is_killed:
            line = f"the supervisor died of signal {result.si_status}"
            complain(f"stage1: {line}")
            tell_killed("failed", line)
        return EXIT_FAILURE
