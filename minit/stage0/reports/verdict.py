"""Conclusions from facts about a pod, in sentences for people; pure, and so apart from the reading of facts."""

from __future__ import annotations

from collections.abc import Iterator

from minit.base.value import Value
from minit.stage0.pods.poddirectory import ENDED_STATES, PodState

_FULL_SHARE = 0.005
_SUCCESSES = (0, None)


class AppFacts(Value):
    """Known facts about one app; `end` has stage1's words about the end."""

    name: str
    status: int | None = None
    end: str | None = None
    was_started: bool = False
    restarts: int = 0
    last_line: str | None = None
    oom_kills: int | None = None
    memory_limit_bytes: int | None = None
    refused_forks: int | None = None
    lost_output_bytes: int | None = None


class PodFacts(Value):
    """
    Known facts about a pod; `free_share` is the free part of the file system with the data directory, `kill` tells how
    PID 1 was killed.

    `panic` is about a panic of the machine's kernel before this start.
    """

    state: PodState
    failure: str | None
    has_pid: bool
    is_ready: bool
    ended_in_order: bool
    apps: tuple[AppFacts, ...]
    free_share: float | None = None
    panic: str | None = None
    kill: str | None = None
    errors: int = 0
    """Of PID 1's own code."""


def conclusions(pod: PodFacts) -> list[str]:
    """Return failures and missing steps, the most important first; at least one sentence."""
    panic = [] if pod.panic is None else [f"Before this start the machine's kernel failed: {pod.panic}"]
    found = [*panic, *_of_start(pod), *(line for app in pod.apps for line in _of_app(pod, app)), *_of_machine(pod)]
    return found or [_all_well(pod)]


def _of_start(pod: PodFacts) -> Iterator[str]:
    if pod.failure is not None:
        yield f"The pod could not be started: {pod.failure}"
    elif pod.kill is not None:
        yield f"The pod was ended by force: {pod.kill}."
    elif pod.state in ENDED_STATES and not pod.has_pid:
        yield "The pod ended before its stage1 could report a pid; what it said then went to where the pod was started."
    if pod.errors:
        count = "an error" if pod.errors == 1 else f"{pod.errors} errors"
        yield f"PID 1 of the pod has had {count} of its own, as supervisor_log tells: a bug in minit."
    if pod.state is PodState.PREPARED:
        yield "The pod has not been run yet: `minit run-prepared` does that."
    if pod.state is PodState.ABORTED_PREPARE:
        yield "Preparing the pod was cut short: `minit gc` removes what there is."
    if pod.state is PodState.RUNNING and not pod.is_ready:
        waiting = [app.name for app in pod.apps if not app.was_started and app.status is None]
        missing = f": not started yet: {', '.join(waiting)}" if waiting else ""
        yield f"The pod is not ready{missing}."


def _of_app(pod: PodFacts, app: AppFacts) -> Iterator[str]:
    if app.status not in _SUCCESSES:
        last = f"; the last line of its log: {app.last_line}" if app.last_line else ""
        again = f" after {app.restarts} restarts" if app.restarts else ""
        yield f'App "{app.name}" ended with status {app.status}{f" ({app.end})" if app.end else ""}{again}{last}'
    elif app.status is None and pod.state in ENDED_STATES and pod.has_pid:
        was_killed = app.was_started and not pod.ended_in_order
        known = "has no status, since its pod was killed" if was_killed else "was never executed"
        yield f'App "{app.name}" {known}.'
    if app.oom_kills:
        limit = f", of which it may have {app.memory_limit_bytes} bytes" if app.memory_limit_bytes else ""
        yield f'App "{app.name}": memory ran out{limit}: the kernel killed {app.oom_kills} of its processes.'
    if app.lost_output_bytes is not None:
        yield f'App "{app.name}": {app.lost_output_bytes} bytes of its output were lost, since nobody could read them.'
    if app.refused_forks:
        yield f'App "{app.name}" reached its limit of processes: {app.refused_forks} could not be started.'


def _of_machine(pod: PodFacts) -> Iterator[str]:
    if pod.free_share is not None and pod.free_share < _FULL_SHARE:
        yield "The file system with the data directory is full."


def _all_well(pod: PodFacts) -> str:
    if pod.state is PodState.RUNNING:
        return "The pod is running and ready; nothing is wrong that can be seen from here."
    if pod.state in ENDED_STATES:
        return "All apps ended with status 0."
    return f"The pod is {pod.state}; nothing is wrong that can be seen from here."
