"""Waiting for a pod: until it has ended, is ready, or can be entered."""

from __future__ import annotations

import time

from minit.errors import PodError
from minit.stage0.pods.poddirectory import ENDED_STATES, Pod, PodState
from minit.stage0.pods.podstatus import is_ready, read_pid_to_enter

# The kernel tells nobody when a flock is given up, so the lock is asked, as often as rkt does.
_POLL_SECONDS = 0.1

_OVER = ENDED_STATES | {PodState.ABORTED_PREPARE, PodState.GARBAGE, PodState.DELETING}


def wait_until_ended(pod: Pod, timeout_seconds: float) -> None:
    """Return once the pod exited, is gone or will never run; PodError after the timeout, which may be infinite."""
    deadline = time.monotonic() + timeout_seconds
    while pod.refresh() and pod.state not in _OVER:
        _pause(deadline, f'waiting for pod "{pod.uuid}" to exit')


def wait_until_ready(pod: Pod, timeout_seconds: float) -> None:
    """Return once the pod's supervisor is ready; PodError after the timeout, or when the pod ended before."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        _require_not_over(pod, "it was ready")
        if pod.state == PodState.RUNNING and is_ready(pod):
            return
        _pause(deadline, f'waiting for pod "{pod.uuid}" to be ready')


def wait_for_pid(pod: Pod) -> int:
    """Return the pid of the process to enter as soon as stage1 reports it; PodError if the pod ends before."""
    while True:
        pid = read_pid_to_enter(pod)
        if pid is not None:
            return pid
        _require_not_over(pod, "it reported its pid")
        time.sleep(_POLL_SECONDS)


def _require_not_over(pod: Pod, event: str) -> None:
    if not pod.refresh():
        raise PodError(f'pod "{pod.uuid}" was removed before {event}')
    if pod.state in _OVER:
        raise PodError(f'pod "{pod.uuid}" ended before {event}: its state is "{pod.state}"')


def _pause(deadline: float, purpose: str) -> None:
    left_seconds = deadline - time.monotonic()
    if left_seconds <= 0:
        raise PodError(f"{purpose}: context deadline exceeded")
    time.sleep(min(_POLL_SECONDS, left_seconds))
