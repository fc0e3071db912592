"""The processes that apps consist of: asked to end, killed, and noticed to be gone."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable

from minit.linux.loop import Loop
from minit.linux.process import wait_channel
from minit.linux.syscalls import pidfd_send_signal
from minit.supervisor.apps.podapp import App

KILL_WAIT_SECONDS = 10.0
# So long an app has after its stop signal, however long its pre-stop hook took (Kubernetes).
_LEAST_STOP_SECONDS = 2.0
# How often a v1 group is looked at while it empties; a v2 group tells.
_RECHECK_SECONDS = 0.1
_EVENTS_BYTES = 256


class Processes:
    """
    The control groups of the pod's apps; `on_change` is called when one that was not empty may be so.

    Of one that cannot tell it is called again and again.
    """

    def __init__(self, loop: Loop, on_change: Callable[[], None]) -> None:
        self._recheck = loop.deadline(on_change)
        self._loop = loop
        self._on_change = on_change
        self._events: dict[str, int] = {}

    def terminate(self, app: App) -> None:
        """Ask all of an app to end, and give it its time for that, or the rest that its pre-stop hook has left."""
        arm_grace(app)
        if app.run.end is None and app.run.grace_ends_at is not None:
            app.run.deadline = max(app.run.grace_ends_at, time.monotonic() + _LEAST_STOP_SECONDS)
        # Children that a dead main process left behind may not know the app's own signal.
        app.group.signal(app.spec.life.stop_signal if app.run.end is None else signal.SIGTERM, signal.SIGCONT)

    def kill(self, app: App) -> None:
        """Kill all of an app, its handler too."""
        app.run.deadline = time.monotonic() + KILL_WAIT_SECONDS
        app.group.kill()
        # Between its fork and joining a group a process is not in it yet.
        if app.run.end is None and app.run.pidfd is not None:
            kill_process(app.run.pidfd)
        if app.run.handler is not None:
            kill_process(app.run.handler.pidfd)

    def clear(self, app: App) -> None:
        """Give all of an app but its main process, which waits, the time to be killed by `is_clear`."""
        app.run.deadline = time.monotonic() + KILL_WAIT_SECONDS

    def is_clear(self, app: App) -> bool:
        """Return whether nothing but the main process of an app is left; if not, kill that, and this is due again."""
        if app.group.processes() in ([], [app.run.pid]):
            return True
        app.group.kill_others(app.run.pid)
        self._recheck.set(time.monotonic() + _RECHECK_SECONDS)
        return False

    def is_empty(self, app: App) -> bool:
        """Return whether nothing of an app is left; if not, it will be a reason to look again."""
        if not app.group.processes():
            return True
        # The last one in it may be reaped by somebody else.
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
    """Give an app, or what runs for it, its time to end by itself."""
    app.run.deadline = time.monotonic() + app.run.grace_seconds


def describe_processes(app: App, but: int | None = None) -> str:
    """Return which processes of an app are left, but for one, and where in the kernel they wait, proc_pid_wchan(5)."""
    return ", ".join(f"{pid} ({wait_channel(pid)})" for pid in app.group.processes() if pid != but)


def kill_process(pidfd: int) -> None:
    """Send SIGKILL to one process; nothing if it has ended."""
    try:
        pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        pass
