"""The start order of apps: what an app still has to wait for, and whether that is in vain. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from minit.supervisor.apps.podapp import App


def find_unmet(app: App, apps: Mapping[str, App]) -> str | None:
    """Return what an app still has to wait for, None if it may be started."""
    for each in app.spec.after:
        other = apps.get(each.app)
        if not _is_met(other, completed=each.completed):
            missing = "has not completed" if each.completed else "is not ready"
            return f'"{each.app}" {"is not in this pod" if other is None else missing}'
    return None


def waits_in_vain(app: App, apps: Mapping[str, App]) -> str | None:
    """Return why nothing will ever start the app, None if that cannot be said."""
    for each in app.spec.after:
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
