"""Waiting for a pod: until it has ended, is ready, or can be entered."""

from __future__ import annotations

import time

from minit.base.errors import PodError
from minit.stage0.pods.poddirectory import ENDED_STATES, Pod, PodState
from minit.stage0.pods.podstatus import is_ready, read_pid_to_enter

# Nothing tells that a flock was given up, or a link made: they are looked at, in the end as often as by rkt.
_SHORTEST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.1
_PAUSE_SHARE = 0.1

_OVER = ENDED_STATES | {PodState.ABORTED_PREPARE, PodState.GARBAGE, PodState.DELETING}


class Pauses:
    """The pauses of somebody who waits for something: the longer it takes, the less often it is looked at."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def next_seconds(self) -> float:
        """Return how long the next one is: a tenth of the time that has passed, within bounds."""
        waited_seconds = time.monotonic() - self._start
        return min(max(_PAUSE_SHARE * waited_seconds, _SHORTEST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)


def wait_until_ended(pod: Pod, timeout_seconds: float) -> None:
    """Return once the pod exited, is gone or will never run; PodError after the timeout, which may be infinite."""
    deadline, pauses = time.monotonic() + timeout_seconds, Pauses()
    while pod.refresh() and pod.state not in _OVER:
        _pause(pauses, deadline, f'waiting for pod "{pod.uuid}" to exit')


def wait_until_ready(pod: Pod, timeout_seconds: float) -> None:
    """Return once the pod's supervisor is ready; PodError after the timeout, or when the pod ended before."""
    deadline, pauses = time.monotonic() + timeout_seconds, Pauses()
    while True:
        _require_not_over(pod, "it was ready")
        if pod.state == PodState.RUNNING and is_ready(pod):
            return
        _pause(pauses, deadline, f'waiting for pod "{pod.uuid}" to be ready')


def wait_for_pid(pod: Pod) -> int:
    """Return the pid of the process to enter as soon as stage1 reports it; PodError if the pod ends before."""
    pauses = Pauses()
    while True:
        pid = read_pid_to_enter(pod)
        if pid is not None:
            return pid
        _require_not_over(pod, "it reported its pid")
        time.sleep(pauses.next_seconds())


def _require_not_over(pod: Pod, event: str) -> None:
    if not pod.refresh():
        raise PodError(f'pod "{pod.uuid}" was removed before {event}')
    if pod.state in _OVER:
        raise PodError(f'pod "{pod.uuid}" ended before {event}: its state is "{pod.state}"')


def _pause(pauses: Pauses, deadline: float, purpose: str) -> None:
    left_seconds = deadline - time.monotonic()
    if left_seconds <= 0:
        raise PodError(f"{purpose}: context deadline exceeded")
    time.sleep(min(pauses.next_seconds(), left_seconds))
