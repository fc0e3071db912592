"""When a version that runs on trial has proved itself: all apps have been healthy for long enough. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from minit.manifest.machineconfig import Trial
from minit.value import Value

LOOK_SECONDS = 1.0
"""How often the apps are to be looked at. What happens in between shows in the number of their starts."""


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
