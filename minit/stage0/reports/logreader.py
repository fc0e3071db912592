"""The logs of a pod from outside: where they are, and when there is more to read or nothing any more."""

from __future__ import annotations

import fcntl
import os
import posixpath
import select
import time
from collections.abc import Iterator, Sequence

from minit.base.errors import PodError, describe
from minit.base.value import Value
from minit.linux import syscalls
from minit.linux.loop import wait_events
from minit.manifest.annotations import Annotation
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.podfiles import paths
from minit.podfiles.controlmessages import ReopenLogs
from minit.podfiles.hostlogs import open_parent
from minit.stage0.pods.poddirectory import ENDED_STATES, Pod, PodState
from minit.stage0.pods.podstatus import read_shown_pid, status_root
from minit.stage0.reports.logfiles import AppLog
from minit.stage0.stage1.calls import ask_stage1

# The kernel tells no process when the pod's lock is given up, so the lock is checked.
_POLL_SECONDS = 0.1
_LOCK_CHECK_SECONDS = 0.25
_EVENTS = syscalls.IN_MODIFY | syscalls.IN_CREATE | syscalls.IN_MOVED_FROM
_EVENT_BYTES = 1 << 16
# A sidecar writes for less than a moment, except on a slow disk.
_WRITE_SECONDS = 10.0
_WRITE_POLL_SECONDS = 0.01
_FLAGS = os.O_RDONLY | os.O_DIRECTORY
_RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS

_NOT_STARTED = frozenset({PodState.EMBRYO, PodState.PREPARING, PodState.PREPARED})
_WITH_LOGS = ENDED_STATES | {PodState.RUNNING}


class Pass(Value):
    """A moment to read logs: `complete` are the apps whose logs have ended."""

    complete: frozenset[str]


def open_log_directory(pod: Pod, *, wait: bool, directory: str = paths.STAGE1_LOG, what: str = "logs") -> int | None:
    """
    Return the directory of the pod's logs, None if there is none yet; PodError if there never will be a directory.

    `directory` is the place of `what` in the stage1 root. With `wait` the call waits until the pod has ended.
    """
    while True:
        state = pod.state
        if state in _WITH_LOGS and (opened := _open_directory(pod, directory)) is not None:
            return opened
        if state in _WITH_LOGS and read_shown_pid(pod) is not None:
            raise PodError(f'pod "{pod.uuid}": its stage1 keeps no {what} that minit can read')
        if state not in _NOT_STARTED and state is not PodState.RUNNING:
            return None  # the pod ended, or was given up, before there was a log
        if not wait:
            if state is PodState.RUNNING:
                return None
            raise PodError(f'pod "{pod.uuid}" has not run: its state is "{state}" (--follow waits for it)')
        time.sleep(_POLL_SECONDS)
        if not pod.refresh():
            raise PodError(f'pod "{pod.uuid}" was removed before it had {what}')


def _open_directory(pod: Pod, directory: str) -> int | None:
    # Through a present mount: writes to an overlay give no events on the upper directory.
    for root in (paths.POD_STAGE1_ROOTFS, status_root(pod)):
        try:
            return syscalls.openat2(pod.fd, root + directory, _FLAGS, resolve=_RESOLVE)
        except (FileNotFoundError, NotADirectoryError):
            continue
    return None


def open_app_logs(manifest: PodManifest, apps: Sequence[str], directory: int) -> list[AppLog]:
    """
    Return the logs of `apps`, in the pod's directory of logs or at the places of annotations.

    PodError for a place that cannot be opened.
    """
    runtimes = {runtime.name: runtime for runtime in manifest.apps}
    host = manifest.annotation(Annotation.LOG_DIRECTORY)
    return [AppLog(app, directory, _open_place(app, host, runtimes[app])) for app in apps]


def _open_place(app: str, host: str | None, runtime: RuntimeApp) -> tuple[int, str] | None:
    path = runtime.annotation(Annotation.LOG_PATH)
    if host is None or path is None:
        return None
    try:
        top = os.open(host, _FLAGS | os.O_CLOEXEC)
        try:
            return open_parent(top, path), posixpath.basename(path)
        finally:
            os.close(top)
    except OSError as error:
        raise PodError(f'app "{app}": its log is at {host}/{path}: {describe(error)}') from error


def await_writers(app: str, directory: int) -> None:
    """
    Wait until no sidecar writes to an earlier file of an app's log; PodError after a long time.

    A sidecar opens the file of the log's name whenever the sidecar has the lock, so later writes go there.
    """
    try:
        lock = syscalls.openat2(directory, f"{app}.lock", os.O_RDONLY | os.O_NONBLOCK, resolve=_RESOLVE)
    except FileNotFoundError:
        return  # the log is empty
    try:
        deadline = time.monotonic() + _WRITE_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise PodError(f'app "{app}": a sidecar that does not go on has its log') from None
            time.sleep(_WRITE_POLL_SECONDS)
    finally:
        os.close(lock)


class PodLogs(Value):
    """The logs of some apps of a pod, and the pod's directory of logs."""

    pod: Pod
    logs: Sequence[AppLog]
    directory: int


def passes(pod: Pod, logs: Sequence[AppLog], directory: int, output: int, until: float | None) -> Iterator[Pass]:
    """
    Yield whenever there may be more to read, the first time at once, until all logs are complete.

    `until` is the latest time to stop, in seconds since 1970. BrokenPipeError when the descriptor `output` has no
    reader any more.
    """
    for [moment] in passes_of_pods([PodLogs(pod=pod, logs=logs, directory=directory)], output, until):
        yield moment


def passes_of_pods(watched: Sequence[PodLogs], output: int, until: float | None) -> Iterator[list[Pass]]:
    """Yield as `passes` for the logs of several pods, with a pass for each pod."""
    directories = {each for one in watched for each in (one.directory, *(log.directory for log in one.logs))}
    changes = [syscalls.inotify_watch(f"/proc/self/fd/{each}", _EVENTS) for each in directories]
    try:
        checked_at, over = -_LOCK_CHECK_SECONDS, [False] * len(watched)
        while True:
            now = time.monotonic()
            if now - checked_at >= _LOCK_CHECK_SECONDS:
                over = [not one.pod.refresh() or one.pod.state is not PodState.RUNNING for one in watched]
                checked_at = now
            is_late = until is not None and time.time() > until
            # Checked before the logs are read, so that the last lines before an end are still read.
            moments = [
                Pass(complete=frozenset(log.app for log in one.logs if ended or is_late or log.is_complete()))
                for one, ended in zip(watched, over, strict=True)
            ]
            for one in watched:
                for log in one.logs:
                    log.find_files()
            yield moments
            if all(len(moment.complete) == len(one.logs) for one, moment in zip(watched, moments, strict=True)):
                return
            _wait(changes, output)
    finally:
        for each in changes:
            os.close(each)


def _wait(changes: Sequence[int], output: int) -> None:
    ready = wait_events({**dict.fromkeys(changes, select.POLLIN), output: 0}, _LOCK_CHECK_SECONDS)
    if output in ready:
        raise BrokenPipeError
    for each in changes:
        if each in ready:
            os.read(each, _EVENT_BYTES)


def reopen_logs(pod: Pod, apps: Sequence[str]) -> None:
    """Have a running pod let go of log files of apps that were moved; PodError if a file may still be written to."""
    if pod.state is not PodState.RUNNING:
        raise PodError(f'pod "{pod.uuid}" is not running: its state is "{pod.state}"')
    directory = open_log_directory(pod, wait=False)
    for app in apps:
        if ask_stage1(pod, ReopenLogs(app=app)) is None:
            raise PodError(f'pod "{pod.uuid}": its stage1 keeps no logs that minit can read')
        if directory is not None:
            await_writers(app, directory)
