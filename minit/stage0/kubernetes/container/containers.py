"""One container of a Kubernetes pod: what is executed, with what, and within which limits."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from minit.manifest.app import MAX_PORT
from minit.manifest.reader import Node
from minit.stage0.kubernetes.container.environment import expand, read_environment
from minit.stage0.kubernetes.container.lifecyclehooks import read_hooks
from minit.stage0.kubernetes.container.probes import read_probes
from minit.stage0.kubernetes.container.security import PodSecurity, Security, read_security
from minit.stage0.kubernetes.reading.fields import Fields, Findings, read_name, read_text
from minit.stage0.kubernetes.references.configmaps import Config
from minit.stage0.kubernetes.references.podfields import PodNames
from minit.stage0.kubernetes.references.resources import Resources, read_resources
from minit.value import Value

PULL_POLICIES = ("Always", "IfNotPresent", "Never")

# By default stage1 does what suits.
_PROPAGATIONS = {"": None, "None": "private", "HostToContainer": "slave", "Bidirectional": "shared"}
_PROTOCOLS = {"TCP": "tcp", "UDP": "udp"}


class ContainerMount(Value):
    """A volume's place in a container; only what `sub_path` leads to in it, and with later mounts of the host's."""

    volume: str
    path: str
    read_only: bool = False
    sub_path: str = ""
    propagation: str | None = None


class ContainerPort(Value):
    """A port of the host that leads to one of a container."""

    name: str
    protocol: str
    port: int
    host_port: int
    host_ip: str | None = None


class Container(Value):
    """
    A container; None is what its image decides.

    `health` and `hooks` are its probes and hooks as values of annotations; `restart` is its own policy, which only init
    containers can have.
    """

    name: str
    image: str
    pull_policy: str | None
    command: tuple[str, ...] | None
    arguments: tuple[str, ...] | None
    working_directory: str | None
    environment: tuple[tuple[str, str], ...]
    mounts: tuple[ContainerMount, ...]
    ports: tuple[ContainerPort, ...]
    resources: Resources
    security: Security
    health: str | None = None
    stdin: bool = False
    tty: bool = False
    restart: str | None = None
    stop_signal: str | None = None
    hooks: str | None = None


def read_container(
    node: Node,
    findings: Findings,
    *,
    configs: tuple[Config, ...],
    pod: PodNames,
    security: PodSecurity,
    volumes: Sequence[str],
    init: bool,
) -> Container:
    """Read a container; `volumes` are the names of those that it may mount."""
    with Fields(node, findings) as fields:
        name = read_name(fields["name"])
        environment = read_environment(fields, configs, pod, name)
        known = dict(environment)
        fields.ignored("terminationMessagePath", "terminationMessagePolicy")
        fields.only("stdinOnce", False)
        restart = fields["restartPolicy"].optional(lambda policy: policy.one_of("Always")) if init else None
        with fields.within("lifecycle") as lifecycle:
            hooks = read_hooks(lifecycle, of_init=init and restart is None)
            stop_signal = lifecycle["stopSignal"].optional(Node.non_empty)
        own = read_security(fields.within("securityContext"), security, has_selinux=pod.machine.has_selinux)
        ports = fields.each("ports", lambda port, found: _read_port(port, found, name))
        return Container(
            name=name,
            image=fields["image"].non_empty(),
            pull_policy=fields["imagePullPolicy"].optional(lambda policy: policy.one_of(*PULL_POLICIES)),
            command=fields["command"].optional(lambda words: _read_words(words, known)) or None,
            arguments=fields["args"].optional(lambda words: _read_words(words, known)) or None,
            working_directory=fields["workingDir"].optional(Node.absolute_path),
            environment=environment,
            mounts=fields.each("volumeMounts", lambda mount, found: _read_mount(mount, found, volumes, known, own)),
            ports=tuple(port for port in ports if port is not None),
            resources=read_resources(fields.within("resources")),
            security=own,
            health=None if init else read_probes(fields),
            stdin=fields["stdin"].optional(Node.boolean) or False,
            tty=fields["tty"].optional(Node.boolean) or False,
            restart=restart,
            stop_signal=stop_signal,
            hooks=hooks,
        )


def _read_words(node: Node, variables: dict[str, str]) -> tuple[str, ...]:
    return tuple(expand(word, variables) for word in node.each(read_text))


def _read_mount(
    node: Node, findings: Findings, volumes: Sequence[str], variables: Mapping[str, str], security: Security
) -> ContainerMount:
    with Fields(node, findings) as fields:
        # A read-only mount is so all the way down.
        fields["recursiveReadOnly"].optional(lambda given: given.one_of("Disabled", "IfPossible", "Enabled"))
        propagation = fields["mountPropagation"].optional(lambda given: given.one_of(*_PROPAGATIONS))
        if propagation == "Bidirectional" and not security.privileged:
            raise fields["mountPropagation"].error("another value, unless the container is privileged")
        sub_path = fields["subPath"].optional(_read_sub_path) or ""
        if fields["subPathExpr"].given:
            expanded = expand(fields["subPathExpr"].string(), variables)
            sub_path = _read_sub_path(Node(expanded, node, "subPathExpr"))
        return ContainerMount(
            volume=fields["name"].matching(volumes.__contains__, "the name of one of spec.volumes"),
            path=fields["mountPath"].absolute_path(),
            read_only=fields["readOnly"].optional(Node.boolean) or False,
            sub_path=sub_path,
            propagation=_PROPAGATIONS[propagation or ""],
        )


def _read_sub_path(node: Node) -> str:
    return node.matching(lambda path: not path.startswith("/") and ".." not in path.split("/"), "a path without ..")


def _read_port(node: Node, findings: Findings, container: str) -> ContainerPort | None:
    """Return a port that the host is to forward, None for one that is only told."""
    with Fields(node, findings) as fields:
        port = fields["containerPort"].integer(1, MAX_PORT)
        name = fields["name"].optional(read_name) or f"{container}-{port}"
        protocol = fields["protocol"].optional(lambda text: text.one_of(*_PROTOCOLS)) or "TCP"
        address = fields["hostIP"].optional(_read_address)
        host_port = fields["hostPort"].optional(lambda number: number.integer(0, MAX_PORT)) or 0
        if not host_port:
            return None
        return ContainerPort(name=name, protocol=_PROTOCOLS[protocol], port=port, host_port=host_port, host_ip=address)


def _read_address(node: Node) -> str:
    try:
        return str(ipaddress.ip_address(node.string()))
    except ValueError as error:
        raise node.error("an IP address") from error
