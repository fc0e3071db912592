"""A project: its services in order, and the resources of the services, read from the merged document. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from minit.base.errors import ManifestError
from minit.base.value import Value
from minit.compose.keys import (
    Keys,
    Reading,
    ignored,
    named_of,
    read_fields,
    reads,
    reads_with,
    refused,
    text,
)
from minit.compose.tables import (
    BIND,
    BUILD,
    CONFIG,
    DEPENDENCY,
    DEPLOY,
    DEVICE,
    ENV_FILE,
    GRANT,
    HEALTHCHECK,
    HOOK,
    IMAGE_OPTIONS,
    IPAM,
    LIMITS,
    LOGGING,
    MEMBERSHIP,
    NETWORK,
    PORT,
    RESERVATIONS,
    RESOURCES,
    RESTART_POLICY,
    SECRET,
    SERVICE,
    STORAGE,
    SUBNET,
    TMPFS,
    VOLUME,
    VOLUME_OPTIONS,
    FileSource,
    NamedVolume,
    Network,
    Service,
    is_service_name,
    resource_of,
    source_of,
)
from minit.manifest.reader import Node, PlacedFields
from minit.stage0.volumes import NAME_FORM, is_volume_name

_PROJECT = re.compile(r"[a-z0-9][a-z0-9_-]*")

TOP: Keys = {
    "version": ignored("every file is read by today's specification"),
    "name": reads(text),
    "include": reads(lambda node: None),
    "services": reads_with(lambda node, reading: _read_services(node, reading)),
    "networks": reads_with(named_of(resource_of(Network, NETWORK))),
    "volumes": reads_with(named_of(resource_of(NamedVolume, VOLUME), is_volume_name, NAME_FORM)),
    "secrets": reads_with(named_of(source_of(SECRET))),
    "configs": reads_with(named_of(source_of(CONFIG))),
    "models": refused("there are no runners of models"),
}
TABLES: Mapping[str, Keys] = {
    "Top level": TOP,
    "services": SERVICE,
    "services: build": BUILD,
    "services: depends_on": DEPENDENCY,
    "services: deploy": DEPLOY,
    "services: deploy.resources": RESOURCES,
    "services: deploy.resources.limits": LIMITS,
    "services: deploy.resources.reservations": RESERVATIONS,
    "services: deploy.restart_policy": RESTART_POLICY,
    "services: devices": DEVICE,
    "services: env_file": ENV_FILE,
    "services: healthcheck": HEALTHCHECK,
    "services: logging": LOGGING,
    "services: networks": MEMBERSHIP,
    "services: ports": PORT,
    "services: post_start, pre_stop": HOOK,
    "services: secrets, configs": GRANT,
    "services: volumes": STORAGE,
    "services: volumes.bind": BIND,
    "services: volumes.image": IMAGE_OPTIONS,
    "services: volumes.tmpfs": TMPFS,
    "services: volumes.volume": VOLUME_OPTIONS,
    "networks": NETWORK,
    "networks: ipam": IPAM,
    "networks: ipam.config": SUBNET,
    "volumes": VOLUME,
    "secrets": SECRET,
    "configs": CONFIG,
}
"""All tables, by the headings of docs/compose.md."""


class Project(Value):
    """A project: its services, and their resources by name."""

    name: str
    services: tuple[tuple[str, Service], ...] = ()
    networks: tuple[tuple[str, Network], ...] = ()
    volumes: tuple[tuple[str, NamedVolume], ...] = ()
    secrets: tuple[tuple[str, FileSource], ...] = ()
    configs: tuple[tuple[str, FileSource], ...] = ()

    def service(self, name: str) -> Service:
        """Return a service of the project."""
        return dict(self.services)[name]


def _read_services(node: Node, reading: Reading) -> tuple[tuple[str, Service], ...]:
    form = "a name of letters, digits, dots, dashes and underscores"
    read_all = named_of(lambda field, reading: read_fields(field, SERVICE, reading), is_service_name, form)
    return tuple(
        (name, Service(name=name, **{key: each for key, each in fields.items() if each is not None}))
        for name, fields in read_all(node, reading)
    )


def read_project(document: PlacedFields, name: str, reading: Reading) -> Project:
    """Return the project of a merged document; faults go to `reading`."""
    root = Node(document, None, name)
    fields = read_fields(root, TOP, reading)
    fields = {key: value for key, value in fields.items() if key in Project._fields and key != "name"}
    project = Project(name=name, **fields)
    _check(project, root, reading)
    return project


def _check(project: Project, root: Node, reading: Reading) -> None:
    """Note the faults between keys, and names that nothing has."""
    services = dict(project.services)
    known: Mapping[str, Mapping[str, object]] = {
        "volumes": dict(project.volumes),
        "networks": {"default": None, **dict(project.networks)},
        "secrets": dict(project.secrets),
        "configs": dict(project.configs),
    }
    for name, service in project.services:
        for key, what in _faults(service, services, known):
            reading.faults.append(f"{_where(root, 'services', name, key)}: {what}")
    edges = {name: list(_awaited(service)) for name, service in project.services}
    circle = find_circle(edges)
    if circle:
        place = _where(root, "services", circle[0])
        reading.faults.append(f"{place}: the services wait for each other: {' -> '.join(circle)}")


def _faults(
    service: Service, services: Mapping[str, Service], known: Mapping[str, Mapping[str, object]]
) -> Iterator[tuple[str, str]]:
    """Yield the keys of a service that do not fit to other things, with the faults."""
    if service.image is None and service.build is None:
        yield "image", "expected image or build"
    for other, dependency in service.depends_on:
        if other not in services and dependency.required:
            yield "depends_on", f"there is no service {other}"
    for link in service.links:
        if link.partition(":")[0] not in services:
            yield "links", f"there is no service {link.partition(':')[0]}"
    named = [each.source for each in service.volumes if each.type == "volume" and each.source is not None]
    for key, wanted in (
        ("volumes", named),
        ("networks", [each for each, _ in service.networks]),
        ("secrets", [each.source for each in service.secrets]),
        ("configs", [each.source for each in service.configs]),
    ):
        for each in wanted:
            if each not in known[key]:
                yield key, f"{each} is not among the {key} at the top of the file"
    for storage in service.volumes:
        if storage.type in ("bind", "image") and storage.source is None:
            yield "volumes", f"{storage.target}: expected a source"
    if service.network_mode in ("host", "none") and service.networks:
        yield "network_mode", "excludes networks"
    if service.network_mode == "none" and service.ports:
        yield "ports", "network_mode none has none"
    if service.container_name is not None and service.replicas > 1:
        yield "container_name", "is for one pod: leave it out to scale"


def _awaited(service: Service) -> Iterator[str]:
    yield from (name for name, _ in service.depends_on)
    yield from (link.partition(":")[0] for link in service.links)


def _where(root: Node, *steps: str) -> str:
    node, value = root, root.raw()
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
        node = Node(value, node, step)
    return node.where


def find_circle(edges: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of a circle, with its first name at both ends; none without a circle."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in edges.get(name, ()):
            circle = walk(other, [*path, name])
            if circle:
                return circle
        done.add(name)
        return []

    for name in edges:
        circle = walk(name, [])
        if circle:
            return circle
    return []


def in_order(services: Mapping[str, Service]) -> list[str]:
    """Return the names of services, each after those that it depends on."""
    ordered: list[str] = []

    def add(name: str) -> None:
        if name in services and name not in ordered:
            for other in _awaited(services[name]):
                add(other)
            ordered.append(name)

    for name in services:
        add(name)
    return ordered


def normal_name(text: str) -> str:
    """Return a directory's name as the name of a project, as Docker does."""
    return re.sub(r"[^a-z0-9_-]", "", text.lower()).lstrip("_-")


def check_project_name(name: str, where: str) -> str:
    """Return the name of a project; ManifestError for another text."""
    if not _PROJECT.fullmatch(name):
        raise ManifestError(f'{where}: a project is lower-case letters, digits, dashes and underscores: got "{name}"')
    return name
