"""Giving a pod's link the addresses and routes that were leased for it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from pyroute2.netlink.rtnl import RTMGRP_IPV6_IFADDR
from pyroute2.netlink.rtnl.ifaddrmsg import IFA_F_DADFAILED, IFA_F_TENTATIVE

from minit.base.errors import NetworkError
from minit.linux.loop import wait_readable
from minit.network.addresses import IPAddress, IPInterface
from minit.network.builtin.attachment import Sides
from minit.network.netlink.events import KernelEvents
from minit.network.netlink.links import Links, run_in_namespace
from minit.network.netlink.messages import SCOPE_LINK, SCOPE_UNIVERSE, Link, NewRoute
from minit.network.protocol.result import Address, Route

_TIMEOUT_SECONDS = 10.0  # as long as the reference plugins wait


class DuplicateDetection:
    """The kernel's events about addresses in the namespace of a descriptor, from before any is added."""

    def __init__(self, namespace: int, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        self._timeout_seconds = timeout_seconds
        self._events = run_in_namespace(namespace, lambda: KernelEvents(RTMGRP_IPV6_IFADDR))

    def __enter__(self) -> DuplicateDetection:
        return self

    def __exit__(self, *_: object) -> None:
        self._events.__exit__()

    def wait(self, links: Links, link: Link, addresses: Collection[IPInterface]) -> None:
        """Wait until a link that is up can use its addresses; NetworkError if somebody else has one of them."""
        end = time.monotonic() + self._timeout_seconds
        while True:
            flags = {address: flag for address, flag in links.address_flags(link) if address in addresses}
            duplicate = next((address for address, flag in flags.items() if flag & IFA_F_DADFAILED), None)
            if duplicate is not None:
                raise NetworkError(f"address {duplicate} of {link.name} is a neighbour's already: it needs another one")
            tentative = next((address for address, flag in flags.items() if flag & IFA_F_TENTATIVE), None)
            if tentative is None:
                return
            remaining = end - time.monotonic()
            if remaining <= 0:
                reason = "" if links.get(link.name).carrier else ": the link below has no carrier"
                raise NetworkError(f"address {tentative} of {link.name} is still tentative{reason}")
            wait_readable([self._events.fileno()], remaining)
            self._events.drop()


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
