"""Giving a pod's link the addresses and routes that were leased for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from minit.network.addresses import IPAddress
from minit.network.builtin.attachment import Sides
from minit.network.netlink.duplicates import DuplicateDetection
from minit.network.netlink.links import Links
from minit.network.netlink.messages import SCOPE_LINK, SCOPE_UNIVERSE, Link, NewRoute
from minit.network.protocol.result import Address, Route


def add_addresses(sides: Sides, pod: Link, addresses: Sequence[Address], duplicates: bool) -> None:
    """
    Give the pod's link its addresses and bring it up.

    With `duplicates` the neighbours are asked for the IPv6 ones first; NetworkError if one of them has one.
    """
    wanted = [one.address for one in addresses]
    with DuplicateDetection(sides.namespace) as detection:
        for address in wanted:
            sides.pod.add_address(pod, address, duplicates=duplicates)
        sides.pod.set_up(pod)
        detection.wait(sides.pod, pod, wanted)


def usual_gateways(addresses: Sequence[Address]) -> dict[int, IPAddress]:
    """Return the gateway of each IP version, that of the first address that has one."""
    return {one.gateway.version: one.gateway for one in reversed(addresses) if one.gateway is not None}


def add_routes(links: Links, pod: Link, routes: Iterable[Route], gateways: Mapping[int, IPAddress]) -> None:
    """Add routes by the pod's link: one without a gateway goes by that of its version, or ends on the link itself."""
    for route in routes:
        usual = None if route.scope == SCOPE_LINK else gateways.get(route.destination.version)
        links.add_route(
            pod,
            NewRoute(
                destination=route.destination,
                gateway=route.gateway or usual,
                scope=SCOPE_UNIVERSE if route.scope is None else route.scope,
                is_alternative=True,
                metric=route.priority,
                mtu=route.mtu,
                advertised_mss=route.advertised_mss,
                table=route.table,
            ),
        )
