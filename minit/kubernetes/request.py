"""From a Pod of Kubernetes and its images to the request for a pod, and the way to run it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from minit.base import jsontext
from minit.base.errors import ManifestError, PodError
from minit.base.value import replace
from minit.kubernetes.containers import Container, ContainerMount
from minit.kubernetes.pods import KubernetesPod
from minit.kubernetes.volumes import PodVolume
from minit.manifest.annotations import OWN, Annotation
from minit.manifest.app import MountPoint, Port
from minit.manifest.image import ANNOTATION_ENTRYPOINT, ImageManifest
from minit.manifest.pod import ExposedPort, Mount
from minit.podfiles import paths
from minit.pods.requests import AppRequest, PodRequest
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.pods.appsection import AppOverrides, Pairs
from minit.stage0.pods.nameservice import MODE_NONE, stated_service
from minit.stage0.stage1.entrypoints import RunOptions
from minit.stage0.volumes import NAMED

Json = dict[str, object]

# Annotations of the pod, to find the pod again; programs with the Container Runtime Interface have the same names.
NAME_ANNOTATION = "io.kubernetes.pod.name"
NAMESPACE_ANNOTATION = "io.kubernetes.pod.namespace"
GROUP_ANNOTATION = "io.kubernetes.pod.fs-group"

_INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
_NO_PROFILES: Mapping[str, str] = {}
_RESTARTS = {"Always": "always", "OnFailure": "on-failure", "Never": "never"}


def pod_request(
    pod: KubernetesPod, images: Mapping[str, StoredImage], profiles: Mapping[str, str] = _NO_PROFILES
) -> PodRequest:
    """
    Return the request for a Pod; `images` are the containers' images by name.

    `profiles` are values of the annotation minit/seccomp, by the paths in containers.
    """
    apps: list[AppRequest] = []
    before: list[str] = []

    def add(container: Container, restart: str) -> None:
        image = images[container.name]
        overrides = _overrides(pod, container, image.manifest, before, restart, profiles)
        apps.append(AppRequest(reference=image.id, overrides=overrides))

    for container in pod.init_containers:
        add(container, _init_restart(pod, container))
        before.append(container.name if container.restart else f"{container.name}:completed")
    for container in pod.containers:
        add(container, _RESTARTS[pod.restart_policy])
    return PodRequest(
        apps=tuple(apps),
        name=pod.names.name,
        host_pids=pod.host_pids,
        private_users=not pod.host_users,
        volumes=tuple(volume.volume for volume in pod.volumes),
        ports=() if pod.host_network else tuple(_ports(pod)),
        ports_place="hostPort",
        annotations=_annotations(pod),
        user_annotations=_user_annotations(pod),
        user_labels=pod.names.labels,
    )


def run_options(pod: KubernetesPod, networks: tuple[str, ...]) -> RunOptions:
    """Return the way to run a Pod; PodError for networks beside the host's."""
    if pod.host_network and networks:
        raise PodError(f'--net: Pod "{pod.names.name}" has the network of the host (hostNetwork)')
    dns = pod.dns
    names: dict[str, tuple[str, ...]] = {}
    for address, name in pod.hosts:
        names[address] = (*names.get(address, ()), name)
    service = stated_service(dns.servers, dns.searches, dns.options, tuple(names.items()))
    return RunOptions(
        networks=("host",) if pod.host_network else networks,
        hostname=None if pod.host_network else pod.hostname,
        name_service=replace(service, resolv=MODE_NONE) if dns.none else service,
        ipc="parent" if pod.host_ipc else None,
    )


def command_of(
    command: tuple[str, ...] | None, arguments: tuple[str, ...], image: ImageManifest
) -> tuple[str | None, tuple[str, ...]]:
    """
    Return the program instead of the image's program, None for the image's, and the arguments after the program.

    `command` stands in the place of the image's entrypoint, `arguments` in that of the default arguments.
    """
    if command:
        return command[0], (*command[1:], *arguments)
    entrypoint = image.annotation(ANNOTATION_ENTRYPOINT)
    if not arguments or (entrypoint is None and not image.from_docker):
        # An image that does not tell the program from the default arguments has no default arguments.
        return None, arguments
    if entrypoint is None:
        return arguments[0], arguments[1:]
    words = jsontext.parse(entrypoint.encode(), f'image "{image.name}": annotation {ANNOTATION_ENTRYPOINT}')
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ManifestError(f'image "{image.name}": annotation {ANNOTATION_ENTRYPOINT}: expected a list of strings')
    every = (*map(str, words), *arguments)
    return every[0], every[1:]


def _init_restart(pod: KubernetesPod, container: Container) -> str:
    """Return when an init container is restarted: by its own policy, else until success unless the Pod says never."""
    if container.restart is not None:
        return _RESTARTS[container.restart]
    return "never" if pod.restart_policy == "Never" else "on-failure"


def _overrides(
    pod: KubernetesPod,
    container: Container,
    image: ImageManifest,
    before: Sequence[str],
    restart: str,
    profiles: Mapping[str, str],
) -> AppOverrides:
    program, arguments = command_of(container.command, container.arguments or (), image)
    security = container.security
    annotations = {Annotation.RESTART: restart} if restart != "never" else {}
    if pod.job is not None and container.restart is None:
        # A pod is a whole row of attempts, even if Kubernetes makes a pod for each attempt.
        annotations = {
            Annotation.RESTART: "on-failure",
            Annotation.RESTART_LIMIT: str(pod.job.retries),
            Annotation.RESTART_RESET: "8760h",
        }
    if before:
        annotations[Annotation.AFTER] = ",".join(before)
    if container.working_directory is not None:
        annotations[Annotation.MAKE_WORKING_DIRECTORY] = "true"
    if container.health is not None:
        annotations[Annotation.HEALTH] = container.health
    if container.hooks is not None:
        annotations[Annotation.HOOKS] = container.hooks
    if security.privileged:
        annotations[Annotation.PRIVILEGED] = "true"
    if security.profile is not None:
        annotations[Annotation.SECCOMP] = profiles[security.profile]
    if security.apparmor is not None:
        annotations[Annotation.APPARMOR_PROFILE] = security.apparmor
    if container.restart is not None:
        annotations[Annotation.SIDECAR] = "true"
    if container.stop_signal is not None:
        annotations[Annotation.STOP_SIGNAL] = container.stop_signal
    later = pod.names.later(*arguments, *(value for _, value in container.environment))
    if later:
        annotations[Annotation.EXPAND] = jsontext.dump(later).decode("ascii")
    if any(mount.path in paths.ETC_FILES for mount in container.mounts):
        annotations[Annotation.VOLUMES_OVER_FILES] = "true"
    details = mount_details(container.mounts)
    if details:
        annotations[Annotation.MOUNTS] = jsontext.dump(details).decode("ascii")
    stream = "tty" if container.tty else "stream"
    return AppOverrides(
        name=container.name,
        ignores_healthcheck=True,
        exec=program,
        arguments=arguments,
        user=None if security.user is None else str(security.user),
        group=None if security.group is None else str(security.group),
        working_directory=container.working_directory,
        supplementary_gids=pod.security.supplementary or None,
        environment=(*container.environment, *_index(pod)),
        read_only_root_fs=security.read_only_root,
        mount_points=read_only_points(container.mounts),
        mounts=tuple(Mount(volume=mount.volume, path=mount.path) for mount in container.mounts),
        isolators=(*container.resources.isolators(), *security.isolators),
        annotations=tuple(annotations.items()),
        stdin=stream if container.stdin else None,
        stdout="log+tty" if container.tty else None,
        stderr="log+tty" if container.tty else None,
    )


def _index(pod: KubernetesPod) -> tuple[tuple[str, str], ...]:
    index = None if pod.job is None else pod.job.index
    return () if index is None else ((_INDEX_VARIABLE, str(index)),)


def _annotations(pod: KubernetesPod) -> Pairs:
    """Return the annotations of the pod; the user's annotations win."""
    in_memory = memory_volumes(pod.volumes)
    own: dict[str, str] = {Annotation.STOP_GRACE: f"{pod.grace_seconds}s"}
    own |= {Annotation.MEMORY_VOLUMES: jsontext.dump(in_memory).decode("ascii")} if in_memory else {}
    if pod.deadline_seconds is not None:
        own[Annotation.DEADLINE] = f"{pod.deadline_seconds}s"
    if pod.security.sysctls:
        own[Annotation.SYSCTLS] = jsontext.dump(dict(pod.security.sysctls)).decode("ascii")
    if any(container.security.privileged for container in (*pod.init_containers, *pod.containers)):
        own[Annotation.ALLOW_PRIVILEGED] = "true"
    if not pod.host_users and any(each.volume.kind in ("host", NAMED) for each in pod.volumes):
        own[Annotation.IDMAP] = "true"  # as a kubelet mounts all volumes
    own |= {name: value for name, value in pod.names.annotations if name.startswith(OWN)}
    return tuple(own.items())


def _user_annotations(pod: KubernetesPod) -> Pairs:
    group = pod.security.group
    return (
        *((name, value) for name, value in pod.names.annotations if not name.startswith(OWN)),
        (NAME_ANNOTATION, pod.names.name),
        (NAMESPACE_ANNOTATION, pod.names.namespace),
        *(() if group is None else ((GROUP_ANNOTATION, str(group)),)),
    )


def read_only_points(every: Sequence[ContainerMount]) -> tuple[MountPoint, ...]:
    """Return the volumes without a writable mount in a container."""
    by_volume: dict[str, list[ContainerMount]] = {}
    for mount in every:
        by_volume.setdefault(mount.volume, []).append(mount)
    return tuple(
        MountPoint(name=volume, path=mounts[0].path, read_only=True)
        for volume, mounts in by_volume.items()
        if all(mount.read_only for mount in mounts)
    )


def mount_details(mounts: Sequence[ContainerMount]) -> Json:
    """Return stage1's facts about mounts beside the mounts' places, by place."""
    only = {point.name for point in read_only_points(mounts)}
    details: Json = {}
    for mount in mounts:
        detail: Json = {"subPath": mount.sub_path} if mount.sub_path else {}
        detail |= {} if mount.propagation is None else {"propagation": mount.propagation}
        detail |= {"readOnly": True} if mount.read_only and mount.volume not in only else {}
        details |= {mount.path: detail} if detail else {}
    return details


def memory_volumes(volumes: Sequence[PodVolume]) -> Json:
    """Return the value of the annotation for the volumes that are in memory."""
    return {
        volume.volume.name: {} if volume.size is None else {"size": volume.size}
        for volume in volumes
        if volume.in_memory
    }


def _ports(pod: KubernetesPod) -> Iterator[ExposedPort]:
    for container in (*pod.init_containers, *pod.containers):
        for port in container.ports:
            inner = Port(name=port.name, protocol=port.protocol, port=port.port)
            yield ExposedPort(name=port.name, host_port=port.host_port, host_ip=port.host_ip, pod_port=inner)
