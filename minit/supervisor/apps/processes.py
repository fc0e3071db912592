"""The processes of apps: asked to end, killed, and noticed to be gone."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable

from minit.linux.loop import Loop
from minit.linux.process import wait_channel
from minit.linux.syscalls import send_signals
from minit.supervisor.apps.podapp import App

KILL_WAIT_SECONDS = 10.0
# The least time of an app after the stop signal, however long the pre-stop hook took (Kubernetes).
_LEAST_STOP_SECONDS = 2.0
# The pause between looks at an emptying v1 group; a v2 group tells.
_RECHECK_SECONDS = 0.1
_EVENTS_BYTES = 256


class Processes:
    """
    The control groups of the pod's apps; `on_change` is called when a group may have become empty.

    For a group without events the call comes again and again.
    """

    def __init__(self, loop: Loop, on_change: Callable[[], None]) -> None:
        self._recheck = loop.deadline(on_change)
        self._loop = loop
        self._on_change = on_change
        self._events: dict[str, int] = {}

    def terminate(self, app: App) -> None:
        """Ask all of an app to end, within the grace period, or the rest left by the pre-stop hook."""
        arm_grace(app)
        if app.run.end is None and app.run.grace_ends_at is not None:
            app.run.deadline = max(app.run.grace_ends_at, time.monotonic() + _LEAST_STOP_SECONDS)
        ask_to_end(app)

    def kill(self, app: App) -> None:
        """Kill all of an app, the handler too."""
        app.run.deadline = time.monotonic() + KILL_WAIT_SECONDS
        app.group.kill()
        # Between the fork and the join a process is not in the group yet.
        if app.run.end is None and app.run.pidfd is not None:
            send_signals(app.run.pidfd, signal.SIGKILL)
        if app.run.handler is not None:
            send_signals(app.run.handler.pidfd, signal.SIGKILL)

    def clear(self, app: App) -> None:
        """Give all of an app but its main process, which waits, the time to be killed by `is_clear`."""
        app.run.deadline = time.monotonic() + KILL_WAIT_SECONDS

    def is_clear(self, app: App) -> bool:
        """
        Return whether nothing but the main process of an app is left; if not, kill the rest, and have the loop look
        again.
        """
        if app.group.processes() in ([], [app.run.pid]):
            return True
        app.group.kill_others(app.run.pid)
        self._recheck.set(time.monotonic() + _RECHECK_SECONDS)
        return False

    def is_empty(self, app: App) -> bool:
        """Return whether nothing of an app is left; if not, have the loop look again."""
        if not app.group.processes():
            return True
        # Somebody else may reap the last process of the group.
        if app.name not in self._events:
            events = app.group.open_events()
            if events is not None:
                self._events[app.name] = events
                self._loop.watch(events, lambda _: self._on_events(events), select.EPOLLPRI)
        if app.name not in self._events:
            if app.is_killed:
                app.group.kill()
            self._recheck.set(time.monotonic() + _RECHECK_SECONDS)
        return False

    def forget(self, app: App) -> None:
        """Wait for the end of an app no more."""
        events = self._events.pop(app.name, None)
        if events is not None:
            self._loop.unwatch(events)
            os.close(events)

    def _on_events(self, events: int) -> None:
        os.pread(events, _EVENTS_BYTES, 0)
        self._on_change()


def arm_grace(app: App) -> None:
    """Give an app, or a handler, time to end by itself."""
    app.run.deadline = time.monotonic() + app.run.grace_seconds


def ask_to_end(app: App) -> None:
    """Send all of an app the signal to stop, and the main process also where somebody on the host has moved it."""
    run = app.run
    # Children of a dead main process may not know the app's own signal.
    numbers = app.spec.life.stop_signal if run.end is None else signal.SIGTERM, signal.SIGCONT
    told = app.group.signal(*numbers)
    if run.end is None and run.pidfd is not None and run.pid not in told:
        send_signals(run.pidfd, *numbers)


def describe_processes(app: App, but: int | None = None) -> str:
    """
    Return which processes of an app are left, but for one, and the place in the kernel where each waits,
    proc_pid_wchan(5).
    """
    return ", ".join(f"{pid} ({wait_channel(pid)})" for pid in app.group.processes() if pid != but)
