"""The pods of a project, by their labels: finding, waiting for, starting, stopping and removing them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from minit.base.errors import MinitError, PodError
from minit.base.value import Value
from minit.compose.loading import LoadedProject
from minit.compose.translate import (
    DEPENDS_LABEL,
    NUMBER_LABEL,
    ONE_OFF_LABEL,
    PROJECT_LABEL,
    SERVICE_LABEL,
    volume_name,
)
from minit.manifest.annotations import Annotation
from minit.manifest.pod import ExposedPort
from minit.pods import running
from minit.pods.caller import Caller
from minit.pods.ending import cleanup_of, take_down
from minit.pods.networks import remove_network
from minit.pods.stopping import stop
from minit.stage0.garbage.storegc import remove_volume
from minit.stage0.images.store import Store
from minit.stage0.networks import list_networks
from minit.stage0.pods.poddirectory import (
    ADDRESSABLE_PLACES,
    DELETED_STATES,
    ENDED_STATES,
    Pod,
    PodState,
    open_pod,
    read_name,
    walk_pods,
)
from minit.stage0.pods.podstatus import is_ready, read_exit_code, read_pod_manifest
from minit.stage0.pods.waiting import Pauses, wait_until_ended
from minit.stage0.stage1.calls import read_live
from minit.stage0.volumes import list_volumes

_LOOK_SECONDS = 0.05

Tell = Callable[[str], None]
"""Tells the user what was done."""


class ProjectPod(Value):
    """A pod of a project, by its labels."""

    uuid: str
    state: PodState
    name: str | None
    labels: Mapping[str, str]
    ports: tuple[ExposedPort, ...] = ()

    @property
    def service(self) -> str:
        """The name of the service."""
        return self.labels.get(SERVICE_LABEL, "")

    @property
    def number(self) -> int:
        """The number among the pods of the service."""
        text = self.labels.get(NUMBER_LABEL, "")
        return int(text) if text.isdecimal() and len(text) < 10 else 0

    @property
    def shown(self) -> str:
        """The name, or else the UUID."""
        return self.name or self.uuid


def find_pods(caller: Caller, project: str, *, with_one_offs: bool = False) -> list[ProjectPod]:
    """
    Return the pods of a project by service and number; pods that cannot be read are none.

    Pods of `compose run` are left out unless `with_one_offs`.
    """
    found = []
    for pod in walk_pods(caller.data, ADDRESSABLE_PLACES, lambda text: None):
        try:
            manifest = read_pod_manifest(pod)
        except (OSError, MinitError):
            continue
        labels = dict(manifest.user_labels)
        is_meant = with_one_offs or labels.get(ONE_OFF_LABEL) != str(True)
        if is_meant and pod.state not in DELETED_STATES and labels.get(PROJECT_LABEL) == project:
            name = read_name(pod.fd)
            found.append(ProjectPod(uuid=pod.uuid, state=pod.state, name=name, labels=labels, ports=manifest.ports))
    return sorted(found, key=lambda pod: (pod.service, pod.number, pod.uuid))


def project_names(caller: Caller) -> dict[str, list[ProjectPod]]:
    """Return the pods of all projects, by the names of the projects."""
    names: dict[str, list[ProjectPod]] = {}
    for pod in walk_pods(caller.data, ADDRESSABLE_PLACES, lambda text: None):
        with suppress(OSError, MinitError):
            name = dict(read_pod_manifest(pod).user_labels).get(PROJECT_LABEL)
            if name is not None and pod.state not in DELETED_STATES:
                names.setdefault(name, [])
    return {name: find_pods(caller, name) for name in sorted(names)}


def require_check(caller: Caller, wanted: ProjectPod) -> None:
    """Raise PodError for a pod that nobody can tell to be healthy."""
    with open_pod(caller.data, wanted.uuid) as pod:
        if not _has_checks(pod):
            raise PodError(f"pod {wanted.shown} has no healthcheck")


def _has_checks(pod: Pod) -> bool:
    return any(app.annotation(Annotation.HEALTH) for app in read_pod_manifest(pod).apps)


def wait_until_healthy(caller: Caller, wanted: ProjectPod, timeout_seconds: float) -> None:
    """Return when a pod is ready; PodError if its check fails, or the pod ends, or after the time."""
    deadline, pauses = time.monotonic() + timeout_seconds, Pauses()
    with open_pod(caller.data, wanted.uuid) as pod:
        while True:
            if not pod.refresh() or pod.state is not PodState.RUNNING:
                raise PodError(f"pod {wanted.shown} has ended{_code_of(pod)}")
            if is_ready(pod):
                return
            if time.monotonic() > deadline:
                raise PodError(f"pod {wanted.shown} is not healthy in time")
            failure = _failed_check(pod)
            if failure is not None:
                raise PodError(f"pod {wanted.shown} is unhealthy{failure and f': {failure}'}")
            time.sleep(max(pauses.next_seconds(), _LOOK_SECONDS))


def wait_until_completed(caller: Caller, wanted: ProjectPod) -> None:
    """Return when a pod has ended with 0; PodError if it ends with another code."""
    with open_pod(caller.data, wanted.uuid) as pod:
        wait_until_ended(pod, math.inf)
        if _exit_code(pod) != 0:
            raise PodError(f"pod {wanted.shown} has ended{_code_of(pod)}")


def exit_code_of(caller: Caller, wanted: ProjectPod) -> int | None:
    """Return the exit code of a pod's app, None for a pod that is gone or runs."""
    with suppress(MinitError, OSError), open_pod(caller.data, wanted.uuid) as pod:
        return _exit_code(pod)
    return None


def _exit_code(pod: Pod) -> int | None:
    """Return the exit code of the pod's first app, None if the app runs; MinitError or OSError for unreadable files."""
    apps = read_pod_manifest(pod).apps
    return read_exit_code(pod, apps[0].name) if apps else None


def _code_of(pod: Pod) -> str:
    with suppress(MinitError, OSError):
        code = _exit_code(pod)
        return f" with {code}" if code is not None else ""
    return ""


def health_of(pod: Pod) -> str:
    """Return healthy, unhealthy or starting; nothing for a pod without checks, or one that does not run."""
    if pod.state is not PodState.RUNNING:
        return ""
    if not _has_checks(pod):
        return ""
    return "healthy" if is_ready(pod) else "starting" if _failed_check(pod) is None else "unhealthy"


def _failed_check(pod: Pod) -> str | None:
    """Return the text of a failed check of a running pod, None without one."""
    with suppress(MinitError, OSError):
        for fields in read_live(pod).values():
            health = fields.get("health")
            for result in health.values() if isinstance(health, dict) else ():
                if isinstance(result, dict) and result.get("healthy") is False:
                    return str(result.get("text", ""))
    return None


def reversed_order(pods: Sequence[ProjectPod]) -> list[ProjectPod]:
    """Return pods, each before those that it depends on, by the labels."""
    edges: dict[str, list[str]] = {}
    for pod in pods:
        words = pod.labels.get(DEPENDS_LABEL, "").split(",")
        edges[pod.service] = [word.partition(":")[0] for word in words if word]
    ordered: list[str] = []
    seen: set[str] = set()

    def add(name: str) -> None:
        if name not in seen:
            seen.add(name)
            for other in edges.get(name, ()):
                add(other)
            ordered.append(name)

    for name in edges:
        add(name)
    return sorted(pods, key=lambda pod: (-ordered.index(pod.service), -pod.number))


def restarted_with(pods: Sequence[ProjectPod], services: Sequence[str]) -> list[str]:
    """Return services with those that are restarted when these are, by the labels."""
    found = list(services)
    for name in found:
        for pod in pods:
            words = [word.split(":") for word in pod.labels.get(DEPENDS_LABEL, "").split(",")]
            if pod.service not in found and any(word[0] == name and word[-1] == "true" for word in words):
                found.append(pod.service)
    return found


def stop_pods(caller: Caller, pods: Sequence[ProjectPod], timeout_seconds: float | None, tell: Tell) -> None:
    """Stop pods, each before those that it depends on, and wait for the ends."""
    for each in reversed_order(pods):
        with suppress(PodError), open_pod(caller.data, each.uuid) as pod:
            if pod.state is PodState.RUNNING:
                stop(pod, grace_seconds=timeout_seconds)
                tell(f"Pod {each.shown}  Stopped")


def start_pods(caller: Caller, pods: Sequence[ProjectPod], tell: Tell) -> None:
    """Start pods that have ended, each after those that it depends on."""
    with Store(caller.data) as store:
        for each in reversed(reversed_order(pods)):
            if each.state in ENDED_STATES:
                start_pod(caller, store, each, tell)


def start_pod(caller: Caller, store: Store, wanted: ProjectPod, tell: Tell) -> None:
    """Start a pod that has ended; nothing for a pod that runs."""
    with open_pod(caller.data, wanted.uuid) as pod:
        if pod.state is not PodState.RUNNING:
            running.start_again(caller, store, pod, waits_for_checks=False)
            tell(f"Pod {wanted.shown}  Started")


def remove_pods(caller: Caller, pods: Sequence[ProjectPod], timeout_seconds: float | None, tell: Tell) -> None:
    """Stop and remove pods, each before those that it depends on."""
    for each in reversed_order(pods):
        remove_pod(caller, each, timeout_seconds, tell)


def remove_pod(caller: Caller, wanted: ProjectPod, timeout_seconds: float | None, tell: Tell | None) -> None:
    """Stop and remove a pod; nothing for a pod that is gone."""
    with Store(caller.data) as store, cleanup_of(caller, store) as cleanup:
        try:
            opened = open_pod(caller.data, wanted.uuid)
        except PodError:
            return  # somebody else has removed it
        with opened as pod:
            stop(pod, grace_seconds=timeout_seconds)
        take_down(caller.data, wanted.uuid, math.inf, cleanup, caller.note)
    if tell is not None:
        tell(f"Pod {wanted.shown}  Removed")


def remove_networks(caller: Caller, project: str, tell: Tell) -> None:
    """Remove the networks that were made for a project."""
    for network in list_networks(caller.local_config, caller.note):
        if network.is_created and dict(network.labels).get(PROJECT_LABEL) == project:
            remove_network(caller, network.name)
            tell(f"Network {network.name}  Removed")


def remove_volumes(caller: Caller, loaded: LoadedProject, tell: Tell) -> None:
    """Remove the volumes of a project that are not external."""
    present = {volume.name for volume in list_volumes(caller.data)}
    for key, volume in loaded.project.volumes:
        name = volume_name(loaded.project, key)
        if not volume.external and name in present:
            remove_volume(caller.data, name, caller.note)
            tell(f"Volume {name}  Removed")
