"""
The content of the node: sandboxes and containers, in memory, as last read from the pods' files.

Lists and statuses are answered from memory; a kubelet asks for everything every second.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

import trio

from minit.base.errors import LaunchError, MinitError, PodError
from minit.base.harmless import harmless
from minit.base.value import Value
from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code
from minit.cri.records import ContainerRecord, SandboxRecord
from minit.cri.refusal import refuse_impossible_words
from minit.plan.entering import MAXIMUM_PROFILE_BYTES, decode_profile
from minit.podfiles.boundedfile import read_bounded
from minit.podfiles.paths import enter_profile
from minit.stage0.apps.enter import attach_command, enter_as_app
from minit.stage0.images.treestore import tree_path
from minit.stage0.pods.poddirectory import ADDRESSABLE_PLACES, ENDED_STATES, Pod, PodState, open_pod
from minit.stage0.pods.podstatus import (
    APP_CREATED,
    APP_EXITED,
    APP_PAUSED,
    APP_RUNNING,
    AppStatus,
    PodStatus,
    is_ready,
    read_pid_to_enter,
    read_pod_manifest,
    read_pod_status,
)
from minit.stage0.reports.podtraces import read_end, read_kill
from minit.stage0.reports.stats import read_subcgroup
from minit.stage0.reports.usage import APPS

T = TypeVar("T")

_STATES = {
    APP_CREATED: api.CONTAINER_CREATED,
    APP_RUNNING: api.CONTAINER_RUNNING,
    APP_PAUSED: api.CONTAINER_RUNNING,
    APP_EXITED: api.CONTAINER_EXITED,
}
_START_ERROR = "StartError"
_REASONS = {"oom-killed": "OOMKilled", "exec failed": _START_ERROR, "start failed": _START_ERROR}
_NOT_STARTED = 128  # as other runtimes have it
_KILLED = 137  # of an app whose pod was killed before it could write down anything
_APP_NAME_DIGITS = 8


class Container:
    """A container: the request, and the state; times in nanoseconds since 1970, 0 for not yet."""

    def __init__(self, sandbox: Sandbox, record: ContainerRecord) -> None:
        request = record.read()
        self.sandbox = sandbox
        self.record = record
        self.id = record.id
        self.config = request.config
        self.resources = record.read_resources() or request.config.linux.resources
        self.app = app_name(request.config.metadata)
        self.created_ns = record.made_ns or 0
        self.state: api.ContainerState = api.CONTAINER_CREATED
        self.told_state = self.state
        """The last one that was known, by which events are told."""
        self.started_ns = 0
        self.finished_ns = 0
        self.exit_code = 0
        self.reason = ""
        self.message = ""
        self.user: api.ContainerUser | None = None

    @property
    def group(self) -> str | None:
        """The path of the control group, None as long as there is none."""
        pod = self.sandbox.group
        return None if pod is None else os.path.join(pod, APPS, f"{self.app}.service")

    def follow(
        self, status: AppStatus | None, end: Mapping[str, object], kill: Mapping[str, object] | None = None
    ) -> None:
        """Take the pod's facts about the app, None for an app the pod no longer knows, and the way PID 1 was killed."""
        if status is None:
            self.state = api.CONTAINER_UNKNOWN
            return
        self.state = _STATES.get(status.state, api.CONTAINER_UNKNOWN)
        self.started_ns = status.started_ns or 0
        if self.state == api.CONTAINER_EXITED:
            self.finished_ns = status.finished_ns or max(self.started_ns, self.created_ns)
            self.exit_code = _exit_code(end, status.exit_code)
            reason = str(end.get("reason"))
            self.reason = _REASONS.get(reason, "Completed" if self.exit_code == 0 else "Error")
            if self.reason == _START_ERROR:
                self.exit_code = _NOT_STARTED
                self.message = harmless(str(end.get("end") or ""))
            elif status.exit_code is None:
                # As a kubelet is told something, it is told that the code is none of the program's.
                kill = kill or {}
                self.reason = _REASONS.get(str(kill.get("reason")), "Error")
                how = harmless(str(kill.get("end") or "nothing was written down"))
                self.message = f"{how}: how the container has ended is not known"


class Sandbox:
    """A sandbox: the request, the pod, and the containers by id."""

    def __init__(self, record: SandboxRecord, uuid: str) -> None:
        request = record.read()
        self.record = record
        self.uuid = uuid
        self.config = request.config
        self.handler = request.runtime_handler
        self.created_ns = record.made_ns or 0
        self.is_ready = False
        self.is_released = False
        """Whether its networks were given back already, as far as this daemon knows."""
        self.pid: int | None = None
        self.group: str | None = None
        """The path of its control groups, which all that is its own has in common, once there is one."""
        self.addresses: tuple[str, ...] = ()
        self.containers: dict[str, Container] = {}

    @property
    def has_own_network(self) -> bool:
        """Tell whether the sandbox is not in the host's network."""
        return self.config.linux.security_context.namespace_options.network != api.NODE

    def follow(self, data: Path) -> None:
        """Read the state of the pod and of the apps; nothing is known of apps of a missing or unreadable pod."""
        try:
            with open_pod(data, self.uuid) as pod:
                self.is_ready = pod.state is PodState.RUNNING and is_ready(pod)
                self.pid = read_pid_to_enter(pod) if self.is_ready else None
                self.group = self.group or read_subcgroup(pod)
                status = read_pod_status(pod)
                self.addresses = _addresses(status)
                apps = {app.name: app for app in status.apps}
                kill = read_kill(pod) if pod.state in ENDED_STATES else None
                for container in self.containers.values():
                    container.user = container.user or _read_user(pod, container.app)
                    container.follow(apps.get(container.app), read_end(pod, container.app) or {}, kill)
        except MinitError as error:
            if isinstance(error, PodError):
                self.is_ready = False
                self.pid = None
            for container in self.containers.values():
                if container.state != api.CONTAINER_EXITED:
                    container.follow(None, {})


class Program(Value):
    """A program that reaches into a container: words, directory, environment if not the daemon's."""

    words: list[str]
    directory: Path
    environment: Mapping[str, str] | None = None


Note = Callable[[Sandbox, str, api.ContainerEventType], None]
"""Takes a sandbox, the id of a container or of the sandbox itself, and what has become of that."""


class Node:
    """All sandboxes by the pods' UUIDs, and all containers by id."""

    def __init__(self, data: Path, note: Note = lambda *_: None) -> None:
        """Tell `note` of changes of sandboxes and containers."""
        self.data = data
        self.note = note
        self.sandboxes: dict[str, Sandbox] = {}
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    def lock(self, record: str) -> trio.Lock:
        """Return the lock for changes of a sandbox or of containers there, by the name of the sandbox's record."""
        return self._locks.setdefault(record, trio.Lock())

    def containers(self) -> Iterator[Container]:
        """Yield all containers."""
        for sandbox in self.sandboxes.values():
            yield from sandbox.containers.values()

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """Return a sandbox; CallError for an unknown id, or a shortened id with several sandboxes."""
        found = self.find_sandbox(sandbox_id)
        if found is None:
            raise CallError(Code.NOT_FOUND, f'no sandbox "{sandbox_id}"')
        return found

    def find_sandbox(self, sandbox_id: str) -> Sandbox | None:
        """Return a sandbox, None for an unknown id; CallError for a shortened id with several sandboxes."""
        return _named("sandbox", sandbox_id, self.sandboxes)

    def container(self, container_id: str) -> Container:
        """Return a container; CallError for an unknown id, or a shortened id with several containers."""
        found = self.find_container(container_id)
        if found is None:
            raise CallError(Code.NOT_FOUND, f'no container "{container_id}"')
        return found

    def running_container(self, container_id: str) -> Container:
        """Return a container; CallError for an unknown id, or a container that does not run."""
        found = self.container(container_id)
        if found.state != api.CONTAINER_RUNNING:
            raise CallError(Code.FAILED_PRECONDITION, f"container {container_id} does not run")
        return found

    def find_container(self, container_id: str) -> Container | None:
        """Return a container, None for an unknown id; CallError for a shortened id with several containers."""
        return _named("container", container_id, {one.id: one for one in self.containers()})

    def has_pod(self, uuid: str) -> bool:
        """Tell whether the pod still exists and can be removed."""
        return any((self.data / "pods" / place / uuid).exists() for place in ADDRESSABLE_PLACES)

    def has_app(self, container: Container) -> bool:
        """Tell whether a container's app is in the pod."""
        try:
            with open_pod(self.data, container.sandbox.uuid) as pod:
                return any(app.name == container.app for app in read_pod_manifest(pod).apps)
        except PodError:
            return False

    def enter(
        self,
        container: Container,
        command: Sequence[str],
        timeout_seconds: float | None,
        failure_fd: int | None = None,
    ) -> Program:
        """
        Return the program that runs a command as a container's user, and kills the command after some time.

        The command `app exec` would come to the same, a program later. What inherits `failure_fd` writes there why it
        cannot enter. MinitError if the pod does not run.
        """
        refuse_impossible_words(command)
        with open_pod(self.data, container.sandbox.uuid) as pod:
            find_tree = partial(tree_path, self.data)
            words = enter_as_app(pod, find_tree, container.app, command, timeout_seconds, failure_fd)
            return Program(words=words, directory=pod.path)

    def attach(self, container: Container, mode: str, options: Mapping[str, str]) -> Program:
        """
        Return the program that connects standard streams to the streams of a container named by `mode`.

        `options` are options of `minit attach` and of stage1. MinitError if the pod does not run.
        """
        with open_pod(self.data, container.sandbox.uuid) as pod:
            command = attach_command(pod, container.app, mode, options)
            return Program(words=command.words, directory=pod.path, environment=command.environment)

    def follow(self, sandbox: Sandbox) -> None:
        """Read anew how far a sandbox has come."""
        was_ready = sandbox.is_ready
        sandbox.follow(self.data)
        if sandbox.is_ready and not was_ready:
            self.note(sandbox, sandbox.uuid, api.CONTAINER_CREATED_EVENT)
            self.note(sandbox, sandbox.uuid, api.CONTAINER_STARTED_EVENT)
        for container in sandbox.containers.values():
            if container.state != api.CONTAINER_UNKNOWN:
                for event in _events_of(container.told_state, container.state):
                    self.note(sandbox, container.id, event)
                container.told_state = container.state
        if was_ready and not sandbox.is_ready:
            self.note(sandbox, sandbox.uuid, api.CONTAINER_STOPPED_EVENT)


def _named(kind: str, wanted: str, present: Mapping[str, T]) -> T | None:
    """Return the value of an id, or of the only id with this beginning, as crictl shows ids and people copy ids."""
    if wanted in present:
        return present[wanted]
    found = [one for full, one in present.items() if wanted and full.startswith(wanted)]
    if len(found) > 1:
        raise CallError(Code.INVALID_ARGUMENT, f'more than one {kind} begins with "{wanted}"')
    return found[0] if found else None


def app_name(metadata: api.ContainerMetadata) -> str:
    """Return the name of a container's app: the container's if possible, and the attempt, which no other app has."""
    letters = (letter if letter.isascii() and letter.isalnum() else "-" for letter in metadata.name.lower())
    name = "".join(letters).strip("-")
    if name != metadata.name or not name:
        digest = hashlib.sha256(metadata.name.encode()).hexdigest()
        name = f"{name or 'app'}-{digest[:_APP_NAME_DIGITS]}"
    return f"{name}-{metadata.attempt}"


def _events_of(before: api.ContainerState, now: api.ContainerState) -> tuple[api.ContainerEventType, ...]:
    """Return the change of a container between two looks."""
    if now == before or before == api.CONTAINER_EXITED:
        return ()
    started = (api.CONTAINER_STARTED_EVENT,) if before == api.CONTAINER_CREATED else ()
    return (*started, api.CONTAINER_STOPPED_EVENT) if now == api.CONTAINER_EXITED else started


def _exit_code(end: Mapping[str, object], recorded: int | None) -> int:
    """Return the exit code as shells have it: 128 plus the number of the signal that killed an app."""
    number, code = end.get("signal"), end.get("code")
    if isinstance(number, int):
        return 128 + number
    if isinstance(code, int):
        return code
    return _KILLED if recorded is None else recorded


def _addresses(status: PodStatus) -> tuple[str, ...]:
    found = []
    for network in map(dict, status.networks):
        found += [network[field] for field in ("ip", "ip6") if network.get(field)]
    return tuple(found)


def _read_user(pod: Pod, app: str) -> api.ContainerUser | None:
    """Return the user of an app of a pod, None if the pod has not recorded the user."""
    path = enter_profile(app)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=pod.fd)
        profile = decode_profile(read_bounded(fd, path, MAXIMUM_PROFILE_BYTES), path)
    except (OSError, LaunchError):
        return None
    ids = profile.confinement
    # Dict for the order, with the group itself first.
    groups = dict.fromkeys((ids.gid, *ids.supplementary_gids))
    return api.ContainerUser(linux=api.LinuxContainerUser(uid=ids.uid, gid=ids.gid, supplemental_groups=groups))
