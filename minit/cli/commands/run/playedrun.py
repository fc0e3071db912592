"""Running the pods of a Kubernetes YAML file: prepared first, then run here, together, or in the background."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import click

from minit.archives.imagenames import is_source
from minit.base.errors import MinitError, PodError, describe
from minit.base.progress import Progress
from minit.base.value import Value, replace
from minit.cli.commands.pods.endingcommands import cleanup_of
from minit.cli.commands.run.podrequest import choose_overlay
from minit.cli.commands.run.runcommands import collect_run_options
from minit.cli.commands.run.seccompfile import read_profile
from minit.cli.commands.run.stage1choice import choose_stage1
from minit.cli.invocation import Invocation, flush_output
from minit.cli.owncommand import own_command
from minit.cli.text.progressdisplay import show_progress
from minit.linux.hostnotify import DESCRIPTOR_VARIABLE, READY, SOCKET_VARIABLE, STOPPING, Host, take_host
from minit.linux.loop import Loop, wait_readable
from minit.stage0.images.fetching import image_file, resolve_image
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import PullPolicy, StoredImage
from minit.stage0.images.treestore import ImageVolumes, TreeStore
from minit.stage0.kubernetes.manifest import plan_kubernetes_pod
from minit.stage0.kubernetes.playedpods import take_down, wait_until_running
from minit.stage0.kubernetes.pods import KubernetesPod
from minit.stage0.pods.poddirectory import Pod, PodState, open_pod, uuid_of_name
from minit.stage0.pods.podmanifest import PlannedApp
from minit.stage0.start.newpod import PodRequest, discarded_on_failure, finish, prepare_pod
from minit.stage0.start.run import run_pod
from minit.stage0.start.volumefiles import give_named_volumes, prepare_host_paths, write_volume_files

_WHOLE_MACHINE = 1 << 30
Options = dict[str, object]

# What the launcher of a pod takes for the wish to stop it.
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPWR, signal.SIGRTMIN + 3)
_CHUNK_BYTES = 256


class Play(Value):
    """The options of the command about making and running pods."""

    networks: tuple[str, ...]
    stage1_path: str | None
    no_overlay: bool
    quiet: bool
    profiles: Path
    """The directory of profiles of system calls."""


def run_all(invocation: Invocation, pods: Sequence[KubernetesPod], how: Play, *, detach: bool) -> None:
    """Run pods; in the foreground the exit code is that of the first that fails."""
    waiting = [pod for pod in pods if pod.job is not None and _count(pods, pod.job.name) > pod.job.parallel]
    if detach and waiting:
        raise click.UsageError(
            f'--detach: the Job of Pod "{waiting[0].names.name}" has more completions than may run at a time:'
            " it runs in the foreground only"
        )
    if len(pods) == 1 and not detach:
        _run_here(invocation, pods[0], how)
    prepared: list[_PreparedPod] = []
    try:
        for pod in pods:
            prepared.append(_prepare(invocation, pod, how))
    except BaseException:
        _discard(invocation, prepared)
        raise
    if detach:
        for each in prepared:
            _run_in_background(invocation, each)
        return
    code = _run_together(prepared, take_host(os.environ, invocation.note))
    _discard(invocation, [each for each in prepared if _has_never_run(invocation, each)])
    flush_output()
    raise SystemExit(code)


def _discard(invocation: Invocation, prepared: Sequence[_PreparedPod]) -> None:
    """Remove pods that are not to run after all."""
    with Store(invocation.data) as store, cleanup_of(invocation, store) as cleanup:
        for each in prepared:
            with suppress(MinitError, OSError):
                take_down(invocation.data, each.uuid, 0, cleanup, invocation.note)


def _has_never_run(invocation: Invocation, prepared: _PreparedPod) -> bool:
    with suppress(PodError), open_pod(invocation.data, prepared.uuid) as pod:
        return pod.state is PodState.PREPARED
    return False


def _count(pods: Sequence[KubernetesPod], job: str) -> int:
    return sum(pod.job is not None and pod.job.name == job for pod in pods)


def _run_here(invocation: Invocation, kubernetes: KubernetesPod, how: Play) -> None:
    options = collect_run_options(invocation, _run_options(kubernetes, how.networks), quiet=how.quiet)
    with Store(invocation.data) as store:
        trees = TreeStore(invocation.data, store)
        pod = _make(invocation, store, trees, kubernetes, how)
        with discarded_on_failure(pod):
            run_pod(pod, trees, options, invocation.note, flush_output)


def _prepare(invocation: Invocation, kubernetes: KubernetesPod, how: Play) -> _PreparedPod:
    options = _run_options(kubernetes, how.networks)
    collect_run_options(invocation, options)
    with (
        Store(invocation.data) as store,
        _make(invocation, store, TreeStore(invocation.data, store), kubernetes, how) as pod,
    ):
        finish(pod)
    return _PreparedPod(
        uuid=pod.uuid,
        command=_command(invocation, pod.uuid, options),
        job=None if kubernetes.job is None else kubernetes.job.name,
        parallel=_WHOLE_MACHINE if kubernetes.job is None else kubernetes.job.parallel,
    )


def _make(invocation: Invocation, store: Store, trees: TreeStore, kubernetes: KubernetesPod, how: Play) -> Pod:
    """Return a pod as `prepare_pod` does, with the files of its volumes."""
    with show_progress(invocation, quiet=how.quiet) as progress:
        request = PodRequest(
            stage1=choose_stage1(invocation, store, how.stage1_path, None)(progress),
            manifest_bytes=b"",
            apps=(),
            overlay=choose_overlay(invocation, no_overlay=how.no_overlay, private_users=False),
            name=_free_name(invocation, kubernetes.names.name),
        )
        apps, manifest = _plan(invocation, store, kubernetes, how.profiles, progress)
        prepare_host_paths(kubernetes.volumes)
        request = replace(request, apps=apps, manifest_bytes=manifest)
        pod = prepare_pod(invocation.data, store, trees, request, progress, lambda uuid: None)
    with discarded_on_failure(pod):
        write_volume_files(pod, kubernetes.volumes)
        security = kubernetes.security
        give_named_volumes(invocation.data, kubernetes.volumes, if_root_differs=security.group_if_root_differs)
    return pod


def _free_name(invocation: Invocation, name: str) -> str | None:
    uuid = uuid_of_name(invocation.data, name)
    if uuid is None:
        return name
    invocation.note(
        f'warning: the name "{name}" is that of pod {uuid}: the new pod has none (--replace removes the old)'
    )
    return None


def _run_options(pod: KubernetesPod, net: tuple[str, ...]) -> Options:
    """Return what the options of run-prepared would hold."""
    if pod.host_network and net:
        raise click.UsageError(f'--net: Pod "{pod.names.name}" has the network of the host (hostNetwork)')
    return {
        "net": ("host",) if pod.host_network else net,
        "hostname": None if pod.host_network else pod.hostname,
        "dns": ("none",) if pod.dns.none else pod.dns.servers,
        "dns_search": pod.dns.searches,
        "dns_opt": pod.dns.options,
        "dns_domain": None,
        "hosts_entry": tuple(f"{address}={name}" for address, name in pod.hosts),
        "interactive": False,
        "ipc": "parent" if pod.host_ipc else None,
    }


def _plan(
    invocation: Invocation, store: Store, pod: KubernetesPod, profiles: Path, progress: Progress
) -> tuple[tuple[PlannedApp, ...], bytes]:
    containers = (*pod.init_containers, *pod.containers)
    images = {
        container.name: _find_image(invocation, store, container.image, container.pull_policy, progress)
        for container in containers
    }
    trees = TreeStore(invocation.data, store)
    volumes = []
    for volume in pod.volumes:

        def find(reference: str, policy: str | None = volume.pull_policy) -> StoredImage:
            return _find_image(invocation, store, reference, policy, progress)

        [provided] = ImageVolumes(store, trees, find, progress).provide([volume.volume])
        volumes.append(replace(volume, volume=provided))
    pod = replace(pod, volumes=tuple(volumes))
    wanted = {container.security.profile for container in containers if container.security.profile is not None}
    texts = {path: _read_profile(profiles / path) for path in wanted}
    return plan_kubernetes_pod(pod, images, os.getuid(), os.getgid(), invocation.data, invocation.insecure, texts)


def _read_profile(path: Path) -> str:
    try:
        return read_profile(str(path))
    except OSError as error:
        raise PodError(f"seccompProfile: cannot read {describe(error)}") from error


def _find_image(
    invocation: Invocation, store: Store, reference: str, policy: str | None, progress: Progress
) -> StoredImage:
    """Return the image of a reference as minit has them, or else of one to a registry, which need not say so."""
    chosen = {"Always": PullPolicy.UPDATE, "Never": PullPolicy.NEVER}.get(policy or "", PullPolicy.NEW)
    verify_tls = invocation.verifies_tls
    if is_source(reference) or image_file(reference) is not None:
        return resolve_image(store, reference, progress, chosen, verify_tls=verify_tls)
    if policy != "Always":
        try:
            return store.find(reference)
        except MinitError:
            if reference.startswith("sha512-"):
                raise
    return resolve_image(store, f"docker://{reference}", progress, chosen, verify_tls=verify_tls)


def _command(invocation: Invocation, uuid: str, options: Options) -> tuple[str, ...]:
    command = [*own_command(), *_global_options(invocation), "run-prepared"]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        values = value if isinstance(value, tuple) else () if value in (None, False) else (value,)
        command += [f"{flag}={each}" for each in values]
    return (*command, uuid)


def _run_in_background(invocation: Invocation, pod: _PreparedPod) -> None:
    process = subprocess.Popen(
        pod.command,
        env=_environment_of_pods(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        wait_until_running(invocation.data, pod.uuid, lambda: process.poll() is not None)
    except PodError as error:
        said = process.stderr.read().decode(errors="replace").strip().splitlines() if process.poll() is not None else []
        raise PodError(said[-1] if said else str(error)) from error
    finally:
        # Output from now on has nobody to read it; the logs have it too.
        process.stderr.close()
    invocation.say(pod.uuid)


def _global_options(invocation: Invocation) -> list[str]:
    words = [f"--dir={invocation.data}", f"--local-config={invocation.local_config}"]
    words += ["--debug"] if invocation.debug else []
    return [*words, f"--insecure-options={','.join(sorted(invocation.insecure))}"] if invocation.insecure else words


class _PreparedPod(Value):
    """A pod that is prepared: its UUID, the words that run it, and how many of its Job may run at a time."""

    uuid: str
    command: tuple[str, ...]
    job: str | None
    parallel: int


def _run_together(pods: Sequence[_PreparedPod], host: Host) -> int:
    """
    Run pods until all have ended, and return the code of the first that failed.

    When one has failed, no other of its Job is started; after a signal that stops them, none at all. `host` is told
    READY once, when all pods that run are ready or have done their work, and STOPPING at such a signal.
    """
    together = _Together(pods, host)
    with _heard_signals() as signals:
        return together.run(signals)


def _environment_of_pods() -> dict[str, str]:
    """Return this process's environment without the words of a service manager, which are for it alone."""
    return {name: value for name, value in os.environ.items() if name not in (SOCKET_VARIABLE, DESCRIPTOR_VARIABLE)}


class _Process:
    """
    The process that runs a pod, and the end of the pipe by which it tells that the pod is ready.

    It is the leader of a process group, so that a signal for that of `play`, as Ctrl-C is one, reaches the pod once.
    """

    def __init__(self, pod: _PreparedPod) -> None:
        self.pod = pod
        self.is_ready = False
        self.reader, writer = os.pipe()
        try:
            self.popen = subprocess.Popen(
                pod.command,
                env={**_environment_of_pods(), DESCRIPTOR_VARIABLE: str(writer)},
                pass_fds=(writer,),
                process_group=0,
            )
        except BaseException:
            os.close(self.reader)
            raise
        finally:
            os.close(writer)
        self.pidfd = os.pidfd_open(self.popen.pid)

    def read(self) -> bool:
        """Note what it tells, and return whether it has told all."""
        data = os.read(self.reader, _CHUNK_BYTES)
        self.is_ready = self.is_ready or b"\n" in data
        return self.is_ready or not data

    def end(self) -> int:
        """Return the exit code of a process that has ended; one that did its work was ready."""
        if not self.is_ready and wait_readable([self.reader], 0):
            self.read()
        os.close(self.reader)
        os.close(self.pidfd)
        code = self.popen.wait()
        self.is_ready = self.is_ready or code == 0
        return code if code >= 0 else 128 - code


class _Together:
    def __init__(self, pods: Sequence[_PreparedPod], host: Host) -> None:
        self._host = host
        self._waiting = [*pods]
        self._running: list[_Process] = []
        self._failed: set[str] = set()
        self._code = 0
        self._may_be_ready = True
        self._is_stopping = False
        self._loop = Loop()

    def run(self, signals: int) -> int:
        """Return when all have ended; `signals` has a byte for each signal, its number."""
        self._loop.watch(signals, lambda _: self._stop(os.read(signals, _CHUNK_BYTES)))
        try:
            while self._waiting or self._running:
                self._start()
                if self._running:
                    self._loop.turn()
                self._tell_readiness()
        except BaseException:
            for process in self._running:
                process.popen.terminate()
            for process in self._running:
                process.popen.wait()
            raise
        return self._code

    def _start(self) -> None:
        for pod in [*self._waiting]:
            if pod.job in self._failed:
                self._waiting.remove(pod)
            elif sum(other.pod.job == pod.job for other in self._running) < pod.parallel:
                self._waiting.remove(pod)
                process = _Process(pod)
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
                process.popen.send_signal(number)


@contextmanager
def _heard_signals() -> Iterator[int]:
    """A descriptor with a byte for each signal of _STOPS that comes meanwhile, its number; what is ignored stays so."""
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
