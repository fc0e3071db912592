"""
The keys of services and of their resources: a table of each object of the specification, and the values. Pure.

docs/compose.md has the same tables.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Callable

from minit.base.errors import NetworkError, PodError
from minit.base.processors import Processor
from minit.base.value import Value
from minit.compose.keys import (
    MOST,
    Key,
    Keys,
    Pairs,
    Read,
    Reading,
    V,
    address,
    capability,
    decimal,
    each_of,
    flag,
    group_id,
    host_entry,
    hostname,
    ignored,
    named_of,
    network_mode,
    non_empty,
    number,
    object_of,
    pairs,
    path,
    platform,
    pull_policy,
    read_fields,
    reads,
    reads_with,
    refused,
    restart_policy,
    seconds,
    security_option,
    size,
    size_or_none,
    text,
    texts,
    ulimit,
    user,
    variables,
    words,
)
from minit.manifest.app import MAX_PORT
from minit.manifest.creatednetwork import NetworkDriver, check_network_name
from minit.manifest.limits import MAX_CPU_SHARES, MIN_CPU_SHARES
from minit.manifest.reader import Node
from minit.manifest.ulimits import RESOURCES as RLIMITS
from minit.stage0.pods.poddirectory import check_name
from minit.stage0.volumes import NAME_FORM, is_volume_name


class Dependency(Value):
    """A service that another one waits for."""

    condition: str = "service_started"
    required: bool = True
    restart: bool = False


CONDITIONS = ("service_started", "service_healthy", "service_completed_successfully")
DEPENDENCY: Keys = {
    "condition": reads(lambda node: node.one_of(*CONDITIONS)),
    "required": reads(flag),
    "restart": reads(flag),
}


class Health(Value):
    """A healthcheck; no `test` is the image's, and durations are in seconds."""

    test: tuple[str, ...] = ()
    interval: float = 30.0
    timeout: float = 30.0
    retries: int = 3
    start_period: float = 0.0
    start_interval: float = 5.0
    disable: bool = False


def _test(node: Node) -> tuple[str, ...]:
    test = words(node)
    if not test or test[0] not in ("CMD", "CMD-SHELL", "NONE") or (test[0] != "NONE" and len(test) < 2):
        raise node.error("a list that begins with CMD, CMD-SHELL or NONE")
    return test


HEALTHCHECK: Keys = {
    "test": reads(_test),
    "interval": reads(seconds),
    "timeout": reads(seconds),
    "retries": reads(number(1, 1000)),
    "start_period": reads(seconds),
    "start_interval": reads(seconds),
    "disable": reads(flag),
}


class PublishedPort(Value):
    """A port of a service; `published` is a port of the host or a range to choose from, None for any."""

    target: int
    published: str | None = None
    host_ip: str | None = None
    protocol: str = "tcp"


def _published(node: Node) -> str | None:
    value = text(node)
    if not re.fullmatch(r"[0-9]{1,5}(-[0-9]{1,5})?", value) or any(int(each) > MAX_PORT for each in value.split("-")):
        raise node.error("a port, or a range of ports")
    return None if value == "0" else value


def _protocol(node: Node) -> str:
    return node.one_of("tcp", "udp")


PORT: Keys = {
    "target": reads(number(1, MAX_PORT)),
    "published": reads(_published),
    "host_ip": reads(address),
    "protocol": reads(_protocol),
    "mode": ignored("there is one machine"),
    "name": ignored("a name is for the reader of the file"),
    "app_protocol": ignored("a hint for others"),
}


class BindOptions(Value):
    """How a path of the host is mounted."""

    create_host_path: bool = True
    propagation: str | None = None
    recursive: str = "enabled"


class VolumeOptions(Value):
    """How a named volume is mounted."""

    nocopy: bool = False
    subpath: str = ""


class TmpfsOptions(Value):
    """Size in bytes and mode of a volume in memory."""

    size: int | None = None
    mode: int = 0o1777


class Storage(Value):
    """A mount of a service; without a `source` the volume is the pod's alone."""

    type: str
    target: str
    source: str | None = None
    read_only: bool = False
    bind: BindOptions = BindOptions()
    volume: VolumeOptions = VolumeOptions()
    tmpfs: TmpfsOptions = TmpfsOptions()
    image: VolumeOptions = VolumeOptions()


def _inner(node: Node) -> str:
    return node.matching(lambda path: not path.startswith("/") and ".." not in path.split("/"), "a path without ..")


BIND: Keys = {
    "create_host_path": reads(flag),
    "propagation": reads(
        lambda node: node.one_of("private", "rprivate", "shared", "rshared", "slave", "rslave").removeprefix("r")
    ),
    "recursive": reads(lambda node: node.one_of("enabled", "disabled")),
    "selinux": ignored("minit has no labels of SELinux"),
}
VOLUME_OPTIONS: Keys = {
    "nocopy": refused("a new volume begins with the image's files"),
    "subpath": reads(_inner),
    "labels": ignored("volumes have no labels"),
}
TMPFS: Keys = {"size": reads(size), "mode": reads(number(0, 0o7777))}
IMAGE_OPTIONS: Keys = {"subpath": reads(_inner)}
STORAGE: Keys = {
    "type": reads(lambda node: node.one_of("volume", "bind", "tmpfs", "image")),
    "source": reads(non_empty),
    "target": reads(path),
    "read_only": reads(flag),
    "consistency": ignored("there is no virtual machine between"),
    "bind": reads_with(object_of(BindOptions, BIND)),
    "volume": reads_with(object_of(VolumeOptions, VOLUME_OPTIONS)),
    "tmpfs": reads_with(object_of(TmpfsOptions, TMPFS)),
    "image": reads_with(object_of(VolumeOptions, IMAGE_OPTIONS)),
}


class Grant(Value):
    """A secret or a config of a service: `target` is the path there."""

    source: str
    target: str | None = None
    mode: int | None = None

    def path(self, directory: str) -> str:
        """Return the place in the app."""
        return posixpath.normpath(posixpath.join(directory, self.target or self.source))


GRANT: Keys = {
    "source": reads(non_empty),
    "target": reads(non_empty),
    "mode": reads(number(0, 0o777)),
    "uid": ignored("files are root's"),
    "gid": ignored("files are root's"),
}


class Membership(Value):
    """A service on a network."""

    aliases: tuple[str, ...] = ()
    ipv4_address: str | None = None
    ipv6_address: str | None = None


MEMBERSHIP: Keys = {
    "aliases": reads(texts),
    "ipv4_address": reads(address),
    "ipv6_address": reads(address),
    "interface_name": refused("interfaces are eth0, eth1 and so on"),
    "link_local_ips": refused("an interface has the network's addresses alone"),
    "mac_address": refused("the kernel chooses the address of a link"),
    "driver_opts": refused("networks have no drivers"),
    "priority": ignored("networks are joined in the order of their names"),
    "gw_priority": ignored("the first network has the default route"),
}


class EnvironmentFile(Value):
    """A file of variables."""

    path: str
    required: bool = True
    format: str = ""


ENV_FILE: Keys = {
    "path": reads(non_empty),
    "required": reads(flag),
    "format": reads(lambda node: node.one_of("raw")),
}


class Device(Value):
    """A device of the host."""

    source: str
    target: str | None = None
    permissions: str = "rwm"


DEVICE: Keys = {
    "source": reads(non_empty),
    "target": reads(path),
    "permissions": reads(lambda node: node.matching(lambda word: word and set(word) <= {*"rwm"}, "letters of rwm")),
}


class Logging(Value):
    """Where output goes: a `driver` of none has no log."""

    driver: str = "json-file"
    options: Pairs = ()


LOGGING: Keys = {
    "driver": reads(lambda node: node.one_of("json-file", "local", "none")),
    "options": reads(pairs),
}


class Limits(Value):
    """The most of a service's resources."""

    cpus: str | None = None
    memory: int | None = None
    pids: int | None = None


LIMITS: Keys = {
    "cpus": reads(decimal),
    "memory": reads(size),
    "pids": reads(number(-1, 4194304)),
}
RESERVATIONS: Keys = {
    "cpus": ignored("nothing is reserved on one machine"),
    "memory": ignored("nothing is reserved on one machine"),
    "generic_resources": refused("there is no scheduler"),
    "devices": refused("devices are named by `devices`"),
}


class Resources(Value):
    """The resources of a deployment."""

    limits: Limits = Limits()


RESOURCES: Keys = {
    "limits": reads_with(object_of(Limits, LIMITS)),
    "reservations": Key(read=lambda node, reading: read_fields(node, RESERVATIONS, reading)),
}


class RestartPolicy(Value):
    """When a service is started again; durations in seconds."""

    condition: str = "any"
    delay: float | None = None
    max_attempts: int | None = None
    window: float | None = None


RESTART_POLICY: Keys = {
    "condition": reads(lambda node: node.one_of("none", "on-failure", "any")),
    "delay": reads(seconds),
    "max_attempts": reads(number(0, 1_000_000)),
    "window": reads(seconds),
}


class Deployment(Value):
    """The part of a deployment that counts on one machine."""

    replicas: int | None = None
    resources: Resources = Resources()
    restart_policy: RestartPolicy | None = None


_ONE_MACHINE = "there is one machine, and no rolling update"
DEPLOY: Keys = {
    "mode": reads(lambda node: node.one_of("replicated", "global")),
    "replicas": reads(number(0, 1000)),
    "resources": reads_with(
        lambda node, reading: Resources(
            **{k: v for k, v in read_fields(node, RESOURCES, reading).items() if k == "limits" and v is not None}
        )
    ),
    "restart_policy": reads_with(object_of(RestartPolicy, RESTART_POLICY)),
    "endpoint_mode": ignored(_ONE_MACHINE),
    "labels": ignored(_ONE_MACHINE),
    "rollback_config": ignored(_ONE_MACHINE),
    "update_config": ignored(_ONE_MACHINE),
    "placement": ignored(_ONE_MACHINE),
}


class Build(Value):
    """How the image of a service is built."""

    context: str = "."
    dockerfile: str | None = None
    dockerfile_inline: str | None = None
    args: tuple[tuple[str, str | None], ...] = ()
    labels: Pairs = ()
    network: str | None = None
    no_cache: bool = False
    pull: bool = False
    tags: tuple[str, ...] = ()
    target: str | None = None


_NO_BUILDKIT = "builds have no such thing"


def _context(node: Node) -> str:
    return node.matching(lambda given: given.startswith("/"), "a directory of this machine")


BUILD: Keys = {
    "context": reads(_context),
    "dockerfile": reads(non_empty),
    "dockerfile_inline": reads(non_empty),
    "args": reads(variables),
    "labels": reads(pairs),
    "network": reads(lambda node: node.one_of("none", "host", "default")),
    "no_cache": reads(flag),
    "pull": reads(flag),
    "tags": reads(texts),
    "target": reads(non_empty),
    "additional_contexts": refused(_NO_BUILDKIT),
    "cache_from": ignored("the cache is the store's"),
    "cache_to": ignored("the cache is the store's"),
    "entitlements": refused(_NO_BUILDKIT),
    "extra_hosts": refused(_NO_BUILDKIT),
    "isolation": refused("it is for Windows"),
    "platforms": refused("an image is built for this machine"),
    "privileged": refused(_NO_BUILDKIT),
    "provenance": ignored("no attestations are made"),
    "sbom": ignored("no attestations are made"),
    "secrets": refused(_NO_BUILDKIT),
    "shm_size": refused(_NO_BUILDKIT),
    "ssh": refused(_NO_BUILDKIT),
    "ulimits": refused(_NO_BUILDKIT),
}


class Hook(Value):
    """A command beside the app."""

    command: tuple[str, ...]


HOOK: Keys = {
    "command": reads(words),
    "user": refused("a hook runs as the app"),
    "privileged": refused("a hook runs as the app"),
    "working_dir": refused("a hook runs as the app"),
    "environment": refused("a hook runs as the app"),
}


def _hook(node: Node, reading: Reading) -> Hook | None:
    elements = node.elements()
    if len(elements) > 1:
        raise node.error("one hook")
    return object_of(Hook, HOOK)(elements[0], reading) if elements else None


class Service(Value):
    """A service, with the keys of the specification as fields."""

    name: str
    annotations: Pairs = ()
    attach: bool = True
    build: Build | None = None
    cap_add: tuple[str, ...] = ()
    cap_drop: tuple[str, ...] = ()
    cgroup_parent: str | None = None
    command: tuple[str, ...] | None = None
    configs: tuple[Grant, ...] = ()
    container_name: str | None = None
    cpu_period: int | None = None
    cpu_quota: int | None = None
    cpu_shares: int | None = None
    cpus: str | None = None
    cpuset: str | None = None
    depends_on: tuple[tuple[str, Dependency], ...] = ()
    deploy: Deployment = Deployment()
    devices: tuple[Device, ...] = ()
    dns: tuple[str, ...] = ()
    dns_opt: tuple[str, ...] = ()
    dns_search: tuple[str, ...] = ()
    domainname: str | None = None
    entrypoint: tuple[str, ...] | None = None
    env_file: tuple[EnvironmentFile, ...] = ()
    expose: tuple[str, ...] = ()
    environment: tuple[tuple[str, str | None], ...] = ()
    extra_hosts: tuple[tuple[str, str], ...] = ()
    group_add: tuple[int, ...] = ()
    healthcheck: Health | None = None
    hostname: str | None = None
    image: str | None = None
    init: bool = True
    ipc: str | None = None
    label_file: tuple[EnvironmentFile, ...] = ()
    labels: Pairs = ()
    links: tuple[str, ...] = ()
    logging: Logging = Logging()
    mem_limit: int | None = None
    memswap_limit: int | None = None
    network_mode: str | None = None
    networks: tuple[tuple[str, Membership], ...] = ()
    oom_score_adj: int | None = None
    pid: str | None = None
    pids_limit: int | None = None
    platform: Processor | None = None
    ports: tuple[PublishedPort, ...] = ()
    post_start: Hook | None = None
    pre_stop: Hook | None = None
    privileged: bool = False
    profiles: tuple[str, ...] = ()
    pull_policy: str | None = None
    read_only: bool = False
    restart: tuple[str, int | None] | None = None
    scale: int | None = None
    secrets: tuple[Grant, ...] = ()
    security_opt: tuple[str, ...] = ()
    shm_size: int | None = None
    stdin_open: bool = False
    stop_grace_period: float = 10.0
    stop_signal: str | None = None
    sysctls: Pairs = ()
    tmpfs: tuple[str, ...] = ()
    tty: bool = False
    ulimits: Pairs = ()
    user: tuple[str, str | None] | None = None
    volumes: tuple[Storage, ...] = ()
    working_dir: str | None = None

    @property
    def replicas(self) -> int:
        """The number of pods."""
        wanted = self.scale if self.scale is not None else self.deploy.replicas
        return 1 if wanted is None else wanted


_SERVICE = re.compile(r"[a-zA-Z0-9._-]{1,63}")


def is_service_name(name: str) -> bool:
    """Tell whether a service may have a name."""
    return _SERVICE.fullmatch(name) is not None


def _pod_name(node: Node) -> str:
    """Return the name of a pod."""
    name = non_empty(node)
    try:
        check_name(name)
    except PodError as error:
        raise node.error(f"a name for a pod ({error})") from error
    return name


def _exposed(node: Node) -> str:
    """Return a port, or a range of ports, which is open as all others are."""
    if not re.fullmatch(r"[0-9]{1,5}(-[0-9]{1,5})?(/(tcp|udp))?", text(node)):
        raise node.error("a port, as in 80 or 80/udp")
    return text(node)


_WINDOWS = "it is for Windows"
SERVICE: Keys = {
    "annotations": reads(pairs),
    "attach": reads(flag),
    "blkio_config": refused("apps have no limits of block devices"),
    "build": reads_with(object_of(Build, BUILD)),
    "cap_add": reads_with(each_of(lambda node, _: capability(node))),
    "cap_drop": reads_with(each_of(lambda node, _: capability(node))),
    "cgroup": ignored("an app sees its own groups alone"),
    "cgroup_parent": reads(path),
    "command": reads(words),
    "configs": reads_with(each_of(object_of(Grant, GRANT))),
    "container_name": reads(_pod_name),
    "cpu_count": refused(_WINDOWS),
    "cpu_percent": refused(_WINDOWS),
    "cpu_period": reads(number(1000, 1_000_000)),
    "cpu_quota": reads(number(-1, MOST)),
    "cpu_rt_period": refused("apps have no real-time limits"),
    "cpu_rt_runtime": refused("apps have no real-time limits"),
    "cpu_shares": reads(number(MIN_CPU_SHARES, MAX_CPU_SHARES)),
    "cpus": reads(decimal),
    "cpuset": reads(non_empty),
    "credential_spec": refused(_WINDOWS),
    "depends_on": reads_with(named_of(object_of(Dependency, DEPENDENCY), is_service_name, "the name of a service")),
    "deploy": reads_with(
        lambda node, reading: Deployment(
            **{k: v for k, v in read_fields(node, DEPLOY, reading).items() if k != "mode" and v is not None}
        )
    ),
    "develop": ignored("there is no watch"),
    "device_cgroup_rules": refused("devices are named by `devices`"),
    "devices": reads_with(each_of(object_of(Device, DEVICE))),
    "dns": reads_with(each_of(lambda node, _: address(node))),
    "dns_opt": reads(texts),
    "dns_search": reads(texts),
    "domainname": reads(hostname),
    "entrypoint": reads(words),
    "env_file": reads_with(each_of(object_of(EnvironmentFile, ENV_FILE))),
    "environment": reads(variables),
    "expose": reads_with(each_of(lambda node, _: _exposed(node))),
    "external_links": refused("pods of other projects are found on a common network"),
    "extra_hosts": reads_with(each_of(lambda node, _: host_entry(node))),
    "gpus": refused("devices are named by `devices`"),
    "group_add": reads_with(each_of(lambda node, _: group_id(node))),
    "healthcheck": reads_with(object_of(Health, HEALTHCHECK)),
    "hostname": reads(hostname),
    "image": reads(non_empty),
    "init": reads(flag),
    "ipc": reads(lambda node: node.one_of("host", "private", "shareable")),
    "isolation": refused(_WINDOWS),
    "label_file": reads_with(each_of(object_of(EnvironmentFile, ENV_FILE))),
    "labels": reads(pairs),
    "links": reads(texts),
    "logging": reads_with(object_of(Logging, LOGGING)),
    "mac_address": refused("the kernel chooses the address of a link"),
    "mem_limit": reads(size),
    "mem_reservation": ignored("nothing is reserved on one machine"),
    "mem_swappiness": refused("apps have no such setting"),
    "memswap_limit": reads(size_or_none),
    "models": refused("there are no runners of models"),
    "network_mode": reads(network_mode),
    "networks": reads_with(named_of(lambda node, reading: object_of(Membership, MEMBERSHIP)(node, reading))),
    "oom_kill_disable": refused("no app keeps memory from others"),
    "oom_score_adj": reads(number(-1000, 1000)),
    "pid": reads(lambda node: node.one_of("host")),
    "pids_limit": reads(number(-1, 4194304)),
    "platform": reads(platform),
    "ports": reads_with(each_of(object_of(PublishedPort, PORT))),
    "post_start": reads_with(_hook),
    "pre_stop": reads_with(_hook),
    "privileged": reads(flag),
    "profiles": reads(texts),
    "provider": refused("services are pods"),
    "pull_policy": reads(pull_policy),
    "pull_refresh_after": refused("`pull` fetches images again"),
    "read_only": reads(flag),
    "restart": reads(restart_policy),
    "runtime": refused("there is one runtime"),
    "scale": reads(number(0, 1000)),
    "secrets": reads_with(each_of(object_of(Grant, GRANT))),
    "security_opt": reads_with(each_of(lambda node, _: security_option(node))),
    "shm_size": reads(size),
    "stdin_open": reads(flag),
    "stop_grace_period": reads(seconds),
    "stop_signal": reads(non_empty),
    "storage_opt": refused("apps share the file system of the store"),
    "sysctls": reads(pairs),
    "tmpfs": reads(texts),
    "tty": reads(flag),
    "ulimits": reads_with(named_of(lambda node, _: ulimit(node), RLIMITS.__contains__, "a name of run --ulimit")),
    "use_api_socket": refused("there is no daemon with a socket"),
    "user": reads(user),
    "userns_mode": refused("run has --private-users"),
    "uts": refused("a pod has its own host name"),
    "volumes": reads_with(each_of(object_of(Storage, STORAGE))),
    "volumes_from": refused("name the volumes in both services"),
    "working_dir": reads(path),
}


class Subnet(Value):
    """A range of a network's addresses."""

    subnet: str | None = None
    gateway: str | None = None
    ip_range: str | None = None


def _subnet(node: Node) -> str:
    return node.parsed(lambda given: str(ipaddress.ip_network(given, strict=False)), "a subnet")


SUBNET: Keys = {
    "subnet": reads(_subnet),
    "gateway": reads(address),
    "ip_range": reads(_subnet),
    "aux_addresses": refused("give services their addresses instead"),
}


class Ipam(Value):
    """The addresses of a network."""

    config: tuple[Subnet, ...] = ()


IPAM: Keys = {
    "config": reads_with(each_of(object_of(Subnet, SUBNET))),
    "driver": reads(lambda node: node.one_of("default")),
    "options": refused("there is one manager of addresses"),
}


class Network(Value):
    """A network of the project, or of somebody else if `external`."""

    name: str | None = None
    external: bool = False
    internal: bool = False
    driver: str = "bridge"
    driver_opts: Pairs = ()
    enable_ipv6: bool = False
    ipam: Ipam = Ipam()
    labels: Pairs = ()


def _external(node: Node) -> bool:
    if isinstance(node.raw(), dict):
        raise node.error("true (with the name as `name` beside)")
    return flag(node)


NETWORKS_OF_IMAGE = ("default", "default-restricted")
"""Networks that are in no directory of the host."""

_NO_LABELS = "it has no labels"


def _network_name(node: Node) -> str:
    """Return the name of a network of the host."""
    name = non_empty(node)
    if name in NETWORKS_OF_IMAGE:
        return name
    try:
        check_network_name(name)
    except NetworkError as error:
        raise node.error(f"a name for a network ({error})") from error
    return name


NETWORK: Keys = {
    "name": reads(_network_name),
    "external": reads(_external),
    "internal": reads(flag),
    "ipam": reads_with(lambda node, reading: _read_ipam(node, reading)),
    "driver": reads(lambda node: node.one_of(*NetworkDriver, "default").replace("default", "bridge")),
    "attachable": ignored("every network is"),
    "driver_opts": reads(pairs),
    "enable_ipv4": reads(lambda node: _only_true(node)),
    "enable_ipv6": reads(flag),
    "labels": reads(pairs),
}


def _only_true(node: Node) -> bool:
    if not flag(node):
        raise node.error("true")
    return True


def _read_ipam(node: Node, reading: Reading) -> Ipam:
    fields = read_fields(node, IPAM, reading)
    return Ipam(config=fields.get("config", ()))


class NamedVolume(Value):
    """A volume of the project, or of somebody else if `external`."""

    name: str | None = None
    external: bool = False


VOLUME: Keys = {
    "name": reads(lambda node: node.matching(is_volume_name, NAME_FORM)),
    "external": reads(_external),
    "driver": reads(lambda node: node.one_of("local", "default")),
    "driver_opts": refused("a volume is a directory of minit's"),
    "labels": ignored(_NO_LABELS),
}


class FileSource(Value):
    """The origin of a secret or config: a file, a variable, or the content."""

    file: str | None = None
    environment: str | None = None
    content: str | None = None


_STORE = "there is no store of secrets and configs"
SECRET: Keys = {
    "file": reads(non_empty),
    "environment": reads(non_empty),
    "name": ignored(_STORE),
    "external": refused(_STORE),
    "labels": ignored(_NO_LABELS),
    "driver": refused(_STORE),
    "driver_opts": refused(_STORE),
    "template_driver": refused(_STORE),
}
CONFIG: Keys = {
    "file": reads(non_empty),
    "environment": reads(non_empty),
    "content": reads(text),
    "name": ignored(_STORE),
    "external": refused(_STORE),
    "labels": ignored(_NO_LABELS),
    "template_driver": refused(_STORE),
}


def source_of(keys: Keys) -> Read:
    """Return the reader of a secret or a config, which have one origin."""

    def read(node: Node, reading: Reading) -> FileSource | None:
        found = read_fields(node, keys, reading)
        if len(found) != 1 and not reading.faults:
            raise node.error("one of file, environment and content" if "content" in keys else "file or environment")
        return FileSource(**found)

    return read


def resource_of(kind: Callable[..., V], keys: Keys) -> Read:
    """Return the reader of a resource, which may be empty."""

    def read(node: Node, reading: Reading) -> V:
        fields = read_fields(node, keys, reading)
        return kind(**{name: value for name, value in fields.items() if name in kind._fields})  # type: ignore[attr-defined]

    return read
