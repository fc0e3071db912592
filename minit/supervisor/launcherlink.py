"""The outside of a pod, as PID 1 sees it: on a host, the launcher at the other end of a socket."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Sequence

from minit.base.carried import Carried, Descriptor
from minit.base.errors import describe
from minit.base.jsontext import dump
from minit.linux.messages import Socket, receive_message
from minit.linux.ownprogram import offer_image
from minit.linux.stdio import expect_raw_terminal
from minit.linux.terminal import CallerTerminal
from minit.podfiles.controlmessages import AppRequest
from minit.podfiles.paths import pod_cgroup_name
from minit.supervisor.apps.context import Context
from minit.supervisor.apps.podpolicy import BY_LAUNCHER


class Outside(Carried):
    """The outside of a pod: whose requests and signals count, and who is told about the end of the pod."""

    def resume(self) -> None:
        """Go on in the place of another program."""

    def attend(self) -> Sequence[str]:
        """Do what the outside needs now and then, in the last loop; return the sources of new requests to stop."""
        return ()

    def let_go(self) -> None:
        """Give up what ends with the launcher."""

    def obstacle(self) -> str | None:
        """Return the reason why the pod cannot go on in another version of minit, None without one."""
        return None

    def upgrade(self, image: int) -> None:
        """Have the outside execute the program in a mount of another image, too."""

    def announce_end(self, *, again: bool = False) -> None:
        """Tell when the last deadline of a pod that is to end is, if that has changed, or `again`."""

    def tell_seconds(self, seconds: float) -> None:
        """Have nobody take PID 1 for hung for so long from now."""

    def admits(self, pid: int, uid: int) -> bool:
        """Return whether a process may ask on the control socket."""
        raise NotImplementedError

    def carries_out(self, request: AppRequest) -> bool:
        """Return whether the pod does what a request about a single app asks for."""
        raise NotImplementedError

    def heeds(self, number: int, code: int, pid: int) -> bool:
        """Return whether a signal with this si_code counts, from the process `pid`."""
        return True

    def note_halt(self, signals: Sequence[int]) -> None:
        """Take in signals that are about to end the pod."""


class LauncherLink(Outside):
    """
    PID 1's end of the socket, with the caller's terminal and the console, which end with the launcher.

    The launcher kills a PID 1 that hangs, so PID 1 tells until when an app may make a pod wait that is to end.
    """

    _terminal: CallerTerminal | None
    _console: Descriptor | None

    def __init__(
        self,
        context: Context,
        launcher: Socket,
        terminal: CallerTerminal | None = None,
        console: int | None = None,
    ) -> None:
        self._context = context
        self._pod = context.pod
        self.socket = launcher
        self._terminal = terminal
        self._console = console
        # Of the monotonic clock.
        self._announced: float | None = None
        context.loop.watch(launcher.fileno(), lambda _: self._hear())

    def resume(self) -> None:
        """Write lines for a raw terminal, if that is the caller's while the pod runs."""
        if self._terminal is not None and self._terminal.settings is not None:
            expect_raw_terminal()

    def announce_end(self, *, again: bool = False) -> None:
        """Tell when the last deadline of a pod that is to end is, if that has changed, or `again`."""
        if self._pod.exit_code is None:
            return
        due = max((app.run.deadline for app in self._pod.apps.values() if app.run.deadline is not None), default=0.0)
        if again or due != self._announced:
            self._announced = due
            self.tell_seconds(max(0.0, due - time.monotonic()))

    def tell_seconds(self, seconds: float) -> None:
        """Have the launcher wait so long from now."""
        tell_seconds(self.socket, seconds)

    def upgrade(self, image: int) -> None:
        """Have the launcher execute the program in a mount of another image, too."""
        try:
            offer_image(self.socket, image)
        except OSError as error:
            # Gone, or stopped for so long that there is no room.
            self._context.journal.info("launcher.not-upgraded", reason=describe(error))

    def admits(self, pid: int, uid: int) -> bool:
        """
        Return whether a process is root's, and PID 1 cannot see the process, which then has pid 0 here.

        Without a PID namespace the process has to be in no control group of the pod. With private users root of the
        host has no id here.
        """
        traits = self._context.traits
        if not traits.host_pids:
            return pid == 0 and (uid == 0 or traits.has_private_users)
        try:
            with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
                return uid == 0 and pod_cgroup_name(traits.uuid) not in file.read().replace("\n", "/").split("/")
        except OSError:
            return False

    def carries_out(self, request: AppRequest) -> bool:
        """Return whether the pod is mutable."""
        return self._context.traits.mutable

    def _hear(self) -> None:
        message, _ = receive_message(self.socket)
        self._announced = None
        if message is None:
            self._on_end()
        elif message["stop"] == signal.SIGHUP:
            self._pod.stop_unasked("the launcher was hung up")
        else:
            self._pod.request_stop(BY_LAUNCHER, f"signal {message['stop']}")
            self.announce_end(again=True)

    def _on_end(self) -> None:
        """Act on the end of the launcher, or of the caller's terminal."""
        self._context.loop.unwatch(self.socket.fileno())
        self._pod.stop_unasked("the launcher is gone")
        # Not before: an app that dies of the hang-up has been stopped, and has not failed.
        self.let_go()

    def let_go(self) -> None:
        """Give up the caller's terminal and the console."""
        if self._terminal is not None:
            # Killed, the launcher could not do it.
            self._terminal.restore()
        self.close_fields("_console")


def tell_seconds(launcher: Socket, seconds: float) -> None:
    """Have the launcher wait so long from now."""
    try:
        # A launcher that is stopped must not hold up the pod.
        launcher.send(dump({"seconds": seconds}), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
    except OSError:
        pass  # nor one that is gone
