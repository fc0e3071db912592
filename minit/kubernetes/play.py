"""
Pods of a YAML file of Kubernetes as pods of minit: prepared first, then run here, together, or in the background.

User annotations of the pods have the names of the Pods, and find the pods again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

from minit.base.errors import MinitError, PodError, describe
from minit.base.progress import Progress
from minit.base.value import Value, replace
from minit.kubernetes.pods import KubernetesPod
from minit.kubernetes.references import PodNames
from minit.kubernetes.request import NAME_ANNOTATION, NAMESPACE_ANNOTATION, pod_request, run_options
from minit.kubernetes.volumes import give_named_volumes, prepare_host_paths, write_volume_files
from minit.linux.forks import PLAYED_IN_BACKGROUND, PLAYED_POD, fork
from minit.linux.hostnotify import DESCRIPTOR_VARIABLE, READY, SOCKET_VARIABLE, STOPPING, Host, take_host
from minit.linux.loop import Loop, wait_readable
from minit.linux.stdio import flush_output
from minit.pods import preparing, running
from minit.pods.caller import Caller
from minit.pods.ending import cleanup_of, take_down
from minit.pods.hostfiles import read_profile
from minit.pods.requests import AppRequest, Stage1Request, StartRequest
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import PullPolicy, StoredImage
from minit.stage0.images.treestore import IMAGE
from minit.stage0.pods.poddirectory import (
    ADDRESSABLE_PLACES,
    DELETED_STATES,
    Pod,
    PodState,
    open_pod,
    uuid_of_name,
    walk_pods,
)
from minit.stage0.pods.podstatus import read_pod_manifest, read_shown_pid
from minit.stage0.pods.waiting import Pauses
from minit.stage0.reports.podtraces import read_failure
from minit.stage0.stage1.entrypoints import RunOptions
from minit.stage0.start.newpod import discarded_on_failure, finish
from minit.stage0.start.run import claim_prepared

_WHOLE_MACHINE = 1 << 30
# Signals that the launcher of a pod treats as a request to stop the pod.
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPWR, signal.SIGRTMIN + 3)
_CHUNK_BYTES = 256
_LONGEST_FAILURE_BYTES = 4096

Show = Callable[[], AbstractContextManager[Progress]]
"""Shows progress for the length of a with block."""
Tell = Callable[[BaseException], int | None]
"""Tells the user why a pod could not be run, and returns the exit code of its process."""


class Play(Value):
    """How pods of a file are made and run."""

    networks: tuple[str, ...] = ()
    stage1: Stage1Request = Stage1Request()
    wants_overlay: bool = True
    is_quiet: bool = False
    profiles: Path
    """The directory of profiles of system calls."""


def run_all(caller: Caller, pods: Sequence[KubernetesPod], how: Play, show: Show) -> int:
    """Run pods here until all have ended; the code is the first failing pod's."""
    if len(pods) == 1:
        _run_here(caller, pods[0], how, show)
    prepared = _prepare_all(caller, pods, how, show)
    together = _Together(prepared, take_host(os.environ, caller.note), partial(_start, caller), partial(_tell, caller))
    with _heard_signals() as signals:
        code = together.run(signals)
    _discard(caller, [each for each in prepared if _has_never_run(caller, each)])
    return code


def run_in_background(
    caller: Caller, pods: Sequence[KubernetesPod], how: Play, show: Show, announce: Callable[[str], None]
) -> None:
    """Run pods in the background; `announce` gets the UUID of each when it runs."""
    waiting = [pod for pod in pods if pod.job is not None and _count(pods, pod.job.name) > pod.job.parallel]
    if waiting:
        raise PodError(
            f'--detach: the Job of Pod "{waiting[0].names.name}" has more completions than may run at a time:'
            " it runs in the foreground only"
        )
    for each in _prepare_all(caller, pods, how, show):
        _start_in_background(caller, each)
        announce(each.uuid)


def find_played(data: Path, names: PodNames) -> list[tuple[str, PodState]]:
    """Return the pods made of a Pod of these names, with their states; other pods are passed over in silence."""
    found = []
    for pod in walk_pods(data, ADDRESSABLE_PLACES, lambda text: None):
        try:
            annotations = dict(read_pod_manifest(pod).user_annotations)
        except (OSError, MinitError):
            continue
        wanted = {NAME_ANNOTATION: names.name, NAMESPACE_ANNOTATION: names.namespace}
        if pod.state not in DELETED_STATES and wanted.items() <= annotations.items():
            found.append((pod.uuid, pod.state))
    return found


class _PreparedPod(Value):
    """A prepared pod, the way to run the pod, and the number of pods of the same Job that may run at a time."""

    uuid: str
    options: RunOptions
    job: str | None
    parallel: int


def _count(pods: Sequence[KubernetesPod], job: str) -> int:
    return sum(pod.job is not None and pod.job.name == job for pod in pods)


def _prepare_all(caller: Caller, pods: Sequence[KubernetesPod], how: Play, show: Show) -> list[_PreparedPod]:
    prepared: list[_PreparedPod] = []
    try:
        for pod in pods:
            options = running.options_for(caller, run_options(pod, how.networks))
            with Store(caller.data) as store, _make(caller, store, pod, how, show) as made:
                finish(made)
            parallel = _WHOLE_MACHINE if pod.job is None else pod.job.parallel
            job = None if pod.job is None else pod.job.name
            prepared.append(_PreparedPod(uuid=made.uuid, options=options, job=job, parallel=parallel))
    except BaseException:
        _discard(caller, prepared)
        raise
    return prepared


def _discard(caller: Caller, prepared: Sequence[_PreparedPod]) -> None:
    """Remove pods that will not run after all."""
    with Store(caller.data) as store, cleanup_of(caller, store) as cleanup:
        for each in prepared:
            with suppress(MinitError, OSError):
                take_down(caller.data, each.uuid, 0, cleanup, caller.note)


def _has_never_run(caller: Caller, prepared: _PreparedPod) -> bool:
    with suppress(PodError), open_pod(caller.data, prepared.uuid) as pod:
        return pod.state is PodState.PREPARED
    return False


def _run_here(caller: Caller, kubernetes: KubernetesPod, how: Play, show: Show) -> None:
    options = running.options_for(caller, replace(run_options(kubernetes, how.networks), quiet=how.is_quiet))
    with Store(caller.data) as store:
        pod = _make(caller, store, kubernetes, how, show)
        with discarded_on_failure(pod):
            running.start(caller, store, pod, StartRequest(options=options))


def _make(caller: Caller, store: Store, kubernetes: KubernetesPod, how: Play, show: Show) -> Pod:
    """Return a pod as `prepare` does, with the files of its volumes."""
    with show() as progress:
        containers = (*kubernetes.init_containers, *kubernetes.containers)
        images = {
            container.name: _find_image(caller, store, container.image, container.pull_policy, progress)
            for container in containers
        }
        wanted = {container.security.profile for container in containers if container.security.profile is not None}
        texts = {path: _read_profile(how.profiles / path) for path in wanted}
        request = pod_request(_with_images(caller, store, kubernetes, progress), images, texts)
        prepare_host_paths(kubernetes.volumes)
        request = replace(
            request,
            stage1=how.stage1,
            wants_overlay=how.wants_overlay,
            name=_free_name(caller, kubernetes.names.name),
        )
        pod = preparing.prepare(caller, store, request, progress)
    with discarded_on_failure(pod):
        write_volume_files(pod, kubernetes.volumes)
        security = kubernetes.security
        give_named_volumes(caller.data, kubernetes.volumes, if_root_differs=security.group_if_root_differs)
    return pod


def _with_images(caller: Caller, store: Store, pod: KubernetesPod, progress: Progress) -> KubernetesPod:
    """Return a Pod whose volumes have images by ids of the store."""
    volumes = []
    for each in pod.volumes:
        volume = each.volume
        if volume.kind == IMAGE:
            assert volume.source is not None
            image = _find_image(caller, store, volume.source, each.pull_policy, progress)
            volume = replace(volume, source=image.id)
        volumes.append(replace(each, volume=volume))
    return replace(pod, volumes=tuple(volumes))


def _free_name(caller: Caller, name: str) -> str | None:
    uuid = uuid_of_name(caller.data, name)
    if uuid is None:
        return name
    caller.note(f'warning: the name "{name}" is that of pod {uuid}: the new pod has none (--replace removes the old)')
    return None


def _read_profile(path: Path) -> str:
    try:
        return read_profile(str(path))
    except OSError as error:
        raise PodError(f"seccompProfile: cannot read {describe(error)}") from error


def _find_image(caller: Caller, store: Store, reference: str, policy: str | None, progress: Progress) -> StoredImage:
    chosen = {"Always": PullPolicy.UPDATE, "Never": PullPolicy.NEVER}.get(policy or "", PullPolicy.NEW)
    return preparing.find_image_or_fetch(caller, store, AppRequest(reference=reference, pull_policy=chosen), progress)


def _start(caller: Caller, pod: _PreparedPod) -> None:
    """Become the stage1 of a prepared pod."""
    with Store(caller.data) as store, open_pod(caller.data, pod.uuid) as opened:
        claim_prepared(opened)
        running.start(caller, store, opened, StartRequest(options=pod.options))


def _start_in_background(caller: Caller, pod: _PreparedPod) -> None:
    flush_output()
    reader, writer = os.pipe()

    def run() -> None:
        _leave_manager()
        _start(caller, pod)

    child = fork(PLAYED_IN_BACKGROUND, run, {"errors": writer}, tell=partial(_tell, caller))
    os.close(writer)
    try:
        _wait_until_running(caller.data, pod.uuid, lambda: os.waitpid(child, os.WNOHANG)[0] == child)
    except _Ended as error:
        said = os.read(reader, _LONGEST_FAILURE_BYTES).decode(errors="replace").strip().splitlines()
        raise PodError(said[-1] if said else str(error)) from error
    finally:
        # From now on the output has no reader; the logs have the output too.
        os.close(reader)


def _tell(caller: Caller, error: BaseException) -> int | None:
    caller.note(describe(error))
    return error.exit_code if isinstance(error, MinitError) else None


class _Ended(PodError):
    """The process that runs a pod has ended before the pod ran."""


def _wait_until_running(data: Path, uuid: str, runner_ended: Callable[[], bool]) -> None:
    """Return once a pod has a pid, or has ended well; PodError with the reason if the pod could not be started."""
    pauses = Pauses()
    with open_pod(data, uuid) as pod:
        while True:
            over = runner_ended()
            if not pod.refresh():
                raise PodError(f'pod "{uuid}" was removed before it ran')
            if read_shown_pid(pod) is not None:
                return
            if over:
                reason = read_failure(pod) or "see its output above, or `minit diagnose`"
                raise _Ended(f'pod "{uuid}" could not be started: {reason}')
            time.sleep(pauses.next_seconds())


def _leave_manager() -> None:
    """Take the words of a service manager from the environment, which are for the parent alone."""
    for name in (SOCKET_VARIABLE, DESCRIPTOR_VARIABLE):
        os.environ.pop(name, None)


class _Process:
    """
    The process that runs a pod, and the end of the pipe on which the process says that the pod is ready.

    The process leads a process group, so that a signal for the group of `play`, such as Ctrl-C, reaches the pod once.
    """

    def __init__(self, pod: _PreparedPod, start: Callable[[_PreparedPod], None], tell: Tell) -> None:
        self.pod = pod
        self.is_ready = False
        self.reader, writer = os.pipe()

        def run() -> None:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            for number in _STOPS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
            _leave_manager()
            os.environ[DESCRIPTOR_VARIABLE] = str(writer)
            os.set_inheritable(writer, True)
            start(pod)

        flush_output()
        # A signal before the process has its own dispositions waits until then.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        try:
            self.pid = fork(PLAYED_POD, run, {"ready": writer}, tell=tell)
        except BaseException:
            os.close(self.reader)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
            os.close(writer)
        self.pidfd = os.pidfd_open(self.pid)

    def read(self) -> bool:
        """Note the message on the pipe, and return whether the message is whole."""
        data = os.read(self.reader, _CHUNK_BYTES)
        self.is_ready = self.is_ready or b"\n" in data
        return self.is_ready or not data

    def signal(self, number: int) -> None:
        """Send a signal to the process, which has not been waited for."""
        signal.pidfd_send_signal(self.pidfd, number)

    def end(self) -> int:
        """Return the exit code of a process that has ended; a process that did its work was ready."""
        if not self.is_ready and wait_readable([self.reader], 0):
            self.read()
        os.close(self.reader)
        os.close(self.pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.is_ready = self.is_ready or code == 0
        return code if code >= 0 else 128 - code


class _Together:
    """
    Pods that run until all have ended.

    When a pod has failed, no other pod of the Job is started; after a signal to stop, no pod at all. `host` is told
    READY once, when all pods that run are ready or have done their work, and STOPPING at such a signal.
    """

    def __init__(
        self, pods: Sequence[_PreparedPod], host: Host, start: Callable[[_PreparedPod], None], tell: Tell
    ) -> None:
        self._host = host
        self._become = start
        self._tell = tell
        self._waiting = [*pods]
        self._running: list[_Process] = []
        self._failed: set[str] = set()
        self._code = 0
        self._may_be_ready = True
        self._is_stopping = False
        self._loop = Loop()

    def run(self, signals: int) -> int:
        """Return when all have ended; `signals` has a byte for each signal, the signal's number."""
        self._loop.watch(signals, lambda _: self._stop(os.read(signals, _CHUNK_BYTES)))
        try:
            while self._waiting or self._running:
                self._start()
                if self._running:
                    self._loop.turn()
                self._tell_readiness()
        except BaseException:
            for process in self._running:
                process.signal(signal.SIGTERM)
            for process in self._running:
                process.end()
            raise
        return self._code

    def _start(self) -> None:
        for pod in [*self._waiting]:
            if pod.job in self._failed:
                self._waiting.remove(pod)
            elif sum(other.pod.job == pod.job for other in self._running) < pod.parallel:
                self._waiting.remove(pod)
                process = _Process(pod, self._become, self._tell)
                self._running.append(process)
                self._loop.watch(process.reader, partial(self._on_readiness, process))
                self._loop.watch(process.pidfd, partial(self._on_end, process))

    def _tell_readiness(self) -> None:
        if self._may_be_ready and all(process.is_ready for process in self._running):
            self._may_be_ready = False
            self._host.tell(READY)

    def _on_readiness(self, process: _Process, _: int) -> None:
        if process.read():
            self._loop.unwatch(process.reader)

    def _on_end(self, process: _Process, _: int) -> None:
        self._loop.unwatch(process.reader)
        self._loop.unwatch(process.pidfd)
        self._running.remove(process)
        code = process.end()
        self._code = self._code or code
        if code and process.pod.job is not None:
            self._failed.add(process.pod.job)
        if not process.is_ready:
            self._may_be_ready = False

    def _stop(self, numbers: bytes) -> None:
        self._waiting.clear()
        self._may_be_ready = False
        if not self._is_stopping:
            self._is_stopping = True
            self._host.tell(STOPPING)
        for number in numbers:
            for process in self._running:
                process.signal(number)


@contextmanager
def _heard_signals() -> Iterator[int]:
    """A descriptor with a byte, the number, for each signal of _STOPS that arrives; ignored signals stay ignored."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    heard = [number for number in _STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda number, frame: None) for number in heard}
    try:
        yield reader
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(reader)
        os.close(writer)
