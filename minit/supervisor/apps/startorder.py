"""The order of starts: prepared apps go on, wait for others, or are given up because they wait in vain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from minit.plan.podplan import PodPlan
from minit.podfiles import paths
from minit.reaper.exit_status import ExitStatus
from minit.reaper.record import write_file
from minit.supervisor.apps.lifecycle import Event, State
from minit.supervisor.apps.podapp import App


class StartOrder:
    """The order in which the apps of a pod start; `handle` feeds the life-cycle table."""

    def __init__(
        self,
        plan: PodPlan,
        apps: Mapping[str, App],
        handle: Callable[[App, Event], None],
        is_ending: Callable[[], bool],
    ) -> None:
        self._plan = plan
        self._apps = apps
        self._handle = handle
        self._is_ending = is_ending
        # Those that are prepared, and others have to be ready first.
        self._waiting: set[str] = set()

    @property
    def starting(self) -> bool:
        """Tell whether some app is being prepared or executed; one whose pre-start handler runs may take for ever."""
        left_out = State.PRE_START
        return any(
            each.run.report is not None and each.state != left_out and each.name not in self._waiting
            for each in self._apps.values()
        )

    def on_prepared(self, app: App) -> None:
        """Start an app that has prepared itself, at the pod's start not before all have."""
        if self._plan.mutable or app.starts > 1:
            self._go([app])
        elif all(each.state == State.PREPARED and each.run.report is not None for each in self._apps.values()):
            self._go([*self._apps.values()])

    def go_on(self) -> None:
        """Start those that wait for what another app has become."""
        for each in self._apps.values():
            if each.name in self._waiting:
                self._go([each])

    def forget(self, app: App) -> None:
        """Have an app that has ended wait for nothing."""
        self._waiting.discard(app.name)

    def give_up(self) -> None:
        """Have no app wait any more."""
        self._waiting.clear()

    def is_marked_at_exec(self, app: App) -> bool:
        """Return whether a marker that cannot be written is the end of this start, not of the whole pod's."""
        return app.spec.life.pre_start is not None or self._plan.mutable or app.starts > 1

    def _go(self, apps: Sequence[App]) -> None:
        """Start these apps, all of them being prepared, but for those that wait for others."""
        apps = [app for app in apps if not self._is_held_up(app)]
        ready = [app for app in apps if app.spec.life.pre_start is None]
        for app in ready:
            if not self.is_marked_at_exec(app):
                write_file(paths.started_marker(app.name), b"")
        for app in ready:
            self._handle(app, Event.GO)
        for app in apps:
            if app.spec.life.pre_start is not None:
                self._handle(app, Event.HANDLE_START)

    def _is_held_up(self, app: App) -> bool:
        """Return whether an app has to wait for others; one that would wait for ever has failed."""
        if not app.spec.life.after or (app.starts > 1 and not self._plan.mutable):
            return False
        # Of a mutable pod one is started when somebody asks for it, who is told that it cannot be.
        reason = (_find_unmet if self._plan.mutable else _waits_in_vain)(app, self._apps)
        is_waiting = reason is None and _find_unmet(app, self._apps) is not None
        (self._waiting.add if is_waiting else self._waiting.discard)(app.name)
        if reason is not None and not self._is_ending():
            app.run.failure = ExitStatus(step="wait for other apps", path=reason)
            self._handle(app, Event.KILL)
            return True
        return is_waiting


def _find_unmet(app: App, apps: Mapping[str, App]) -> str | None:
    """Return what an app still has to wait for, None if it may be started."""
    for each in app.spec.life.after:
        other = apps.get(each.app)
        if not _is_met(other, completed=each.completed):
            missing = "has not completed" if each.completed else "is not ready"
            return f'"{each.app}" {"is not in this pod" if other is None else missing}'
    return None


def _waits_in_vain(app: App, apps: Mapping[str, App]) -> str | None:
    """Return why nothing will ever start the app, None if that cannot be said."""
    for each in app.spec.life.after:
        other = apps.get(each.app)
        if other is None or other.run.end is None or other.is_restarting:
            continue
        if not _is_met(other, completed=each.completed):
            outcome = f"ended with {other.run.end.number}" if each.completed else "ended before it was ready"
            return f'"{each.app}" {outcome}'
    return None


def _is_met(other: App | None, *, completed: bool) -> bool:
    if other is None:
        return False
    if not completed:
        return other.is_ready
    return other.run.end is not None and other.run.end.number == 0 and not other.is_restarting
