"""Comparing what is there of an attachment with what its result says."""

from __future__ import annotations

from collections.abc import Mapping

from minit.errors import NetworkError
from minit.network.builtin.attachment import Sides, host_end
from minit.network.builtin.config import lease_parent, network_name, uses_leases
from minit.network.builtin.hostlocal import holds_lease, lease_directory
from minit.network.ipv4 import parse_address, parse_interface, subnet_of
from minit.network.netlink.links import Link
from minit.network.request import Request
from minit.network.result import Result


def check_attachment(
    config: Mapping[str, object], request: Request, previous: Result | None, bridge: str | None
) -> None:
    """
    Raise NetworkError with the first thing that is not as `previous`, the result of the last ADD, says.

    With `bridge` the host's end is to be a port of the bridge of that name.
    """
    if previous is None:
        raise NetworkError("CHECK needs the result of ADD")
    if uses_leases(config) and not holds_lease(lease_directory(lease_parent(config), network_name(config)), request):
        raise NetworkError(f'{request.interface} has no lease in network "{network_name(config)}"')
    with Sides(request) as sides:
        pod, host = sides.pod.find(request.interface), sides.host.find(host_end(request))
        if pod is None:
            raise NetworkError(f"interface {request.interface} is gone")
        if host is None or host.peer != pod.index:
            raise NetworkError(f"interface {host_end(request)}, the host's end of {request.interface}, is gone")
        for link, sandbox in ((pod, request.namespace), (host, "")):
            _check_link(link, sandbox, previous)
        _check_addresses(sides.pod.addresses(pod), pod, previous)
        _check_routes(sides, previous)
        if bridge is not None:
            master = sides.host.find(bridge)
            if master is None or master.index != host.master:
                raise NetworkError(f"interface {host.name} is not connected to bridge {bridge}")
            _check_link(master, "", previous)


def _check_link(link: Link, sandbox: str, previous: Result) -> None:
    if not link.up:
        raise NetworkError(f"interface {link.name} is down")
    for interface in previous.interfaces:
        if (interface.name, interface.sandbox) != (link.name, sandbox) or not interface.mac:
            continue
        if interface.mac.lower() != link.mac.lower():
            raise NetworkError(f"interface {link.name} has the hardware address {link.mac}, not {interface.mac}")


def _check_addresses(present: list[tuple[int, int]], pod: Link, previous: Result) -> None:
    for address in previous.addresses:
        at = address.interface
        elsewhere = at is not None and at < len(previous.interfaces) and previous.interfaces[at].name != pod.name
        if not elsewhere and ":" not in address.address and parse_interface(address.address) not in present:
            raise NetworkError(f"interface {pod.name} does not have the address {address.address}")


def _check_routes(sides: Sides, previous: Result) -> None:
    present = [(route.destination, route.gateway) for route in sides.pod.routes()]
    for route in previous.routes:
        if ":" in route.destination:
            continue
        destination = subnet_of(*parse_interface(route.destination))
        gateways = [gateway for other, gateway in present if other == destination]
        if not gateways or (route.gateway is not None and parse_address(route.gateway) not in gateways):
            via = "" if route.gateway is None else f" via {route.gateway}"
            raise NetworkError(f"the route to {route.destination}{via} is gone")
