"""The socket between PID 1 and the launcher: stops by the one, time that the end still takes by the other."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Protocol

from minit.base.jsontext import dump
from minit.linux.loop import Loop
from minit.linux.messages import Socket, receive_message
from minit.linux.terminal import CallerTerminal
from minit.supervisor.apps.podpolicy import BY_LAUNCHER, PodPolicy


class RequestStop(Protocol):
    """Begins the shutdown of a pod, for one of those who may ask for it."""

    def __call__(self, source: str, detail: str) -> None: ...


class LauncherLink:
    """
    PID 1's end of the socket, with the caller's terminal and the console, which end with the launcher.

    The launcher kills a PID 1 that hangs, so it is told until when an app may make a pod wait that is to end.
    """

    def __init__(
        self,
        launcher: Socket,
        pod: PodPolicy,
        loop: Loop,
        request_stop: RequestStop,
        terminal: CallerTerminal | None,
        console: int | None,
    ) -> None:
        self._socket = launcher
        self._pod = pod
        self._loop = loop
        self._request_stop = request_stop
        self._terminal = terminal
        self._console = console
        # Of the monotonic clock.
        self._announced: float | None = None
        self._watch()

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
        try:
            # A launcher that is stopped must not hold up the pod.
            self._socket.send(dump({"seconds": seconds}), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError:
            pass  # nor one that is gone

    def _watch(self) -> None:
        self._loop.watch(self._socket.fileno(), lambda _: self._hear())

    def _hear(self) -> None:
        message, _ = receive_message(self._socket)
        self._announced = None
        if message is None:
            self._on_end()
        elif message["stop"] == signal.SIGHUP:
            self._pod.stop_unasked("the launcher was hung up")
        else:
            self._request_stop(BY_LAUNCHER, f"signal {message['stop']}")

    def _on_end(self) -> None:
        """Act on the end of the launcher, or of the caller's terminal."""
        self._loop.unwatch(self._socket.fileno())
        if self._terminal is not None:
            # Killed, the launcher could not do it.
            self._terminal.restore()
        self._pod.stop_unasked("the launcher is gone")
        if self._console is not None:
            # Not before: an app that dies of the hang-up has been stopped, and has not failed.
            os.close(self._console)
            self._console = None
