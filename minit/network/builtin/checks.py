"""Comparing what is there of an attachment with what its result says."""

from __future__ import annotations

from collections.abc import Collection

from minit.base.errors import NetworkError
from minit.network.addresses import IPInterface
from minit.network.builtin.attachment import Sides, check_lease, host_end
from minit.network.builtin.call import Call
from minit.network.netlink.messages import TABLE_MAIN, Link
from minit.network.protocol.result import Result


def check_attachment(call: Call, bridge: str | None, *, is_down: bool = False) -> None:
    """
    Raise NetworkError with the first thing that is not as the result of the last ADD says.

    With `bridge` the host's end is to be a port of the bridge of that name; with `is_down` the pod's end is left down.
    """
    request, previous = call.request, call.need_result_of_add()
    check_lease(call)
    with Sides(request) as sides:
        pod, host = sides.pod.find(request.interface), sides.host.find(host_end(request))
        if pod is None:
            raise NetworkError(f"interface {request.interface} is gone")
        if host is None or host.peer != pod.index:
            raise NetworkError(f"interface {host_end(request)}, the host's end of {request.interface}, is gone")
        check_link(host, "", previous)
        if not is_down:
            check_link(pod, request.namespace, previous)
        check_addresses(sides.pod.addresses(pod), pod, previous)
        check_routes(sides, previous)
        if bridge is not None:
            master = sides.host.find(bridge)
            if master is None or master.index != host.master:
                raise NetworkError(f"interface {host.name} is not connected to bridge {bridge}")
            check_link(master, "", previous)


def check_link(link: Link, sandbox: str, previous: Result) -> None:
    """Raise NetworkError if a link is down or has another hardware address."""
    if not link.up:
        raise NetworkError(f"interface {link.name} is down")
    for interface in previous.interfaces:
        if (interface.name, interface.sandbox) != (link.name, sandbox) or not interface.mac:
            continue
        if interface.mac.lower() != link.mac.lower():
            raise NetworkError(f"interface {link.name} has the hardware address {link.mac}, not {interface.mac}")


def check_addresses(present: Collection[IPInterface], pod: Link, previous: Result) -> None:
    """Raise NetworkError if the pod's link lacks one of its addresses."""
    for address in previous.addresses:
        at = address.interface
        elsewhere = at is not None and at < len(previous.interfaces) and previous.interfaces[at].name != pod.name
        if not elsewhere and address.address not in present:
            raise NetworkError(f"interface {pod.name} does not have the address {address.address}")


def check_routes(sides: Sides, previous: Result) -> None:
    """Raise NetworkError if the pod lacks one of its routes."""
    present = {table: sides.pod.routes(table) for table in {route.table or TABLE_MAIN for route in previous.routes}}
    for route in previous.routes:
        found = present[route.table or TABLE_MAIN]
        gateways = [one.gateway for one in found if one.destination == route.destination]
        if not gateways or (route.gateway is not None and route.gateway not in gateways):
            via = "" if route.gateway is None else f" via {route.gateway}"
            raise NetworkError(f"the route to {route.destination}{via} is gone")
