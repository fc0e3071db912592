"""The stop of an app: the first signal, and the time until SIGKILL; and the deadline of a pod."""

from __future__ import annotations

import signal

from minit.base.errors import PlanError
from minit.base.goduration import parse_duration
from minit.base.signals import parse_signal
from minit.base.value import Value
from minit.manifest.annotations import Annotation
from minit.manifest.image import ImageManifest
from minit.manifest.pod import PodManifest, RuntimeApp

STOP_GRACE_SECONDS = 10.0

_SHORTEST_SECONDS = 0.1
_LONGEST_SECONDS = 366 * 24 * 3600.0


class Stopping(Value):
    """The stop signal of an app and its grace period."""

    signal: int = signal.SIGTERM
    grace_seconds: float = STOP_GRACE_SECONDS


DEFAULT_STOPPING = Stopping()


def plan_stopping(runtime: RuntimeApp, image: ImageManifest, pod_grace_seconds: float) -> Stopping:
    """
    Return the stop of an app: the app's annotations decide, then the signal of the image and the pod's grace period.
    """
    where = f'app "{runtime.name}": '
    number = _read_signal(runtime.annotation(Annotation.STOP_SIGNAL), where)
    if number is None:
        number = _read_signal(image.annotation(Annotation.STOP_SIGNAL), f"{where}image {image.name}: ")
    grace_seconds = _read_grace(runtime.annotation(Annotation.STOP_GRACE), where)
    return Stopping(
        signal=signal.SIGTERM if number is None else number,
        grace_seconds=pod_grace_seconds if grace_seconds is None else grace_seconds,
    )


def plan_pod_grace(manifest: PodManifest) -> float:
    """Return the grace period of a pod's apps, in seconds."""
    seconds = _read_grace(manifest.annotation(Annotation.STOP_GRACE), "")
    return STOP_GRACE_SECONDS if seconds is None else seconds


def plan_deadline(manifest: PodManifest) -> float | None:
    """Return how long a pod may run, in seconds; None for as long as it likes."""
    text = manifest.annotation(Annotation.DEADLINE)
    if text is None:
        return None
    try:
        seconds = parse_duration(text)
    except ValueError:
        seconds = 0.0
    if not _SHORTEST_SECONDS <= seconds <= _LONGEST_SECONDS:
        expected = 'expected a duration from 100ms to a year, such as "1h"'
        raise PlanError(f'annotation {Annotation.DEADLINE}: {expected}, got "{text}"')
    return seconds


def _read_signal(text: str | None, where: str) -> int | None:
    if text is None:
        return None
    try:
        return parse_signal(text)
    except ValueError as error:
        expected = 'expected a signal such as "SIGQUIT", "HUP", "RTMIN+3" or "15"'
        raise PlanError(f'{where}annotation {Annotation.STOP_SIGNAL}: {expected}, got "{text}"') from error


def _read_grace(text: str | None, where: str) -> float | None:
    if text is None:
        return None
    expected = f'{where}annotation {Annotation.STOP_GRACE}: expected a duration such as "10s", got "{text}"'
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise PlanError(expected) from error
    if seconds < 0:
        raise PlanError(expected)
    return seconds
