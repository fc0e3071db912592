"""The apps that an app is started after, by the annotation minit/after."""

from __future__ import annotations

from collections.abc import Sequence

from minit.base.errors import PlanError
from minit.manifest.annotations import Annotation
from minit.manifest.pod import RuntimeApp
from minit.plan.appplan import AppPlan, Dependency
from minit.plan.life.restart import ALWAYS

_COMPLETED = "completed"


def plan_after(runtime: RuntimeApp) -> tuple[Dependency, ...]:
    """Return what an app waits for; PlanError for what are no names, separated by commas."""
    text = runtime.annotation(Annotation.AFTER)
    if text is None:
        return ()
    dependencies = []
    for word in text.split(","):
        name, colon, what = word.strip().partition(":")
        if not name or (colon and what != _COMPLETED):
            expected = f'expected names of apps, separated by commas, each perhaps followed by ":{_COMPLETED}"'
            raise PlanError(f'app "{runtime.name}": annotation {Annotation.AFTER}: {expected}, got "{text}"')
        dependencies.append(Dependency(app=name, completed=bool(colon)))
    return tuple(dependencies)


def check_order(apps: Sequence[AppPlan]) -> None:
    """Raise PlanError if an app of a whole pod waits for one that is not there, or for itself by way of others."""
    waits_for = {app.name: [dependency.app for dependency in app.life.after] for app in apps}
    for name, others in waits_for.items():
        for other in others:
            if other not in waits_for:
                raise PlanError(f'app "{name}": annotation {Annotation.AFTER}: no app "{other}" in this pod')
    always = {app.name for app in apps if app.life.restart is not None and app.life.restart.condition == ALWAYS}
    for app in apps:
        for dependency in app.life.after:
            if dependency.completed and dependency.app in always:
                reason = f'app "{dependency.app}" never completes, as it is always started again'
                raise PlanError(f'app "{app.name}": annotation {Annotation.AFTER}: {reason}')
    settled: set[str] = set()
    for name in waits_for:
        _follow(name, waits_for, [], settled)


def _follow(start: str, waits_for: dict[str, list[str]], path: list[str], settled: set[str]) -> None:
    """Walk everything that `start` waits for, depth first; without recursion, since a chain may be long."""
    trail = [(start, iter(waits_for[start]))]
    path.append(start)
    while trail:
        name, others = trail[-1]
        other = next((each for each in others if each not in settled), None)
        if other is None:
            settled.add(name)
            trail.pop()
            path.pop()
        elif other in path:
            circle = " -> ".join([*path[path.index(other) :], other])
            raise PlanError(f"annotation {Annotation.AFTER}: apps wait for each other: {circle}")
        else:
            path.append(other)
            trail.append((other, iter(waits_for[other])))
