"""
Collecting pods: what `gc` sweeps up, what `rm` removes, and with `--rm` the removal of a pod as soon as the pod ends.

For `--rm` a process waits for the lock of the pod, which is free when the pod has ended, whoever was killed. minit's
stage1 ends when that process has ended, so that the pod is gone when the command ends; another stage1 does not wait.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minit.base.errors import MinitError, PodError, UnfinishedError, describe
from minit.base.goduration import format_duration
from minit.linux.forks import END_REMOVER, fork
from minit.podfiles import paths
from minit.stage0.files.durable import sync_directory
from minit.stage0.files.locks import flock
from minit.stage0.garbage.stage1gc import Stage1Cleanup
from minit.stage0.images.store import Store
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.deletion import Deletions, delete
from minit.stage0.pods.mutablepods import kept_from_deletion
from minit.stage0.pods.poddirectory import (
    DELETED_STATES,
    EMBRYO,
    EXITED_GARBAGE,
    GARBAGE,
    PREPARE,
    PREPARED,
    RUN,
    Note,
    Pod,
    PodState,
    ends_settled,
    open_pod,
    walk_pods,
)

# An embryo is locked microseconds after its making; an hour allows for a suspended machine.
_EMBRYO_AGE_SECONDS = 3600


def _none(pod: Pod) -> bool:
    return False


def mark(data: Path, note: Note, leaves: Callable[[Pod], bool] = _none) -> None:
    """Move ended pods, and pods with an aborted preparation, to the directories for garbage, but for those left."""
    for pod in walk_pods(data, [RUN], note):
        if pod.state is PodState.EXITED and not leaves(pod):
            with ends_settled(data):
                if pod.refresh() and pod.state is PodState.EXITED:
                    _move(pod, EXITED_GARBAGE, f'moving pod "{pod.uuid}" to garbage', note)
    for pod in walk_pods(data, [PREPARE, EMBRYO], note):
        if (pod.state is PodState.ABORTED_PREPARE or _is_abandoned_embryo(pod)) and not leaves(pod):
            _move(pod, GARBAGE, f'moving failed prepare "{pod.uuid}" to garbage', note)
    _sync(data)


def expire_prepared(data: Path, expire_seconds: float, note: Note) -> None:
    """Move prepared pods that are older than `expire_seconds` and never ran to the garbage."""
    for pod in walk_pods(data, [PREPARED], note):
        if pod.state is PodState.PREPARED and _age_seconds(pod) >= expire_seconds:
            _move(pod, GARBAGE, f'moving expired prepared pod "{pod.uuid}" to garbage', note)
    _sync(data)


def collect(
    data: Path,
    grace_seconds: float,
    cleanup: Stage1Cleanup,
    say: Note,
    note: Note,
    leaves: Callable[[Pod], bool] = _none,
) -> bool:
    """
    Delete pods that were marked `grace_seconds` ago, and all garbage, but for pods that it `leaves`.

    A failed deletion is noted and left for later.

    Return whether stage1 has undone everything.
    """
    is_finished = True
    with Deletions(note) as deletions:
        for pod in walk_pods(data, [EXITED_GARBAGE], note):
            if pod.place != EXITED_GARBAGE or leaves(pod):
                continue
            if _age_seconds(pod) < grace_seconds:
                grace = format_duration(grace_seconds)
                note(f'pod "{pod.uuid}" not removed: still within grace period ({grace})')
                continue
            say(f'Garbage collecting pod "{pod.uuid}"')
            with _noted(pod, note):
                if _is_ours(pod):
                    try:
                        cleanup.run(pod, note)
                    except UnfinishedError:
                        is_finished = False
                        raise
                    deletions.add(pod)
        for pod in walk_pods(data, [GARBAGE], note):
            if leaves(pod):
                continue
            say(f'Garbage collecting pod "{pod.uuid}"')
            with _noted(pod, note):
                if _is_ours(pod):
                    deletions.add(pod)
    return is_finished


def remove(pod: Pod, cleanup: Stage1Cleanup, note: Note) -> None:
    """Delete a pod; PodError for a running pod, or a pod that is being made or deleted."""
    with ends_settled(pod.data):
        pod.refresh()
        has_run = pod.state in (PodState.EXITED, PodState.EXITED_GARBAGE)
        if not has_run and pod.state not in (PodState.ABORTED_PREPARE, PodState.PREPARED):
            hint = " (stop it first)" if pod.state is PodState.RUNNING else ""
            raise PodError(f'pod "{pod.uuid}" is {pod.state}, not removed{hint}')
        if pod.state is not PodState.EXITED_GARBAGE:
            pod.move(EXITED_GARBAGE if has_run else GARBAGE)
    if _is_ours(pod):
        if has_run:
            cleanup.run(pod, note)
        delete(pod)


def release(pod: Pod, cleanup: Stage1Cleanup, note: Note) -> None:
    """
    Have stage1 give back what an ended pod has outside of the pod directory, as networks; the directory stays.

    PodError for a pod that runs or is being removed. A second call is no error, and a removal does the same again.
    """
    if pod.state is PodState.RUNNING:
        raise PodError(f'pod "{pod.uuid}" is {pod.state}, nothing given back (stop it first)')
    with kept_from_deletion(pod):
        if pod.refresh() and pod.state is PodState.EXITED:
            cleanup.run(pod, note)


def _is_ours(pod: Pod) -> bool:
    """Wait for the lock of a pod and return whether the pod is still there: another process may have deleted it."""
    pod.lock(blocking=True)
    return pod.refresh()


def _move(pod: Pod, place: str, message: str, note: Note) -> None:
    try:
        pod.move(place, durably=False)
    except PodError:
        return  # another gc was faster
    except OSError as error:
        note(f'cannot move pod "{pod.uuid}": {describe(error)}')
        return
    note(message)


def _sync(data: Path) -> None:
    """Make all moves durable at once: each would wait for the disk."""
    for place in (EXITED_GARBAGE, GARBAGE):
        with suppress(FileNotFoundError):
            sync_directory(data / "pods" / place)


@contextmanager
def _noted(pod: Pod, note: Note) -> Iterator[None]:
    """Note the failure of one pod, so that the other pods are still collected."""
    try:
        yield
    except (OSError, MinitError) as error:
        note(f'pod "{pod.uuid}": {describe(error)}')


def _is_abandoned_embryo(pod: Pod) -> bool:
    return pod.state is PodState.EMBRYO and _age_seconds(pod) >= _EMBRYO_AGE_SECONDS and pod.lock(blocking=False)


def _age_seconds(pod: Pod) -> float:
    """Return the time since the last rename of the directory, which sets the ctime."""
    return time.time() - os.fstat(pod.fd).st_ctime


def start_remover(pod: Pod, local_config: str, note: Note, *, debug: bool, start: int | None = None) -> int:
    """
    Start the process that removes a pod at the pod's end, and return the pid; `note` gets failures of the process.

    The process waits for the end of file on `start`, if `start` is given, and holds the lock of a file of the pod until
    the process ends.
    """
    data, uuid = pod.data, pod.uuid

    def run() -> None:
        if start is not None:
            os.read(start, 1)
        _remove_at_end(data, uuid, local_config, note, debug=debug)

    work = os.open(paths.POD_REMOVER, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=pod.fd)
    try:
        flock(work, exclusive=True)
        return fork(END_REMOVER, run, {"start": start, "work": work})
    finally:
        os.close(work)


def _remove_at_end(data: Path, uuid: str, local_config: str, note: Note, *, debug: bool) -> None:
    # A service manager that ends a pod with all processes ends this process, too.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with Store(data) as store, Stage1Cleanup(TreeStore(data, store), local_config, debug=debug) as cleanup:
        try:
            with open_pod(data, uuid) as pod:
                # Shared, so that no process that checks meanwhile treats the pod as running.
                flock(pod.fd, exclusive=False)
                if pod.refresh() and pod.state not in DELETED_STATES:
                    remove(pod, cleanup, note)
        except (OSError, MinitError) as error:
            if _is_there(data, uuid):
                note(f'pod "{uuid}" not removed: {describe(error)}')


def _is_there(data: Path, uuid: str) -> bool:
    try:
        with open_pod(data, uuid) as pod:
            return pod.state not in DELETED_STATES
    except MinitError:
        return False
