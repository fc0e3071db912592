"""From a service of a project and its image to the request for a pod, and the way to run the pod. Pure."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping

from minit.base import jsontext
from minit.base.errors import PodError
from minit.base.goduration import format_duration
from minit.base.value import Value
from minit.compose.document import SECRETS
from minit.compose.keys import HOST_GATEWAY, size_text
from minit.compose.project import Project
from minit.compose.tables import Grant, Health, Membership, Network, PublishedPort, Service, Storage
from minit.kubernetes.containers import ContainerMount
from minit.kubernetes.request import command_of, memory_volumes, mount_details, read_only_points
from minit.kubernetes.volumes import PodVolume, VolumeFile
from minit.manifest.annotations import Annotation
from minit.manifest.app import CPU, CPU_SHARES, MEMORY, NO_NEW_PRIVILEGES, OOM_SCORE_ADJ, Isolator, Port
from minit.manifest.creatednetwork import NetworkDriver, NetworkRequest
from minit.manifest.limits import limit_isolator
from minit.manifest.names import sanitize_ac_name
from minit.manifest.pod import ExposedPort, Mount, Volume
from minit.podfiles import paths
from minit.pods.requests import AppRequest, PodRequest
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.images.treestore import IMAGE
from minit.stage0.pods.appsection import PROFILE_FILE, AppOverrides, Device, Pairs
from minit.stage0.pods.nameservice import stated_service
from minit.stage0.stage1.entrypoints import RunOptions
from minit.stage0.volumes import NAMED

# Docker's labels, by which the pods of a project are found.
PROJECT_LABEL = "com.docker.compose.project"
SERVICE_LABEL = "com.docker.compose.service"
NUMBER_LABEL = "com.docker.compose.container-number"
HASH_LABEL = "com.docker.compose.config-hash"
IMAGE_LABEL = "com.docker.compose.image"
NETWORK_LABEL = "com.docker.compose.network"
DEPENDS_LABEL = "com.docker.compose.depends_on"
DIRECTORY_LABEL = "com.docker.compose.project.working_dir"
FILES_LABEL = "com.docker.compose.project.config_files"
ONE_OFF_LABEL = "com.docker.compose.oneoff"

DEFAULT_NETWORK = "default"
# As with docker any user of a pod with its own network listens on port 80.
_OF_AN_OWN_NETWORK: Pairs = (("net.ipv4.ip_unprivileged_port_start", "0"),)

_TMPFS_MODE = 0o1777
_USUAL_MODE = 0o444
_PAGE_MODE = re.compile(r"[0-7]{1,4}")


class Unit(Value):
    """A pod of a service to be made: the number, the image, the ports of the host, and the texts of secrets."""

    project: Project
    service: Service
    number: int
    image: StoredImage
    environment: Pairs
    labels: Pairs
    ports: tuple[tuple[PublishedPort, int], ...]
    contents: Mapping[str, bytes]
    """The bytes of secrets and configs that are no files of the host, by `secrets/NAME` and `configs/NAME`."""

    @property
    def name(self) -> str:
        """The name of the pod."""
        return pod_name(self.project, self.service, self.number)


def pod_name(project: Project, service: Service, number: int) -> str:
    """Return the name of a pod of a service."""
    return service.container_name or f"{project.name}-{service.name}-{number}"


def app_name(service: Service) -> str:
    """Return the name of the only app of a service's pods."""
    return sanitize_ac_name(service.name)


def volume_name(project: Project, key: str) -> str:
    """Return the name of a volume of the store by its key in the project."""
    volume = dict(project.volumes)[key]
    return volume.name or (key if volume.external else f"{project.name}_{key}")


def configuration_hash(project: Project, service: Service, environment: Pairs, contents: Mapping[str, bytes]) -> str:
    """Return a text that changes when pods of the service have to be made anew."""
    ignored = ("build", "pull_policy", "scale", "depends_on", "profiles", "attach", "deploy", "env_file", "environment")
    facts = [(name, repr(getattr(service, name))) for name in Service._fields if name not in ignored]
    facts += [("resources", repr(service.deploy.resources)), ("restart", repr(service.deploy.restart_policy))]
    facts += [("environment", repr(sorted(environment)))]
    facts += [(name, hashlib.sha256(data).hexdigest()) for name, data in sorted(contents.items())]
    facts += [("volume", volume_name(project, each)) for each in _volumes_of(service)]
    facts += [("network", network) for network in networks_of(project, service)]
    facts += [("aliases", repr(aliases_of(project, service)))]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _volumes_of(service: Service) -> list[str]:
    return [each.source for each in service.volumes if each.type == "volume" and each.source is not None]


def network_name(project: Project, key: str) -> str:
    """Return the name of a network by its key in the project."""
    network = dict(project.networks).get(key, Network())
    return network.name or (key if network.external else f"{project.name}_{key}")


def network_keys(service: Service) -> tuple[str, ...]:
    """Return the keys of a service's networks, none for the host's network and for none."""
    if service.network_mode in ("host", "none"):
        return ()
    return tuple(key for key, _ in service.networks) or (DEFAULT_NETWORK,)


def networks_of(project: Project, service: Service) -> tuple[str, ...]:
    """Return the entries of --net for a service."""
    if service.network_mode in ("host", "none"):
        return (service.network_mode,)
    entries = []
    for key in network_keys(service):
        membership = dict(service.networks).get(key, Membership())
        addresses = [each for each in (membership.ipv4_address, membership.ipv6_address) if each is not None]
        entries.append(":".join((network_name(project, key), ";".join(f"IP={each}" for each in addresses))).rstrip(":"))
    return tuple(entries)


def network_request(project: Project, key: str) -> NetworkRequest:
    """Return the request for a network of the project."""
    network = dict(project.networks).get(key, Network())
    subnets = [each for each in network.ipam.config if each.subnet is not None]
    return NetworkRequest(
        name=network_name(project, key),
        driver=NetworkDriver(network.driver),
        subnets=tuple(each.subnet for each in subnets if each.subnet is not None),
        gateways=tuple(each.gateway for each in subnets if each.gateway is not None),
        ranges=tuple(each.ip_range for each in subnets if each.ip_range is not None),
        has_ipv6=network.enable_ipv6,
        is_internal=network.internal,
        options=network.driver_opts,
        labels=tuple({**dict(network.labels), PROJECT_LABEL: project.name, NETWORK_LABEL: key}.items()),
    )


def aliases_of(project: Project, service: Service) -> tuple[str, ...]:
    """Return the names of a service's pods beside the names of the pods, some as NETWORK:NAME for one network."""
    names = [service.name]
    for key, membership in service.networks:
        names += [f"{network_name(project, key)}:{alias}" for alias in membership.aliases]
    for _, other in project.services:
        for link in other.links:
            target, _, alias = link.partition(":")
            names += [alias] if target == service.name and alias else []
    return tuple(dict.fromkeys(names))


def pod_request(unit: Unit) -> tuple[PodRequest, tuple[PodVolume, ...]]:
    """Return the request for a pod, and its volumes with their files."""
    service = unit.service
    volumes, mounts = _storage(unit)
    app = AppRequest(reference=unit.image.id, overrides=_overrides(unit, volumes, mounts))
    request = PodRequest(
        apps=(app,),
        name=unit.name,
        host_pids=service.pid == "host",
        volumes=tuple(volume.volume for volume in volumes),
        ports=tuple(_exposed(number, port, host) for number, (port, host) in enumerate(unit.ports)),
        ports_place="ports",
        annotations=_pod_annotations(unit, volumes),
        user_annotations=service.annotations,
        user_labels=unit.labels,
    )
    return request, volumes


def run_options(unit: Unit) -> RunOptions:
    """Return the way to run a pod."""
    service = unit.service
    names: dict[str, tuple[str, ...]] = {}
    for address, name in service.extra_hosts:
        if address == HOST_GATEWAY:
            raise PodError(f"services.{service.name}.extra_hosts: {HOST_GATEWAY} is not known here")
        names[address] = (*names.get(address, ()), name)
    hostname = service.hostname
    if hostname is not None and service.domainname is not None:
        hostname = f"{hostname}.{service.domainname}"
    return RunOptions(
        networks=networks_of(unit.project, service),
        hostname=None if service.network_mode == "host" else hostname,
        name_service=stated_service(service.dns, service.dns_search, service.dns_opt, tuple(names.items())),
        ipc="parent" if service.ipc == "host" else None,
    )


def _exposed(number: int, port: PublishedPort, host: int) -> ExposedPort:
    name = f"p{number}-{port.target}-{port.protocol}"
    inner = Port(name=name, protocol=port.protocol, port=port.target)
    return ExposedPort(name=name, host_port=host, host_ip=port.host_ip, pod_port=inner)


def _storage(unit: Unit) -> tuple[tuple[PodVolume, ...], tuple[ContainerMount, ...]]:
    """Return the volumes of a service with their mounts."""
    volumes: list[PodVolume] = []
    mounts: list[ContainerMount] = []

    def add(volume: PodVolume, mount: ContainerMount) -> None:
        volumes.append(volume)
        mounts.append(mount)

    def next_name() -> str:
        return f"v{len(volumes)}"

    for storage in unit.service.volumes:
        add(*_mounted(unit.project, storage, next_name()))
    for text in unit.service.tmpfs:
        add(*_in_memory(text, next_name()))
    for section, grants, directory in (
        ("secrets", unit.service.secrets, SECRETS),
        ("configs", unit.service.configs, "/"),
    ):
        for grant in grants:
            add(*_granted(unit, section, grant, directory, next_name()))
    return tuple(volumes), tuple(mounts)


def _mounted(project: Project, storage: Storage, name: str) -> tuple[PodVolume, ContainerMount]:
    options = storage.image if storage.type == "image" else storage.volume
    mount = ContainerMount(
        volume=name,
        path=storage.target,
        read_only=storage.read_only or storage.type == "image",
        sub_path=options.subpath,
        propagation=storage.bind.propagation,
    )
    if storage.type == "tmpfs":
        size = None if storage.tmpfs.size is None else str(storage.tmpfs.size)
        volume = Volume(name=name, kind="empty", mode=f"{storage.tmpfs.mode:04o}", uid=0, gid=0)
        return PodVolume(volume=volume, in_memory=True, size=size), mount
    if storage.type == "bind":
        recursive = False if storage.bind.recursive == "disabled" else None
        return PodVolume(volume=Volume(name=name, kind="host", source=storage.source, recursive=recursive)), mount
    if storage.type == "image":
        return PodVolume(volume=Volume(name=name, kind=IMAGE, source=storage.source, read_only=True)), mount
    if storage.source is None:
        return PodVolume(volume=Volume(name=name, kind="empty", mode="0755", uid=0, gid=0)), mount
    return PodVolume(volume=Volume(name=name, kind=NAMED, source=volume_name(project, storage.source))), mount


def _in_memory(text: str, name: str) -> tuple[PodVolume, ContainerMount]:
    path, _, options = text.partition(":")
    given = dict(option.partition("=")[::2] for option in options.split(",") if option)
    mode = given.get("mode", f"{_TMPFS_MODE:o}")
    unknown = [option for option in given if option not in ("size", "mode", "rw", "noexec", "nosuid", "nodev", "exec")]
    if unknown or not path.startswith("/") or not _PAGE_MODE.fullmatch(mode):
        raise PodError(f'tmpfs: expected a path, perhaps with :size=64m,mode=1777, got "{text}"')
    size = str(size_text(given["size"], f'tmpfs "{text}"')) if "size" in given else None
    volume = Volume(name=name, kind="empty", mode=mode.zfill(4), uid=0, gid=0)
    return PodVolume(volume=volume, in_memory=True, size=size), ContainerMount(volume=name, path=path)


def _granted(unit: Unit, section: str, grant: Grant, directory: str, name: str) -> tuple[PodVolume, ContainerMount]:
    """Return a secret or a config as a file of its own, or as the host's file."""
    source = dict(unit.project.secrets if section == "secrets" else unit.project.configs)[grant.source]
    path = grant.path(directory)
    content = unit.contents.get(f"{section}/{grant.source}")
    if content is None or (source.file is not None and grant.mode is None):
        volume = Volume(name=name, kind="host", source=source.file, read_only=True)
        return PodVolume(volume=volume), ContainerMount(volume=name, path=path, read_only=True)
    file = VolumeFile(path="content", data=content, mode=_USUAL_MODE if grant.mode is None else grant.mode)
    volume = Volume(name=name, kind="empty", read_only=True, mode="0755", uid=0, gid=0)
    return PodVolume(volume=volume, files=(file,)), ContainerMount(
        volume=name, path=path, read_only=True, sub_path="content"
    )


def _overrides(unit: Unit, volumes: tuple[PodVolume, ...], mounts: tuple[ContainerMount, ...]) -> AppOverrides:
    service = unit.service
    command = service.command
    if service.entrypoint is not None:
        # An entrypoint of the file leaves nothing of the image's command.
        words = (*service.entrypoint, *(command or ()))
        program, arguments = (words[0], words[1:]) if words else (None, ())
    else:
        program, arguments = command_of(None, command or (), unit.image.manifest)
    user, group = service.user or (None, None)
    log = service.logging.driver != "none"
    outputs = "log+tty" if log else "tty"
    seccomp = [rest for kind, _, rest in (each.partition(":") for each in service.security_opt) if kind == "seccomp"]
    return AppOverrides(
        name=app_name(service),
        exec=program,
        arguments=arguments,
        user=user,
        group=group,
        working_directory=service.working_dir,
        supplementary_gids=service.group_add or None,
        environment=unit.environment,
        read_only_root_fs=service.read_only,
        mount_points=read_only_points(mounts),
        mounts=tuple(Mount(volume=mount.volume, path=mount.path) for mount in mounts),
        devices=tuple(
            Device(source=each.source, target=each.target or each.source, access=each.permissions)
            for each in service.devices
        ),
        ignores_healthcheck=service.healthcheck is not None,
        isolators=tuple(_isolators(service)),
        added_capabilities=frozenset() if service.privileged else frozenset(service.cap_add),
        dropped_capabilities=frozenset() if service.privileged else frozenset(service.cap_drop),
        seccomp=(seccomp[-1] if seccomp[-1] == "unconfined" else f"{PROFILE_FILE}{seccomp[-1]}") if seccomp else None,
        annotations=tuple(_app_annotations(service, mounts).items()),
        user_labels=service.labels,
        stdin="tty" if service.tty and service.stdin_open else "stream" if service.stdin_open else None,
        stdout=outputs if service.tty else None if log else "null",
        stderr=outputs if service.tty else None if log else "null",
    )


def _isolators(service: Service) -> Iterable[Isolator]:
    limits = service.deploy.resources.limits
    memory = service.mem_limit if service.mem_limit is not None else limits.memory
    cpus = service.cpus or limits.cpus
    if memory:
        yield limit_isolator(MEMORY, str(memory))
    if cpus is not None:
        yield limit_isolator(CPU, cpus)
    if service.cpu_shares is not None:
        yield Isolator(name=CPU_SHARES, value=service.cpu_shares)
    if service.oom_score_adj is not None:
        yield Isolator(name=OOM_SCORE_ADJ, value=service.oom_score_adj)
    if not service.privileged and {"no-new-privileges:", "no-new-privileges:true"} & {*service.security_opt}:
        yield Isolator(name=NO_NEW_PRIVILEGES, value=True)


def _app_annotations(service: Service, mounts: tuple[ContainerMount, ...]) -> dict[str, str]:
    found: dict[str, str] = {Annotation.PLAIN_ENVIRONMENT: "true", **dict(_restarts(service))}
    if service.working_dir is not None:
        found[Annotation.MAKE_WORKING_DIRECTORY] = "true"
    if service.user is not None and service.user[1] is None:
        found[Annotation.IMAGE_GROUPS] = "primary,supplementary"
    if service.healthcheck is not None:
        checks = _checks(service.healthcheck)
        found |= {Annotation.HEALTH: _json(checks)} if checks else {}
    hooks = {
        name: {"exec": list(hook.command)}
        for name, hook in (("post-start", service.post_start), ("pre-stop", service.pre_stop))
        if hook is not None
    }
    found |= {Annotation.HOOKS: _json(hooks)} if hooks else {}
    if service.privileged:
        found[Annotation.PRIVILEGED] = "true"
    for kind, _, rest in (each.partition(":") for each in service.security_opt):
        if kind == "apparmor" and rest != "unconfined":
            found[Annotation.APPARMOR_PROFILE] = rest
    if service.stop_signal is not None:
        found[Annotation.STOP_SIGNAL] = service.stop_signal
    pids = service.pids_limit if service.pids_limit is not None else service.deploy.resources.limits.pids
    if pids is not None and pids > 0:
        found[Annotation.PIDS_LIMIT] = str(pids)
    for name, limits in ((Annotation.LIMITS, _limits(service)), (Annotation.ULIMITS, dict(service.ulimits))):
        found |= {name: _json(limits)} if limits else {}
    options = dict(service.logging.options)
    if "max-size" in options:
        found[Annotation.LOG_SIZE] = str(size_text(options["max-size"], f"services.{service.name}.logging"))
    if "max-file" in options:
        found[Annotation.LOG_FILES] = options["max-file"]
    details = mount_details(mounts)
    found |= {Annotation.MOUNTS: _json(details)} if details else {}
    if any(mount.path in paths.ETC_FILES for mount in mounts):
        found[Annotation.VOLUMES_OVER_FILES] = "true"
    return found


def _restarts(service: Service) -> Pairs:
    """Return the annotations about restarts; the key `restart` counts more than the deployment's policy."""
    policy, limit = service.restart or ("never", None)
    found: list[tuple[str, str]] = []
    deployed = service.deploy.restart_policy
    if service.restart is None and deployed is not None:
        policy = {"none": "never", "any": "always"}.get(deployed.condition, deployed.condition)
        limit = deployed.max_attempts
        if deployed.delay:
            found.append((Annotation.RESTART_DELAY, format_duration(max(deployed.delay, 0.01))))
        if deployed.window:
            found.append((Annotation.RESTART_RESET, format_duration(max(deployed.window, 0.01))))
    if policy == "never":
        return ()
    found.append((Annotation.RESTART, policy))
    if limit is not None:
        found.append((Annotation.RESTART_LIMIT, str(limit)))
    return tuple(found)


def _checks(health: Health) -> dict[str, object]:
    """
    Return the checks of an app for its healthcheck.

    Until the first good result there is a check at least every `start_interval`; the app fails after the same time as
    with the healthcheck's own interval.
    """
    if health.disable or not health.test or health.test[0] == "NONE":
        return {}
    kind, *words = health.test
    command = ["/bin/sh", "-c", words[0]] if kind == "CMD-SHELL" else words
    interval = max(min(health.interval, health.start_interval), 0.1)
    patience = health.start_period + health.retries * health.interval
    timeout = format_duration(max(health.timeout, 0.1))
    usual = {"exec": command, "asApp": True, "timeout": timeout}
    starting = {"interval": format_duration(interval), "failures": min(max(math.ceil(patience / interval), 1), 1000)}
    steady = {"interval": format_duration(max(health.interval, 0.1)), "failures": health.retries}
    return {"startup": {**usual, **starting, "action": "none"}, "readiness": {**usual, **steady}}


def _limits(service: Service) -> dict[str, object]:
    found: dict[str, object] = {}
    if service.cpuset is not None:
        found["cpus"] = service.cpuset
    if service.cpu_quota is not None:
        found["cpuQuota"] = service.cpu_quota
    if service.cpu_period is not None:
        found["cpuPeriod"] = service.cpu_period
    memory = service.mem_limit or service.deploy.resources.limits.memory
    if service.memswap_limit is not None and memory:
        found["swap"] = -1 if service.memswap_limit < 0 else max(service.memswap_limit - memory, 0)
    return found


def _pod_annotations(unit: Unit, volumes: tuple[PodVolume, ...]) -> Pairs:
    service = unit.service
    found: dict[str, str] = {Annotation.STOP_GRACE: format_duration(service.stop_grace_period)}
    in_memory = memory_volumes(volumes)
    found |= {Annotation.MEMORY_VOLUMES: _json(in_memory)} if in_memory else {}
    if network_keys(service):
        found[Annotation.POD_ALIASES] = ",".join(aliases_of(unit.project, service))
    sysctls = (*(_OF_AN_OWN_NETWORK if network_keys(service) else ()), *service.sysctls)
    if sysctls:
        found[Annotation.SYSCTLS] = _json(dict(sysctls))
    if service.shm_size is not None:
        found[Annotation.SHM_SIZE] = str(service.shm_size)
    if service.privileged:
        found[Annotation.ALLOW_PRIVILEGED] = "true"
    if service.cgroup_parent is not None:
        found[Annotation.CGROUP_PARENT] = service.cgroup_parent
    return tuple(found.items())


def _json(value: object) -> str:
    return jsontext.dump(value).decode("ascii")
