"""Ports of the host that lead to apps: each port must lead to one app, and no two may be the same. Pure."""

from __future__ import annotations

from minit.base.errors import PodError
from minit.base.value import Value
from minit.manifest.app import MAX_PORT, Port
from minit.manifest.hostports import HostPorts, overlap, parse_host_address
from minit.manifest.pod import ExposedPort, PodManifest


def check_ports(pod: PodManifest, place: str) -> None:
    """Raise PodError, naming the `place` of the request for ports, for a port that cannot be had."""
    taken: list[tuple[str, HostPorts]] = []
    for exposed in pod.ports:
        ports = _host_ports(exposed, exposed.pod_port or _find_port(pod, exposed.name, place), place)
        for name, others in taken:
            if overlap(ports, others):
                number = max(ports.first, others.first)
                raise PodError(
                    f'{place}: "{name}" and "{exposed.name}" both want {ports.protocol} port {number} of the host'
                )
        taken.append((exposed.name, ports))


class ForwardedPort(Value):
    """`count` ports of the host from `host_port` on that lead to as many of the pod; no `host_ip` means any address."""

    name: str
    protocol: str
    pod_port: int
    host_ip: str | None
    host_port: int
    count: int


def forwarded_ports(pod: PodManifest) -> tuple[ForwardedPort, ...]:
    """Return the ports of the host that lead to apps; PodError for a port of no app."""
    found = []
    for exposed in pod.ports:
        port = exposed.pod_port or _find_port(pod, exposed.name, "ports")
        found.append(
            ForwardedPort(
                name=exposed.name,
                protocol=port.protocol,
                pod_port=port.port,
                host_ip=exposed.host_ip,
                host_port=exposed.host_port,
                count=_host_ports(exposed, port, "ports").count,
            )
        )
    return tuple(found)


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


def _host_ports(exposed: ExposedPort, port: Port, place: str) -> HostPorts:
    # Of a range of sockets the app is started with the first socket, and only the first is forwarded.
    count = 1 if port.socket_activated and exposed.pod_port is None else port.count
    if exposed.host_port + count - 1 > MAX_PORT:
        raise PodError(
            f'{place}: "{exposed.name}" is {count} ports: the host has not so many from {exposed.host_port} on'
        )
    address = None if exposed.host_ip is None else parse_host_address(exposed.host_ip)
    return HostPorts(protocol=port.protocol, address=address, first=exposed.host_port, count=count)
