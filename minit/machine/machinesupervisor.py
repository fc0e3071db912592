"""
The supervisor of a machine's only pod: the rules of any pod, the machine's own events, and the socket to its helper.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from minit.base.jsontext import dump
from minit.base.value import Value
from minit.launcher.podhelper import PodHelper
from minit.linux.messages import Socket
from minit.linux.stdio import complain_at_once
from minit.linux.terminal import CallerTerminal
from minit.machine.disk.trialduty import KEEP, TRIAL_OVER
from minit.machine.machine import Machine
from minit.machine.powerbutton import POWER_BUTTON
from minit.manifest.machineconfig import POWEROFF, Trial
from minit.supervisor.apps.lifecycle import State
from minit.supervisor.apps.podapp import App
from minit.supervisor.apps.podpolicy import BY_CONTROL, BY_LAUNCHER
from minit.supervisor.control.operations import OP_APP_START, OP_APP_STOP
from minit.supervisor.launcherlink import LauncherLink
from minit.supervisor.supervisor import HALT_SIGNALS, Supervisor

_APPS = "system.slice"
_LOOK_SECONDS = 1.0
"""How often the apps are to be looked at. What happens in between shows in the number of their starts."""


class MachineSupervisor(Supervisor):
    """
    Feeds the watchdog, has the helper be there, remembers what the machine was asked to do, and has a version kept that
    has proved itself.
    """

    _link: HelperLink

    def __init__(self, machine: Machine, *arguments: Any, **options: Any) -> None:
        self._machine = machine
        super().__init__(*arguments, **options)
        self._trial = TrialWatch(machine.config.trial, time.monotonic()) if machine.on_trial else None
        if self._trial is not None:
            self._trial_due = self._loop.deadline(self._look_at_apps)
            self._look_at_apps()
        if machine.requests is not None:
            self._loop.watch(machine.requests.fd, lambda _: self._take_request())
        for helper in machine.pod_helpers:
            self._loop.watch(helper.fileno(), lambda _, helper=helper: self._on_helper_end(helper))  # type: ignore[misc]

    def next_deadline(self) -> float | None:
        """Return the time of the next deadline, which may be the watchdog's next meal."""
        feeder = self._machine.feeder
        deadlines = super().next_deadline(), None if feeder is None else feeder.next_meal
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def turn(self, timeout_seconds: float = 0.0) -> None:
        """Handle what there is, which only a supervisor that works does."""
        super().turn(timeout_seconds)
        self._machine.feed()

    def admits(self, pid: int, uid: int) -> bool:
        """Return whether a process may ask: one of root's that is of no app."""
        try:
            with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
                groups = file.read().split("/")
        except OSError:
            return False
        return uid == 0 and _APPS not in groups

    def carries_out(self, op: str) -> bool:
        """Return whether apps may be asked for so: those there are can be started and stopped."""
        return op in (OP_APP_START, OP_APP_STOP) or super().carries_out(op)

    def heeds(self, number: int, code: int, pid: int) -> bool:
        """Return whether a signal counts: of processes of the machine none does that would end it."""
        return self._machine.senders.heeds(number, code, pid)

    def _link_to(self, launcher: Socket, terminal: CallerTerminal | None, console: int | None) -> HelperLink:
        return HelperLink(self._machine, launcher, self.pod, self._loop, self.request_stop, terminal, console)

    def _on_signals(self, numbers: Sequence[int]) -> None:
        self._machine.ask_to_end([number for number in numbers if number in HALT_SIGNALS])
        super()._on_signals(numbers)

    def _take_request(self) -> None:
        assert self._machine.requests is not None
        asked = self._machine.requests.take()
        if asked is not None:
            self._machine.ask_for(asked)
            self.request_stop(BY_CONTROL, asked)

    def _look_at_apps(self) -> None:
        """Have this version kept if its trial is passed, until somebody has done so, or end it."""
        assert self._trial is not None
        if not self._machine.on_trial or self.pod.exit_code is not None:
            return
        now = time.monotonic()
        self._trial.look(
            {name: AppHealth(starts=app.starts, obstacle=_obstacle(app)) for name, app in self.apps.items()}, now
        )
        if self._trial.failed is not None:
            complain_at_once(f"minit: {self._trial.failed}: the other version is booted")
            self._machine.fail_trial(self._trial.failed)
            self.request_stop(BY_LAUNCHER, "trial of this version")
            return
        if self._trial.passed:
            self._link.keep_version()
        self._trial_due.set(now + _LOOK_SECONDS)

    def _on_helper_end(self, helper: PodHelper) -> None:
        self._loop.unwatch(helper.fileno())
        helper.report_death()


def _obstacle(app: App) -> str | None:
    """Return what keeps an app from being healthy: one is that runs, with good checks, or that has done its work."""
    if app.has_ended:
        assert app.run.end is not None
        return None if app.run.end.number == 0 else f"has ended with {app.run.end.number}"
    if app.state != State.RUNNING:
        return "does not run"
    if not app.is_ready:
        return "is not ready"
    failed = next(
        (check.kind for check in app.spec.life.health if not app.run.health.get(check.kind, {}).get("healthy")), None
    )
    return None if failed is None else f"has no good {failed} check"


class HelperLink(LauncherLink):
    """The socket to the helper, and what is due with that while the pod runs."""

    def __init__(self, machine: Machine, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert machine.helper is not None
        self._machine = machine
        self._helper = machine.helper
        self._is_asked_to_keep = False
        self._due = self._loop.deadline(self._turn)
        self._follow()

    def tell_seconds(self, seconds: float) -> None:
        """Do nothing: the helper kills nobody; the watchdog does."""

    def keep_version(self) -> None:
        """Have the helper tell the firmware to boot this version from now on; its answer ends the trial."""
        if self._is_asked_to_keep:
            return
        try:
            self._socket.send(dump({KEEP: True}), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            self._is_asked_to_keep = True
        except OSError:
            pass  # another one is started soon

    def _hear(self) -> None:
        event = self._helper.hear()
        if event == TRIAL_OVER:
            self._machine.on_trial = False
        elif event == POWER_BUTTON:
            self._machine.ask_for(POWEROFF)
            self._request_stop(BY_LAUNCHER, POWER_BUTTON)
        self._follow()

    def _turn(self) -> None:
        self._helper.turn(self._machine.namespace)
        self._follow()

    def _follow(self) -> None:
        """Watch the helper that there is now, and be called when something is due, unless nobody needs it any more."""
        if not self._helper.is_there:
            self._loop.unwatch(self._socket.fileno())
        elif self._helper.link is not self._socket:
            self._socket = self._helper.link
            self._is_asked_to_keep = False
            self._watch()
        if self._pod.exit_code is None:
            self._due.set(self._helper.deadline)


class AppHealth(Value):
    """How often an app was started, and what keeps it from being healthy, None if it is."""

    starts: int
    obstacle: str | None


class TrialWatch:
    """
    The time for which all apps have been healthy, from `now` on by the monotonic clock.

    The trial is `passed` when that is long enough, and has `failed`, which is then the reason, when it takes too long.
    """

    def __init__(self, trial: Trial, now: float) -> None:
        self._trial = trial
        self._until = now + trial.timeout_seconds
        self._healthy_since: float | None = None
        self._starts: Mapping[str, int] = {}
        self.passed = False
        self.failed: str | None = None

    def look(self, apps: Mapping[str, AppHealth], now: float) -> None:
        """Take in how the apps, by name, are now."""
        if self.passed or self.failed is not None:
            return
        starts = {name: app.starts for name, app in apps.items()}
        ill = next((f'app "{name}" {app.obstacle}' for name, app in apps.items() if app.obstacle is not None), None)
        if ill is not None or starts != self._starts or self._healthy_since is None:
            self._healthy_since = now if ill is None else None
        self._starts = starts
        if self._healthy_since is not None and now - self._healthy_since >= self._trial.healthy_seconds:
            self.passed = True
        elif now >= self._until:
            why = ill or "apps were healthy only for a while"
            self.failed = f"not healthy within {self._trial.timeout_seconds} s: {why}"
