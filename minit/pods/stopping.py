"""Stopping pods, and waiting for the end; imports nothing of the store, which a machine's command has not."""

from __future__ import annotations

import math
import time

from minit.base.errors import PodError
from minit.base.value import Value
from minit.pods.caller import Caller
from minit.stage0.pods.poddirectory import ADDRESSABLE_PLACES, DELETED_STATES, RUN, Pod, PodState, walk_pods
from minit.stage0.pods.waiting import wait_for_remover, wait_until_ended
from minit.stage0.reports.podtraces import is_stopping
from minit.stage0.stage1.calls import stop_pod


class Ending(Value):
    """A pod that was asked to end, and the monotonic time of the kill: never, if the pod's own grace periods hold."""

    pod: Pod
    kill_at: float = math.inf


def begin_to_stop(pod: Pod, *, force: bool = False, grace_seconds: float | None = None) -> Ending | None:
    """
    Ask a running pod to end, and return at once; None for a pod that has ended.

    The pod is killed at once with `force`, and in `await_end` after the grace period, if a period is given.
    """
    is_killed = force or grace_seconds == 0
    if not stop_pod(pod, force=is_killed):
        return None
    if is_killed or grace_seconds is None:
        return Ending(pod=pod)
    return Ending(pod=pod, kill_at=time.monotonic() + grace_seconds)


def await_end(ending: Ending, timeout_seconds: float = math.inf) -> None:
    """Wait for the end of a pod, and for the removal of a pod of `--rm`; PodError after the timeout."""
    pod, deadline = ending.pod, time.monotonic() + timeout_seconds
    if ending.kill_at < deadline:
        try:
            wait_until_ended(pod, ending.kill_at - time.monotonic())
        except PodError:
            stop_pod(pod, force=True)
    wait_until_ended(pod, deadline - time.monotonic())
    wait_for_remover(pod)


def stop(pod: Pod, *, force: bool = False, grace_seconds: float | None = None) -> bool:
    """Stop a running pod as `begin_to_stop` does, wait for the end, and return whether the pod still exists."""
    if pod.state is PodState.RUNNING:
        ending = begin_to_stop(pod, force=force, grace_seconds=grace_seconds)
        if ending is not None:
            await_end(ending)
    return pod.refresh() and pod.state not in DELETED_STATES


def await_stopping(pod: Pod) -> bool:
    """Wait for the end of a pod that somebody stops, and not for one that goes on; False for a pod that is gone."""
    if pod.state is PodState.RUNNING and is_stopping(pod):
        wait_until_ended(pod, math.inf)
    if pod.state is not PodState.RUNNING:
        wait_for_remover(pod)
    return pod.refresh()


def removable_pods(caller: Caller) -> list[str]:
    """Return the UUIDs of the pods that run, have ended, or were never run."""
    states = (PodState.PREPARED, PodState.RUNNING, PodState.EXITED, PodState.EXITED_GARBAGE)
    return [pod.uuid for pod in walk_pods(caller.data, ADDRESSABLE_PLACES, caller.note) if pod.state in states]


def running_pods(caller: Caller) -> list[str]:
    """Return the UUIDs of the running pods."""
    return [pod.uuid for pod in walk_pods(caller.data, (RUN,), caller.note) if pod.state is PodState.RUNNING]
