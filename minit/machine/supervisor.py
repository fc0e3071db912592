"""The supervisor of a pod that is all a machine does: the same rules, and the machine's own events."""

from __future__ import annotations

from minit.messages import receive_message
from minit.stdio import complain
from minit.supervisor.pod import BY_LAUNCHER
from minit.supervisor.supervisor import HALT_SIGNALS, Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from minit.launcher.devicehelper import DeviceHelper
    from minit.launcher.healthhelper import HealthHelper
    from minit.machine.machine import Machine

# What the helper says when somebody presses it.
POWER_BUTTON = "power button"

_APPS = "system.slice"


class MachineSupervisor(Supervisor):
    """Feeds the watchdog, survives the helper, and remembers what the machine was asked to do."""

    def __init__(self, machine: Machine, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._machine = machine
        for helper in machine.pod_helpers:
            self._sources.watch(helper.fileno(), lambda helper=helper: self._on_helper_end(helper))  # type: ignore[misc]

    def next_deadline(self) -> float | None:
        """Return the time of the next deadline or of the watchdog's next meal."""
        deadline, feeder = super().next_deadline(), self._machine.feeder
        if feeder is None:
            return deadline
        return feeder.next_meal if deadline is None else min(deadline, feeder.next_meal)

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

    def _handle_signals(self, numbers: Sequence[int]) -> None:
        self._machine.ask_to_end([number for number in numbers if number in HALT_SIGNALS])
        super()._handle_signals(numbers)

    def _on_helper_end(self, helper: DeviceHelper | HealthHelper) -> None:
        self._sources.unwatch(helper.fileno())
        helper.report_death()

    def _on_launcher(self) -> None:
        message, _ = receive_message(self._launcher)
        if message is None:
            # The apps go on: they have what it made, and a pod without its network can still do something.
            self._sources.unwatch(self._launcher.fileno())
            complain("minit: the machine's helper has ended: no more devices and leases from now on")
        elif message.get("event") == POWER_BUTTON:
            self._machine.ask_to_power_off()
            self.request_stop(BY_LAUNCHER, POWER_BUTTON)
