"""The supervisor of a pod that is all a machine does: the same rules, and the machine's own events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minit.launcher.podhelper import PodHelper
from minit.machine.helperlink import HelperLink
from minit.machine.machine import Machine
from minit.messages import Socket
from minit.supervisor.control.operations import OP_APP_START, OP_APP_STOP
from minit.supervisor.supervisor import HALT_SIGNALS, Supervisor
from minit.terminal import CallerTerminal

_APPS = "system.slice"


class MachineSupervisor(Supervisor):
    """Feeds the watchdog, starts the helper again when it has died, and remembers what the machine was asked to do."""

    _link: HelperLink

    def __init__(self, machine: Machine, *arguments: Any, **options: Any) -> None:
        self._machine = machine
        super().__init__(*arguments, **options)
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

    def _link_to(self, launcher: Socket, terminal: CallerTerminal | None, console: int | None) -> HelperLink:
        return HelperLink(self._machine, launcher, self.pod, self._loop, self.request_stop, terminal, console)

    def _on_signals(self, numbers: Sequence[int]) -> None:
        self._machine.ask_to_end([number for number in numbers if number in HALT_SIGNALS])
        super()._on_signals(numbers)

    def _on_helper_end(self, helper: PodHelper) -> None:
        self._loop.unwatch(helper.fileno())
        helper.report_death()
