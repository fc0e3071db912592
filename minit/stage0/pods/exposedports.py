"""Ports of the host that lead to apps: whether each leads to one app, and no two are the same. Pure."""

from __future__ import annotations

from minit.errors import PodError
from minit.manifest.app import Port
from minit.manifest.pod import ExposedPort, PodManifest


def check_ports(pod: PodManifest, place: str) -> None:
    """Raise PodError, naming the `place` where ports are asked for, for one that cannot be had."""
    taken: list[tuple[ExposedPort, str]] = []
    for exposed in pod.ports:
        protocol = (exposed.pod_port or _find_port(pod, exposed.name, place)).protocol
        for other, other_protocol in taken:
            if protocol == other_protocol and _overlap(exposed, other):
                raise PodError(
                    f'{place}: "{other.name}" and "{exposed.name}" both want {protocol} port {exposed.host_port}'
                    " of the host"
                )
        taken.append((exposed, protocol))


def _find_port(pod: PodManifest, name: str, place: str) -> Port:
    ports = [(app.name, port) for app in pod.apps if app.app for port in app.app.ports]
    found = [(app, port) for app, port in ports if port.name == name]
    if not found:
        known = ", ".join(dict.fromkeys(port.name for _, port in ports)) or "none"
        raise PodError(f'{place}: no app has a port named "{name}" (ports of the apps: {known})')
    if len(found) > 1:
        apps = ", ".join(app for app, _ in found)
        raise PodError(f'{place}: several ports are named "{name}" (apps: {apps})')
    return found[0][1]


def _overlap(one: ExposedPort, other: ExposedPort) -> bool:
    same_address = one.host_ip is None or other.host_ip is None or one.host_ip == other.host_ip
    return same_address and one.host_port == other.host_port
