"""
The ports of the host that lead to ports of the pod.

Rules and words are rkt's (stage1 contract 15.5).
"""

from __future__ import annotations

from collections.abc import Mapping

from minit.base.errors import PlanError
from minit.manifest.app import MAX_PORT, App, Port
from minit.manifest.hostports import Address, overlap, parse_host_address
from minit.manifest.pod import ExposedPort, PodManifest
from minit.plan.networks.networkplan import ForwardedPort

_EVERY_ADDRESS = "0.0.0.0"
_PROTOCOLS = ("tcp", "udp")


def plan_ports(manifest: PodManifest, sections: Mapping[str, App], lowest_port: int = 0) -> tuple[ForwardedPort, ...]:
    """
    Return the ports to forward, in the manifest's order; `sections` are the apps' own sections by name.

    PlanError for a port that leads nowhere, or that has been given away, and for a port of the machine below
    `lowest_port` that nobody has opened for the pod.
    """
    planned: list[ForwardedPort] = []
    for index, exposed in enumerate(manifest.ports):
        place = f"pod: ports[{index}]"
        port = _plan_port(exposed, place, manifest, sections, lowest_port)
        for other in planned:
            if overlap(port.host_ports, other.host_ports):
                raise PlanError(f"port {describe_port(port)} already mapped to pod port {other.pod_port}")
        planned.append(port)
    return tuple(planned)


def describe_port(port: ForwardedPort) -> str:
    """Return the host's side of a port as rkt names it."""
    address = _EVERY_ADDRESS if port.host_ip is None else host_text(port.host_ip)
    return f"{port.protocol}-{address}:{numbers_text(port.host_port, port.count)}"


def host_text(address: Address) -> str:
    """Return an address as it stands before a port."""
    return f"[{address}]" if address.version == 6 else str(address)


def numbers_text(first: int, count: int) -> str:
    """Return ports as text: one number, or the first and the last one."""
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def _plan_port(
    exposed: ExposedPort, place: str, manifest: PodManifest, sections: Mapping[str, App], lowest_port: int
) -> ForwardedPort:
    port = exposed.pod_port or _find_port(exposed.name, sections)
    number, count = port.port, port.count
    if port.socket_activated and exposed.pod_port is None:
        # The app finds the port open at the number that the host's service manager knows (`plan_sockets`).
        # Of a range the first is open, and no other.
        number = next(other.host_port for other in manifest.ports if other.name == exposed.name)
        count = 1
    if port.protocol not in _PROTOCOLS:
        raise PlanError(f'{place}: port "{exposed.name}": cannot forward protocol "{port.protocol}", only tcp and udp')
    if exposed.host_port < lowest_port and not port.socket_activated:
        raise PlanError(
            f"{place}: {port.protocol} port {exposed.host_port} of the machine: users may have ports from {lowest_port}"
            " on (net.ipv4.ip_unprivileged_port_start)"
        )
    if exposed.host_port + count - 1 > MAX_PORT:
        raise PlanError(
            f'{place}: port "{exposed.name}" is {count} ports: the host has not so many from {exposed.host_port} on'
        )
    return ForwardedPort(
        protocol=port.protocol,
        host_port=exposed.host_port,
        pod_port=number,
        host_ip=None if exposed.host_ip is None else parse_host_address(exposed.host_ip),
        count=count,
    )


def _find_port(name: str, sections: Mapping[str, App]) -> Port:
    found = [port for app in sections.values() for port in app.ports if port.name == name]
    if not found:
        raise PlanError(f'port name "{name}" could not be found in any apps')
    if len(found) > 1:
        raise PlanError(f'port name "{name}" defined multiple apps')
    return found[0]
