"""Restart policies: when an app that ended is started again. Conditions have systemd's names, delays are Docker's."""

from __future__ import annotations

from minit.base.errors import PlanError
from minit.base.goduration import parse_duration
from minit.base.value import Value
from minit.manifest.annotations import Annotation
from minit.manifest.pod import PodManifest, RuntimeApp

NEVER = "never"
ON_FAILURE = "on-failure"
ALWAYS = "always"

# A broken app must not keep PID 1 busy: no limit bounds PID 1.
_SHORTEST_SECONDS = 0.01
_LONGEST_SECONDS = 366 * 24 * 3600.0
_MOST_RESTARTS = 1_000_000


class RestartPolicy(Value):
    """
    When an app is started again: `condition` is ON_FAILURE, with another status than 0, or ALWAYS.

    The first delay doubles with each restart up to the longest. An app that ran for `reset_seconds` starts from the
    first delay again. After `limit` restarts in a row without such a run the app stays down; None for no limit.
    """

    condition: str
    delay_seconds: float = 0.1
    max_delay_seconds: float = 60.0
    reset_seconds: float = 10.0
    limit: int | None = None

    def describe(self) -> str:
        """Return the policy as words for --debug."""
        limit = "" if self.limit is None else f", {self.limit} times in a row"
        return (
            f"{self.condition}, after {self.delay_seconds:g} to {self.max_delay_seconds:g} s{limit}, "
            f"reset by {self.reset_seconds:g} s"
        )


def plan_restart(runtime: RuntimeApp, manifest: PodManifest, *, has_console: bool) -> RestartPolicy | None:
    """
    Return the restart policy of an app, by annotations of the app, then of the pod; None without restarts.

    PlanError for an app with the pod's console, which the end of the app takes away.
    """
    own = dict(manifest.annotations) | dict(runtime.annotations)
    where = f'app "{runtime.name}": '
    condition = own.get(Annotation.RESTART, NEVER)
    if condition not in (NEVER, ON_FAILURE, ALWAYS):
        expected = f"{NEVER}, {ON_FAILURE} or {ALWAYS}"
        raise PlanError(f'{where}annotation {Annotation.RESTART}: expected {expected}, got "{condition}"')
    policy = RestartPolicy(condition=condition)
    delay = _read_duration(own, Annotation.RESTART_DELAY, where, policy.delay_seconds)
    policy = RestartPolicy(
        condition=condition,
        delay_seconds=delay,
        max_delay_seconds=max(
            delay, _read_duration(own, Annotation.RESTART_MAX_DELAY, where, policy.max_delay_seconds)
        ),
        reset_seconds=_read_duration(own, Annotation.RESTART_RESET, where, policy.reset_seconds),
        limit=_read_limit(own.get(Annotation.RESTART_LIMIT), where),
    )
    if condition == NEVER:
        return None
    if has_console:
        raise PlanError(f"{where}annotation {Annotation.RESTART}: an interactive app cannot be started again")
    return policy


def _read_duration(annotations: dict[str, str], name: str, where: str, default: float) -> float:
    text = annotations.get(name)
    if text is None:
        return default
    try:
        seconds = parse_duration(text)
    except ValueError:
        seconds = -1.0
    if not _SHORTEST_SECONDS <= seconds <= _LONGEST_SECONDS:
        expected = 'expected a duration from 10ms to a year, such as "5s"'
        raise PlanError(f'{where}annotation {name}: {expected}, got "{text}"')
    return seconds


def _read_limit(text: str | None, where: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST_RESTARTS))):
        raise PlanError(f'{where}annotation {Annotation.RESTART_LIMIT}: expected a number of restarts, got "{text}"')
    return int(text)
