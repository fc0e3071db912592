"""
Starts a pod in a process that outlives the command, and starts an ended pod again.

A pod that is started again has the same directory, UUID, name, options and volumes, and the files that its apps have
written. The pod stays in `run`, and is running as soon as a process holds the lock. Remains of the last run outside the
apps' roots are removed first; the logs of apps stay, and go on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from minit.base import jsontext
from minit.base.errors import EXIT_FAILURE, MinitError, PodError
from minit.linux import syscalls
from minit.linux.forks import DETACHED, fork
from minit.linux.loop import wait_readable
from minit.linux.process import ended_on_failure
from minit.podfiles import paths
from minit.podfiles.paths import PodEvent
from minit.stage0.files.durable import disk_errors
from minit.stage0.files.untrusted import remove_entry
from minit.stage0.garbage.stage1gc import Stage1Cleanup
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.deletion import unmount_below
from minit.stage0.pods.poddirectory import ENDED_STATES, Note, Pod, PodState, ends_settled, open_pod
from minit.stage0.pods.podstatus import is_ready, read_pod_manifest, status_root
from minit.stage0.pods.privateusers import ids_of_its_own
from minit.stage0.pods.waiting import Pauses
from minit.stage0.reports.podtraces import read_events
from minit.stage0.stage1.entrypoints import read_stage1_manifest
from minit.stage0.start.newpod import discarded_on_failure
from minit.stage0.start.run import RUN_RECORD, become_stage1, mount_overlays, read_private_users, require_overlay

_CHUNK_BYTES = 65536
_EVENTS = 1000

_OF_A_RUN = (
    paths.POD_REMOVER,
    paths.POD_PID,
    paths.POD_PPID,
    paths.POD_NETNS,
    paths.POD_NET,
    paths.POD_NET_INFO,
    paths.POD_ENTER,
)
_INTERACTIVE, _MUTABLE = "--interactive", "--mutable"


def start_detached(
    pod: Pod,
    run: Callable[[], NoReturn],
    tell: Callable[[BaseException], None],
    relay: Callable[[bytes], None],
    decided: Callable[[], None],
    is_up: Callable[[Pod], bool] = is_ready,
) -> None:
    """
    Have `run`, which becomes the stage1 of a locked pod, run in another process, and return when the pod `is_up`.

    `relay` gets the output until then, `tell` the exception; later output has no reader. A pod that has
    ended meanwhile was ready too, if stage1 says so, or the pod has done its work. Else PodError with the exit code.
    `decided` is called when nobody looks at the pod's files any more. If this process is told to end before, so is
    the pod.
    """
    with discarded_on_failure(pod):
        watched = open_pod(pod.data, pod.uuid)
        # Not every program bears output without a reader.
        has_reader = read_stage1_manifest(pod).annotation(paths.ANNOTATION_CONTROL) is not None
        reader, writer = os.pipe()
        child = fork(DETACHED, run, {"output": writer if has_reader else None}, tell=lambda error: _fail(tell, error))
    os.close(writer)
    pod.close()  # the lock is the other process's now
    with watched:
        try:
            with ended_on_failure(child):
                _wait_until_up(watched, child, reader, relay, decided, is_up)
        finally:
            os.close(reader)


def _fail(tell: Callable[[BaseException], None], error: BaseException) -> int:
    tell(error)
    return 1


def _wait_until_up(
    pod: Pod,
    child: int,
    reader: int,
    relay: Callable[[bytes], None],
    decided: Callable[[], None],
    is_up: Callable[[Pod], bool],
) -> None:
    readers, pauses = [reader], Pauses()
    while True:
        if wait_readable(readers, pauses.next_seconds()):
            data = os.read(reader, _CHUNK_BYTES)
            if data:
                relay(data)
                continue
            readers.clear()
        ended, status = os.waitpid(child, os.WNOHANG)
        is_there = pod.refresh()
        if ended or (is_there and pod.state in ENDED_STATES):
            was_ready = _has_been_ready(pod)
            decided()
            if not ended:
                _, status = os.waitpid(child, 0)
            _take_rest(readers, relay)
            code = os.waitstatus_to_exitcode(status)
            if code == 0 or was_ready:
                return
            error = PodError(f'pod "{pod.uuid}" ended before it was ready: its stage1 exited with {code}')
            error.exit_code = code if code > 0 else EXIT_FAILURE
            raise error
        if is_there and pod.state is PodState.RUNNING and is_up(pod):
            decided()
            return


def _take_rest(readers: list[int], relay: Callable[[bytes], None]) -> None:
    """Relay the output so far; other processes may still hold the other end."""
    while wait_readable(readers, 0) and (data := os.read(readers[0], _CHUNK_BYTES)):
        relay(data)


def _has_been_ready(pod: Pod) -> bool:
    """Return whether an ended pod was ready, as far as the pod's files are still there."""
    return any(f'"event":"{PodEvent.POD_READY}"' in line for line in read_events(pod, _EVENTS) or ())


def claim_ended(pod: Pod) -> list[str]:
    """Lock an ended pod, and return the arguments of the last run; PodError if the pod cannot run again."""
    with ends_settled(pod.data):
        if not pod.refresh() or pod.state is not PodState.EXITED:
            raise PodError(f'pod "{pod.uuid}" cannot start again: its state is "{pod.state}"')
        if not pod.lock(blocking=False):
            raise PodError(f'pod "{pod.uuid}" is already being started')
    return require_startable(pod)


def require_startable(pod: Pod) -> list[str]:
    """Return the arguments of a pod's last run; PodError if the pod cannot run again after its end."""
    arguments = _read_arguments(pod)
    if _MUTABLE in arguments:
        raise PodError(f'pod "{pod.uuid}" cannot start again: apps were added to it, which only a new pod can be given')
    return arguments


def is_interactive(arguments: list[str]) -> bool:
    """Return whether the arguments of a run connect the pod to the terminal."""
    return _INTERACTIVE in arguments


def clear_last_run(pod: Pod, cleanup: Stage1Cleanup, note: Note) -> None:
    """Remove remains of a locked pod's last run: networks, control groups, mounts, and stage1's files of the run."""
    cleanup.run(pod, note)
    unmount_below(pod.path)
    with disk_errors("start pod", pod.path):
        for name in (*_OF_A_RUN, paths.POD_SUBCGROUP):
            _remove(pod.fd, name)
        _clear_stage1(pod)


def run_again(
    pod: Pod, trees: TreeStore, arguments: list[str], before_exec: Callable[[], None], note: Note
) -> NoReturn:
    """Become the stage1 of a locked pod that has ended and is cleared."""
    require_overlay(pod)
    with ids_of_its_own(pod, read_private_users(pod), note), disk_errors("start pod", pod.path):
        mount_overlays(pod, trees, [app.name for app in read_pod_manifest(pod).apps])
    become_stage1(pod, arguments, before_exec)


def _read_arguments(pod: Pod) -> list[str]:
    words: object = None
    with suppress(FileNotFoundError, MinitError):
        words = jsontext.parse(pod.read_file(RUN_RECORD), RUN_RECORD)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise PodError(f'pod "{pod.uuid}" cannot start again: minit has no record of how it was run')
    return words


def _clear_stage1(pod: Pod) -> None:
    """Remove the files of a run from stage1's root; directories stay, and the logs of apps."""
    top = f"{status_root(pod)}/rkt"
    for directory, kept in (
        (top, ("env", "iottymux", "minit", "status")),
        (f"{top}/env", ()),
        (f"{top}/iottymux", ()),
        (f"{top}/status", ()),
        (f"{top}/minit", ("log",)),
    ):
        _empty(pod, directory, lambda name, kept=kept: name in kept)  # type: ignore[misc]
    _empty(pod, f"{top}/minit/log", lambda name: ".log" in name)


def _empty(pod: Pod, directory: str, is_kept: Callable[[str], bool]) -> None:
    # The pod's processes have written there.
    resolve = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
    with suppress(FileNotFoundError):
        fd = syscalls.openat2(pod.fd, directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, resolve=resolve)
        try:
            for name in os.listdir(fd):
                if not is_kept(name):
                    _remove(fd, name)
        finally:
            os.close(fd)


def _remove(directory: int, name: str) -> None:
    with suppress(FileNotFoundError):
        remove_entry(directory, name)
