"""When the checks of an app are due, and what their results come to. Pure: it is told the time."""

from __future__ import annotations

from collections.abc import Sequence

from minit.plan.life.health import LIVENESS, READINESS, STARTUP, HealthCheck

NEVER = float("inf")


class CheckState:
    """
    One check of a run of an app; `healthy` is None until enough results say anything.

    It is not due while it is being made.
    """

    def __init__(self, check: HealthCheck, due_at: float) -> None:
        self.check = check
        self.healthy: bool | None = None
        self.due_at = due_at
        self._good = 0
        self._bad = 0

    def begin(self) -> None:
        """Note that the check is being made."""
        self.due_at = NEVER

    def note(self, good: bool, now: float) -> bool:
        """
        Count a result at `now` and return whether it decides: the check is good now and was not, or it has failed.

        A check that goes on failing fails again after as many results.
        """
        self.due_at = now + self.check.interval_seconds
        if good:
            self._good, self._bad = self._good + 1, 0
            if self.healthy is not True and self._good >= self.check.successes:
                self.healthy = True
                return True
            return False
        self._good, self._bad = 0, self._bad + 1
        if self._bad >= self.check.failures:
            self._bad = 0
            self.healthy = False
            return True
        return False


class AppHealth:
    """
    The checks of one run of an app, from when it was first seen to run.

    Until the check of its start is good the others wait. From then on that check is done with.
    """

    def __init__(self, checks: Sequence[HealthCheck], now: float) -> None:
        self.states = {check.kind: CheckState(check, now + check.delay_seconds) for check in checks}
        self._began = now

    def due(self, now: float) -> list[CheckState]:
        """Return the checks that are to be made by `now`."""
        return [state for state in self._active() if state.due_at <= now]

    def next_due(self) -> float:
        """Return when the next check is to be made; never, if there is none any more."""
        return min((state.due_at for state in self._active()), default=NEVER)

    def note(self, state: CheckState, good: bool, now: float) -> bool:
        """Count a result of one of the checks, and return whether it decides."""
        decided = state.note(good, now)
        if decided and good and state.check.kind == STARTUP:
            for kind in (LIVENESS, READINESS):
                if kind in self.states:
                    other = self.states[kind]
                    # The delay counts from the start of the app, as in Kubernetes.
                    other.due_at = max(now, self._began + other.check.delay_seconds)
        return decided

    def _active(self) -> list[CheckState]:
        startup = self.states.get(STARTUP)
        if startup is not None and startup.healthy is not True:
            return [startup]
        return [state for kind, state in self.states.items() if kind != STARTUP]
