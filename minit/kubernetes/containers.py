"""One container of a Kubernetes pod: program, environment, mounts, ports and limits."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence

from minit.base import jsontext
from minit.base.value import Value
from minit.kubernetes.fields import Fields, Findings, read_name, read_text
from minit.kubernetes.references import (
    CONFIG_MAP,
    SECRET,
    Config,
    PodNames,
    Resources,
    find_config,
    read_field,
    read_resource_field,
    read_resources,
)
from minit.kubernetes.security import PodSecurity, Security, read_security
from minit.manifest.app import MAX_PORT
from minit.manifest.names import is_variable_name
from minit.manifest.reader import Node

PULL_POLICIES = ("Always", "IfNotPresent", "Never")

# By default stage1 does what suits.
_PROBES = {"startupProbe": "startup", "livenessProbe": "liveness", "readinessProbe": "readiness"}
_MOST_PROBE_SECONDS = 24 * 3600
_MOST_RESULTS = 1000
_PROPAGATIONS = {"": None, "None": "private", "HostToContainer": "slave", "Bidirectional": "shared"}
_PROTOCOLS = {"TCP": "tcp", "UDP": "udp"}

_HOOKS = {"postStart": "post-start", "preStop": "pre-stop"}
_MOST_SECONDS = 365 * 24 * 3600

_Json = dict[str, object]

_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")


class ContainerMount(Value):
    """A volume's place in a container; only `sub_path` of the volume, and with later mounts of the host's."""

    volume: str
    path: str
    read_only: bool = False
    sub_path: str = ""
    propagation: str | None = None


class ContainerPort(Value):
    """A port of the host that leads to a port of a container."""

    name: str
    protocol: str
    port: int
    host_port: int
    host_ip: str | None = None


class Container(Value):
    """
    A container; None is for the image to decide.

    `health` and `hooks` are probes and hooks as values of annotations; `restart` is the own policy, which only init
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
    """Read a container; `volumes` are the names of all volumes for mounts."""
    with Fields(node, findings) as fields:
        name = read_name(fields["name"])
        environment = _read_environment(fields, configs, pod, name)
        known = dict(environment)
        fields.ignored("terminationMessagePath", "terminationMessagePolicy")
        fields.only("stdinOnce", False)
        restart = fields["restartPolicy"].optional(lambda policy: policy.one_of("Always")) if init else None
        with fields.within("lifecycle") as lifecycle:
            hooks = _read_hooks(lifecycle, of_init=init and restart is None)
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
            health=None if init else _read_probes(fields),
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
    """Return a port for the host to forward, None for a port that is only declared."""
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


def _read_hooks(lifecycle: Fields, *, of_init: bool) -> str | None:
    """
    Return the value of the annotation `minit/hooks` for the hooks of a container, None without any.

    An init container that ends has no hooks.
    """
    hooks: _Json = {}
    for field, name in _HOOKS.items():
        if lifecycle[field].given and of_init:
            raise lifecycle[field].error("no hook of an init container without restartPolicy: Always")
        if lifecycle[field].given:
            hooks[name] = _read_hook(lifecycle.within(field))
    return jsontext.dump(hooks).decode("ascii") if hooks else None


def _read_hook(fields: Fields) -> _Json:
    with fields:
        for field in ("httpGet", "tcpSocket"):
            if fields[field].given:
                fields.findings.refuse(fields[field], "a hook is a command of the container, exec, or sleep")
                return {}
        if fields["exec"].given == fields["sleep"].given:
            raise fields.node.error("one of exec and sleep")
        if fields["sleep"].given:
            with fields.within("sleep") as sleep:
                return {"sleep": f"{sleep['seconds'].integer(0, _MOST_SECONDS)}s"}
        with fields.within("exec") as command:
            words = command["command"].each(read_text)
            if not (words and words[0]):
                raise command["command"].error("a command and its arguments")
            return {"exec": list(words)}


def _read_environment(
    fields: Fields, configs: tuple[Config, ...], pod: PodNames, container: str
) -> tuple[tuple[str, str], ...]:
    """Return the variables of `envFrom` and `env`; later variables win, and may refer to earlier variables."""
    variables: dict[str, str] = {}
    for found in fields.each("envFrom", lambda node, findings: _read_source(node, findings, configs)):
        variables.update(found)

    def read(node: Node, findings: Findings) -> tuple[str, str | None, bool]:
        return _read_variable(node, findings, configs, pod, container)

    for name, value, is_text in fields.each("env", read):
        if value is not None:
            variables[name] = expand(value, variables) if is_text else value
    return tuple(variables.items())


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with `$(NAME)` replaced where the variable is known; `$$` is one dollar."""

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(replace, text)


def _read_source(node: Node, findings: Findings, configs: tuple[Config, ...]) -> dict[str, str]:
    with Fields(node, findings) as fields:
        prefix = fields["prefix"].optional(read_text) or ""
        found: dict[str, str] = {}
        for field, kind in (("configMapRef", CONFIG_MAP), ("secretRef", SECRET)):
            if not fields[field].given:
                continue
            with fields.within(field) as reference:
                optional = reference["optional"].optional(Node.boolean) or False
                config = find_config(configs, kind, reference["name"], optional)
            for key, data in config.data if config is not None else ():
                # Kubernetes, too, leaves out a key that is no name of a variable.
                if is_variable_name(prefix + key):
                    found[prefix + key] = _text(data, node)
    return found


def _read_variable(
    node: Node, findings: Findings, configs: tuple[Config, ...], pod: PodNames, container: str
) -> tuple[str, str | None, bool]:
    """Return a variable, with the value None to leave it out, and whether other variables may stand in the value."""
    with Fields(node, findings) as fields:
        name = fields["name"].matching(is_variable_name, "the name of an environment variable")
        if not fields["valueFrom"].given:
            return name, fields["value"].optional(read_text) or "", True
        with fields.within("valueFrom") as origin:
            for field, kind in (("configMapKeyRef", CONFIG_MAP), ("secretKeyRef", SECRET)):
                if origin[field].given:
                    return name, _read_key(origin.within(field), configs, kind), False
            if origin["fieldRef"].given:
                return name, read_field(origin.within("fieldRef"), pod), False
            if origin["resourceFieldRef"].given:
                return name, read_resource_field(origin.within("resourceFieldRef"), pod, container), False
    return name, None, False


def _read_key(fields: Fields, configs: tuple[Config, ...], kind: str) -> str | None:
    with fields:
        optional = fields["optional"].optional(Node.boolean) or False
        config = find_config(configs, kind, fields["name"], optional)
        key = fields["key"].non_empty()
        data = config.get(key) if config is not None else None
        if data is None:
            if not optional and config is not None:
                raise fields["key"].error(f"a key of {kind} {config.name}")
            return None
        return _text(data, fields["key"])


def _text(data: bytes, node: Node) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise node.error("text for a variable", "bytes that are no UTF-8") from error
    if "\0" in text:
        raise node.error("text for a variable", "a NUL")
    return text


def _read_probes(fields: Fields) -> str | None:
    """Return the value of the annotation `minit/health` for the probes of a container, None without any."""
    ports = fields["ports"].each(_read_port_name)
    names = {name: port for name, port in ports if name is not None}
    checks = {kind: _read_probe(fields.within(field), names) for field, kind in _PROBES.items() if fields[field].given}
    return jsontext.dump(checks).decode("ascii") if checks else None


def _read_port_name(node: Node) -> tuple[str | None, int]:
    return node["name"].optional(Node.string), node["containerPort"].integer(1, MAX_PORT)


def _read_probe(fields: Fields, ports: Mapping[str, int]) -> _Json:
    with fields:
        check: _Json = {}
        if fields["exec"].given:
            with fields.within("exec") as command:
                check["exec"] = list(command["command"].each(read_text))
        if fields["httpGet"].given:
            with fields.within("httpGet") as http:
                check["http"] = _read_http(http, ports)
        if fields["tcpSocket"].given:
            with fields.within("tcpSocket") as tcp:
                check["tcp"] = _read_target(tcp, ports)
        if not check and not fields["grpc"].given:
            raise fields.node.error("one of exec, httpGet and tcpSocket")
        if fields["grpc"].given:
            fields.findings.refuse(fields["grpc"])
        for field, name, least in (
            ("initialDelaySeconds", "delay", 0),
            ("periodSeconds", "interval", 1),
            ("timeoutSeconds", "timeout", 1),
        ):
            if fields[field].given:
                check[name] = f"{fields[field].integer(least, _MOST_PROBE_SECONDS)}s"
        for field, name in (("failureThreshold", "failures"), ("successThreshold", "successes")):
            if fields[field].given:
                check[name] = fields[field].integer(1, _MOST_RESULTS)
        return check


def _read_http(fields: Fields, ports: Mapping[str, int]) -> _Json:
    fields.only("scheme", "HTTP")
    found = _read_target(fields, ports)
    path = fields["path"].optional(Node.string)
    if path:
        found["path"] = path if path.startswith("/") else f"/{path}"
    headers = dict(fields.each("httpHeaders", _read_header))
    return {**found, "headers": headers} if headers else found


def _read_target(fields: Fields, ports: Mapping[str, int]) -> _Json:
    node = fields["port"]
    name = node.raw()
    if isinstance(name, str):
        port = ports.get(name)
        if port is None:
            raise node.error("a number, or the name of one of the container's ports")
    else:
        port = node.integer(1, MAX_PORT)
    host = fields["host"].optional(Node.non_empty)
    return {"port": port} if host is None else {"port": port, "host": host}


def _read_header(node: Node, findings: Findings) -> tuple[str, str]:
    with Fields(node, findings) as fields:
        return fields["name"].non_empty(), read_text(fields["value"])
