"""
Waiting for what becomes of a pod: its end, its readiness, its pid; the end of its remover.

The end of a pod is the end of its lock, whichever program of minit or rkt has run the pod. A wait without a timeout
takes the lock. For a wait with a timeout, or for several things, inotify(7) tells of the end of the lock, as a close of
a descriptor of the pod directory.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from typing import Self

from minit.base.errors import PodError
from minit.linux import syscalls
from minit.linux.loop import wait_readable
from minit.podfiles import paths
from minit.stage0.files.locks import flock
from minit.stage0.pods.poddirectory import ENDED_STATES, Pod, PodState
from minit.stage0.pods.podstatus import is_ready, read_pid_to_enter

# A removal begins with a move: inotify does not tell of the removal of an open directory.
_LIFE = syscalls.IN_CLOSE_NOWRITE | syscalls.IN_MOVE_SELF
# The kernel tells of the last close of a descriptor just before the lock is given up.
_SETTLING_SECONDS = 10.0

# No event tells that a link was made: readiness is polled, in the end as often as by rkt.
_SHORTEST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.1
_PAUSE_SHARE = 0.1

_OVER = ENDED_STATES | {PodState.ABORTED_PREPARE, PodState.GARBAGE, PodState.DELETING}


class Pauses:
    """The pauses of a waiting process: the longer the wait, the longer the pauses."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def next_seconds(self) -> float:
        """Return the length of the next pause: a tenth of the time that has passed, within bounds."""
        waited_seconds = time.monotonic() - self._start
        return min(max(_PAUSE_SHARE * waited_seconds, _SHORTEST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)


class Life:
    """
    The life of an open pod: a wait for a move of the directory, or for the end of the lock.

    Where the machine has no room for another watch of inotify(7), waits are pauses.
    """

    def __init__(self, pod: Pod) -> None:
        self._pauses: Pauses | None = None
        self._settled_at = 0.0
        self.fd: int | None = None
        """Readable when there may be a change."""
        try:
            self.fd = syscalls.inotify_watch(f"/proc/self/fd/{pod.fd}", _LIFE)
        except OSError:
            self._settle(float("inf"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.fd is not None:
            os.close(self.fd)

    @property
    def pause_seconds(self) -> float | None:
        """How long to wait at most for `fd`, None for as long as there is no change."""
        if self._pauses is None or time.monotonic() > self._settled_at:
            return None
        return self._pauses.next_seconds()

    def take(self) -> None:
        """Take note of the changes that `fd` tells of."""
        if self.fd is not None and syscalls.read_inotify(self.fd):
            self._settle(time.monotonic() + _SETTLING_SECONDS)

    def wait(self, timeout_seconds: float) -> None:
        """Return when there may be a change, or after the timeout."""
        pause = self.pause_seconds
        timeout_seconds = timeout_seconds if pause is None else min(pause, timeout_seconds)
        wait_readable(() if self.fd is None else (self.fd,), timeout_seconds)
        self.take()

    def _settle(self, until: float) -> None:
        self._pauses, self._settled_at = Pauses(), until


def wait_until_ended(pod: Pod, timeout_seconds: float) -> None:
    """Return once the pod exited, is gone or will never run; PodError after the timeout, which may be infinite."""
    if timeout_seconds == math.inf and pod.refresh() and pod.state is PodState.RUNNING:
        # The kernel takes some milliseconds to end a watch of inotify(7).
        flock(pod.fd, exclusive=False)
        pod.unlock()
    if not _goes_on(pod):
        return
    deadline = time.monotonic() + timeout_seconds
    with Life(pod) as life:
        while _goes_on(pod):
            left_seconds = deadline - time.monotonic()
            if left_seconds <= 0:
                raise PodError(f'waiting for pod "{pod.uuid}" to exit: context deadline exceeded')
            life.wait(left_seconds)


def _goes_on(pod: Pod) -> bool:
    return pod.refresh() and pod.state not in _OVER


def wait_for_remover(pod: Pod) -> None:
    """Return when no process is left that removes the pod at the end; at once for a pod without `--rm`."""
    with suppress(FileNotFoundError):
        work = os.open(paths.POD_REMOVER, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=pod.fd)
        try:
            flock(work, exclusive=False)
        finally:
            os.close(work)


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
