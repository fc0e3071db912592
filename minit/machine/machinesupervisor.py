"""The supervisor of a pod that is all a machine does: the same rules, and the machine's own events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from minit.errors import describe
from minit.launcher.devices.devicehelper import DeviceHelper
from minit.launcher.health.healthhelper import HealthHelper
from minit.machine.helper import Helper
from minit.machine.machine import Machine
from minit.machine.powerbutton import POWER_BUTTON
from minit.messages import receive_message
from minit.plan.restart import ALWAYS, RestartPolicy
from minit.stdio import complain_at_once
from minit.supervisor.apps.backoff import Restarts
from minit.supervisor.apps.podpolicy import BY_LAUNCHER
from minit.supervisor.control.operations import OP_APP_START, OP_APP_STOP
from minit.supervisor.supervisor import HALT_SIGNALS, Supervisor

_APPS = "system.slice"
_HELPER_RESTARTS = RestartPolicy(condition=ALWAYS, delay_seconds=1.0, reset_seconds=60.0)


class MachineSupervisor(Supervisor):
    """Feeds the watchdog, starts the helper again when it has died, and remembers what the machine was asked to do."""

    def __init__(self, machine: Machine, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._machine = machine
        self._helper_restarts = Restarts(_HELPER_RESTARTS)
        self._helper_begun = time.monotonic()
        self._helper_due: float | None = None
        for helper in machine.pod_helpers:
            self._loop.watch(helper.fileno(), lambda _, helper=helper: self._on_helper_end(helper))  # type: ignore[misc]

    def next_deadline(self) -> float | None:
        """Return the time of the next deadline, be it the watchdog's next meal or the helper's next start."""
        feeder = self._machine.feeder
        deadlines = super().next_deadline(), self._helper_due, None if feeder is None else feeder.next_meal
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def turn(self, timeout_seconds: float = 0.0) -> None:
        """Handle what there is, which only a supervisor that works does."""
        super().turn(timeout_seconds)
        if self._helper_due is not None and self._helper_due <= time.monotonic():
            self._start_helper()
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

    def _handle_signals(self, numbers: Sequence[int]) -> None:
        self._machine.ask_to_end([number for number in numbers if number in HALT_SIGNALS])
        super()._handle_signals(numbers)

    def _on_helper_end(self, helper: DeviceHelper | HealthHelper) -> None:
        self._loop.unwatch(helper.fileno())
        helper.report_death()

    def _on_launcher(self) -> None:
        message, _ = receive_message(self._launcher)
        if message is None:
            # The apps go on: they have what it made, and a pod without its network can still do something.
            self._loop.unwatch(self._launcher.fileno())
            self._launcher.close()
            self._machine.helper = None
            self._start_helper_later("has ended")
        elif "failed" in message:
            complain_at_once(f"minit: {message['failed']}")
        elif message.get("event") == POWER_BUTTON:
            self._machine.ask_to_power_off()
            self.request_stop(BY_LAUNCHER, POWER_BUTTON)

    def _tell_launcher(self, seconds: float) -> None:
        """Do nothing: the helper, which is in its place, kills nobody; the watchdog does."""

    def _start_helper_later(self, reason: str) -> None:
        now = time.monotonic()
        self._helper_restarts.end(failed=True, ran_seconds=now - self._helper_begun)
        delay_seconds = self._helper_restarts.delay_seconds
        assert delay_seconds is not None
        self._helper_due = now + delay_seconds
        complain_at_once(f"minit: the machine's helper {reason}: another one starts in {delay_seconds:g} s")

    def _start_helper(self) -> None:
        self._helper_due = None
        if self.exit_code is not None:
            return  # nobody needs it any more
        self._helper_restarts.begin()
        self._helper_begun = time.monotonic()
        try:
            machine = self._machine
            machine.helper = Helper(machine.config, machine.image, machine.namespace)
        except OSError as error:
            self._start_helper_later(f"cannot be started: {describe(error)}")
            return
        self._launcher = machine.helper.link
        self._loop.watch(self._launcher.fileno(), lambda _: self._on_launcher())
