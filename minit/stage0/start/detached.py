"""Starting a pod in a process of its own, which outlives the command that started it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from minit.base.errors import EXIT_FAILURE, PodError
from minit.linux.forks import DETACHED, fork
from minit.linux.loop import wait_readable
from minit.podfiles import paths
from minit.podfiles.paths import PodEvent
from minit.stage0.pods.poddirectory import ENDED_STATES, Pod, PodState, open_pod
from minit.stage0.pods.podstatus import is_ready
from minit.stage0.pods.podwaiting import Pauses
from minit.stage0.reports.podtraces import read_events
from minit.stage0.stage1.entrypoints import read_stage1_manifest
from minit.stage0.start.newpod import discarded_on_failure

_CHUNK_BYTES = 65536
_EVENTS = 1000


def start_detached(
    pod: Pod,
    run: Callable[[], NoReturn],
    tell: Callable[[BaseException], None],
    relay: Callable[[bytes], None],
    decided: Callable[[], None],
) -> None:
    """
    Have `run`, which becomes the stage1 of a locked pod, run in another process, and return when the pod is ready.

    `relay` gets what it prints until then, `tell` its exception; the rest of its output is nobody's. A pod that has
    ended meanwhile was ready too, if its stage1 says so, or it has done its work. Else PodError with its exit code.
    `decided` is called when nobody looks at the pod's files any more. If this process is told to end before, so is
    the pod.
    """
    with discarded_on_failure(pod):
        watched = open_pod(pod.data, pod.uuid)
        # Not every program bears that nobody reads any more what it prints.
        has_reader = read_stage1_manifest(pod).annotation(paths.ANNOTATION_CONTROL) is not None
        reader, writer = os.pipe()
        child = fork(DETACHED, run, {"output": writer if has_reader else None}, tell=lambda error: _fail(tell, error))
    os.close(writer)
    pod.close()  # the lock is the other process's now
    with watched:
        try:
            _wait_until_ready(watched, child, reader, relay, decided)
        except BaseException:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGTERM)
                os.waitpid(child, 0)
            raise
        finally:
            os.close(reader)


def _fail(tell: Callable[[BaseException], None], error: BaseException) -> int:
    tell(error)
    return 1


def _wait_until_ready(
    pod: Pod, child: int, reader: int, relay: Callable[[bytes], None], decided: Callable[[], None]
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
        if is_there and pod.state is PodState.RUNNING and is_ready(pod):
            decided()
            return


def _take_rest(readers: list[int], relay: Callable[[bytes], None]) -> None:
    """Relay what is there; others may hold the other end still."""
    while wait_readable(readers, 0) and (data := os.read(readers[0], _CHUNK_BYTES)):
        relay(data)


def _has_been_ready(pod: Pod) -> bool:
    """Return whether a pod that has ended was ready, as far as its files are still there."""
    return any(f'"event":"{PodEvent.POD_READY}"' in line for line in read_events(pod, _EVENTS) or ())
