"""
Deciding which ports of the host lead to which ports of the pod.

The rules and the words are those of rkt (stage1 contract 15.5).
"""

from __future__ import annotations

from collections.abc import Mapping

from minit.errors import PlanError
from minit.manifest.app import App, Port
from minit.manifest.pod import ExposedPort, PodManifest
from minit.plan.networks.networkplan import ForwardedPort

EVERY_ADDRESS = "0.0.0.0"
_PROTOCOLS = ("tcp", "udp")


def plan_ports(manifest: PodManifest, sections: Mapping[str, App]) -> tuple[ForwardedPort, ...]:
    """
    Return the ports to forward, in the manifest's order; `sections` are the apps' own sections by name.

    Of a range only the first port is forwarded. PlanError for a port that leads nowhere, or that has been given away.
    """
    planned: list[ForwardedPort] = []
    for index, exposed in enumerate(manifest.ports):
        port = _plan_port(exposed, f"pod: ports[{index}]", manifest, sections)
        for other in planned:
            if overlap(port, other):
                raise PlanError(f"port {describe_port(port)} already mapped to pod port {other.pod_port}")
        planned.append(port)
    return tuple(planned)


def overlap(one: ForwardedPort, other: ForwardedPort) -> bool:
    """Tell whether a packet to the host can be meant by both."""
    same_port = (one.protocol, one.host_port) == (other.protocol, other.host_port)
    return same_port and (one.host_ip is None or other.host_ip is None or one.host_ip == other.host_ip)


def describe_port(port: ForwardedPort) -> str:
    """Return the host's side of a port as rkt names it."""
    return f"{port.protocol}-{port.host_ip or EVERY_ADDRESS}:{port.host_port}"


def _plan_port(exposed: ExposedPort, place: str, manifest: PodManifest, sections: Mapping[str, App]) -> ForwardedPort:
    port = exposed.pod_port or _find_port(exposed.name, sections)
    number = port.port
    if port.socket_activated and exposed.pod_port is None:
        # The app finds it open at the number by which the host's service manager knows it (`plan_sockets`).
        number = next(other.host_port for other in manifest.ports if other.name == exposed.name)
    if port.protocol not in _PROTOCOLS:
        raise PlanError(f'{place}: port "{exposed.name}": cannot forward protocol "{port.protocol}", only tcp and udp')
    if exposed.host_ip is not None and ":" in exposed.host_ip:
        raise PlanError(f"{place}.hostIP: ports are forwarded from IPv4 addresses only, not from {exposed.host_ip}")
    return ForwardedPort(
        protocol=port.protocol,
        host_port=exposed.host_port,
        pod_port=number,
        host_ip=None if exposed.host_ip == EVERY_ADDRESS else exposed.host_ip,
    )


def _find_port(name: str, sections: Mapping[str, App]) -> Port:
    found = [port for app in sections.values() for port in app.ports if port.name == name]
    if not found:
        raise PlanError(f'port name "{name}" could not be found in any apps')
    if len(found) > 1:
        raise PlanError(f'port name "{name}" defined multiple apps')
    return found[0]
