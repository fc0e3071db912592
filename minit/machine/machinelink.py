"""
The outside of a machine's only pod: who may end the machine, the socket to the helper, and the trial of a version.

A module beside `init`, which is about the time before the pod runs and after its end. PID 1 has all of the machine in
the state with which another program goes on.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence

from minit.base.carried import Carried, CarriedCodec
from minit.base.jsontext import dump
from minit.base.value import Value
from minit.launcher.podhelper import RunningHelper
from minit.linux.ownprogram import Program
from minit.linux.stdio import complain_at_once
from minit.machine.hardware import POWER_BUTTON
from minit.machine.machine import Machine
from minit.machine.slots import KEEP
from minit.manifest.machineconfig import Trial
from minit.podfiles.controlmessages import AppRequest, StartApp, StopApp
from minit.supervisor.apps.context import Context
from minit.supervisor.apps.lifecycle import State
from minit.supervisor.apps.podapp import App
from minit.supervisor.apps.podpolicy import BY_CONTROL, BY_LAUNCHER
from minit.supervisor.control.answers import Adding, Removing, Starting, Stopping
from minit.supervisor.execution import FirstProcess
from minit.supervisor.launcherlink import Outside
from minit.supervisor.supervisor import Supervisor

_APPS = "system.slice"
_LOOK_SECONDS = 1.0
"""How often PID 1 looks at the apps of a version on trial. The number of an app's starts tells of ends in between."""


class MachineLink(Outside):
    """
    The machine outside of its pod, and what PID 1 does for the machine while the pod runs.

    PID 1 feeds the watchdog, has the helper be there, remembers how the machine was asked to end, and has a version
    kept that has proved itself.
    """

    machine: Machine
    _is_asked_to_keep: bool
    _trial: TrialWatch | None

    def __init__(self, machine: Machine, context: Context) -> None:
        assert machine.helper is not None
        self.machine = machine
        self._helper = machine.helper
        self._pod = context.pod
        self._mutable = context.traits.mutable
        self._loop = context.loop
        self._link = machine.helper.link
        self._is_asked_to_keep = False
        self._loop.watch(self._link.fileno(), lambda _: self._hear())
        self._due = self._loop.deadline(self._turn_helper)
        self._follow_helper()
        self._meal = self._loop.deadline(self._feed)
        self._feed()
        self._trial = TrialWatch(machine.config.trial, time.monotonic()) if machine.on_trial else None
        self._trial_due = self._loop.deadline(self._look_at_apps)
        if self._trial is not None:
            self._trial_due.set(time.monotonic())
        if machine.requests is not None:
            self._loop.watch(machine.requests.fd, lambda _: self._take_request())
        for helper in machine.pod_helpers:
            self._loop.watch(helper.fileno(), lambda _, helper=helper: self._on_helper_end(helper))  # type: ignore[misc]

    def resume(self) -> None:
        """Go on with what an error has interrupted."""
        self._act_on_event()
        # A wish is noted before the pod is asked to stop.
        if self.machine.asked is not None and self._pod.exit_code is None:
            self._pod.request_stop(BY_CONTROL, self.machine.asked)

    def attend(self) -> Sequence[str]:
        """Feed the watchdog, and take wishes for the end; return the sources of new ones."""
        machine, sources = self.machine, []
        machine.feed()
        asked = None if machine.requests is None else machine.requests.take()
        if asked is not None:
            machine.ask_for(asked)
            sources.append(BY_CONTROL)
        if machine.hear_helper():
            sources.append(BY_LAUNCHER)
        return sources

    def obstacle(self) -> str | None:
        """Return that another version comes by the other slot of the disk."""
        return "a machine is updated by its slots"

    def admits(self, pid: int, uid: int) -> bool:
        """Return whether a process is root's and belongs to no app."""
        try:
            with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
                groups = file.read().split("/")
        except OSError:
            return False
        return uid == 0 and _APPS not in groups

    def carries_out(self, request: AppRequest) -> bool:
        """Return whether the request is for a start or a stop of an app, or the pod is mutable."""
        return isinstance(request, StartApp | StopApp) or self._mutable

    def heeds(self, number: int, code: int, pid: int) -> bool:
        """Return whether a signal counts; no process of the machine can end the machine by a signal."""
        return self.machine.senders.heeds(number, code, pid)

    def note_halt(self, signals: Sequence[int]) -> None:
        """Take in how the machine is to end."""
        self.machine.ask_to_end(signals)

    def _feed(self) -> None:
        """Feed the watchdog in every turn in which a meal is due, which only a PID 1 that works does."""
        self.machine.feed()
        if self.machine.feeder is not None:
            self._meal.set(self.machine.feeder.next_meal)

    def _take_request(self) -> None:
        assert self.machine.requests is not None
        asked = self.machine.requests.take()
        if asked is not None:
            self.machine.ask_for(asked)
            self._pod.request_stop(BY_CONTROL, asked)

    def _look_at_apps(self) -> None:
        """Have this version kept if its trial is passed, until somebody has done so, or end it."""
        assert self._trial is not None
        if not self.machine.on_trial or self._pod.exit_code is not None:
            return
        now = time.monotonic()
        apps = self._pod.apps.items()
        self._trial.look({name: AppHealth(starts=app.starts, obstacle=_obstacle(app)) for name, app in apps}, now)
        if self._trial.failed is not None:
            complain_at_once(f"minit: {self._trial.failed}: the other version is booted")
            self.machine.fail_trial(self._trial.failed)
            self._pod.request_stop(BY_LAUNCHER, "trial of this version")
            return
        if self._trial.passed:
            self._keep_version()
        self._trial_due.set(now + _LOOK_SECONDS)

    def _on_helper_end(self, helper: RunningHelper) -> None:
        self._loop.unwatch(helper.fileno())
        helper.report_death()
        self.machine.pod_helpers.remove(helper)

    def _keep_version(self) -> None:
        """Have the helper tell the firmware to boot this version from now on; the answer ends the trial."""
        if self._is_asked_to_keep:
            return
        try:
            self._link.send(dump({KEEP: True}), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            self._is_asked_to_keep = True
        except OSError:
            pass  # another one is started soon

    def _hear(self) -> None:
        self._helper.hear()
        self._act_on_event()
        self._follow_helper()

    def _act_on_event(self) -> None:
        is_pressed = self.machine.note_event(self._helper.event)
        # Before the work for apps: an error there must not have the event count twice.
        self._helper.event = None
        if is_pressed:
            self._pod.request_stop(BY_LAUNCHER, POWER_BUTTON)

    def _turn_helper(self) -> None:
        self._helper.turn(self.machine.namespace)
        self._follow_helper()

    def _follow_helper(self) -> None:
        """Watch the present helper, and be called when something is due, unless the pod is ending."""
        if not self._helper.is_there:
            self._loop.unwatch(self._link.fileno())
        elif self._helper.link is not self._link:
            self._link = self._helper.link
            self._is_asked_to_keep = False
            self._loop.watch(self._link.fileno(), lambda _: self._hear())
        if self._pod.exit_code is None:
            self._due.set(self._helper.deadline)


def _obstacle(app: App) -> str | None:
    """Return what keeps an app from being healthy: one is that runs, with good checks, or that has done its work."""
    if app.has_ended:
        assert app.run.end is not None
        return None if app.run.end.number == 0 else f"has ended with {app.run.end.number}"
    if app.state != State.RUNNING:
        return "does not run"
    if not app.is_ready:
        return "is not ready"
    failed = next((check.kind for check in app.spec.life.health if not app.run.is_healthy(check.kind)), None)
    return None if failed is None else f"has no good {failed} check"


class AppHealth(Value):
    """How often an app was started, and what keeps it from being healthy, None if it is."""

    starts: int
    obstacle: str | None


class TrialWatch(Carried):
    """
    The time for which all apps have been healthy, from `now` on by the monotonic clock.

    The trial is `passed` when that is long enough, and has `failed`, which is then the reason, when it takes too long.
    """

    passed: bool
    failed: str | None
    _trial: Trial
    _until: float
    _healthy_since: float | None
    _starts: dict[str, int]

    def __init__(self, trial: Trial, now: float) -> None:
        self._trial = trial
        self._until = now + trial.timeout_seconds
        self._healthy_since = None
        self._starts = {}
        self.passed = False
        self.failed = None

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


class MachineProcess(FirstProcess):
    """Everything that the next program of a machine's PID 1 goes on with; there is no launcher."""

    link: MachineLink

    resume = "from minit.machine.init import resume; resume()"

    def __init__(self, supervisor: Supervisor, lock: int, program: Program | None) -> None:
        super().__init__(supervisor, None, lock, program)

    def encode(self) -> tuple[bytes, list[int]]:
        """Return the state, and all descriptors of the state."""
        return CODEC.encode(self)

    def make_outside(self, context: Context) -> Outside:
        """Return the outside of the pod in this program."""
        return MachineLink(self.link.machine, context)


# When the module is imported, as that of other pods.
CODEC = CarriedCodec(MachineProcess, Adding, Starting, Stopping, Removing)
