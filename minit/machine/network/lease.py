"""A lease of IPv4 on an interface: its address, its routes, its MTU."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network

from minit.errors import NetworkError
from minit.network.addresses import EVERYWHERE
from minit.network.dhcp.message import NO_ADDRESS, Answer
from minit.network.netlink.links import Links
from minit.network.netlink.messages import PROTOCOL_DHCP, SCOPE_LINK, SCOPE_UNIVERSE, Link, NewRoute
from minit.stdio import complain_at_once

# With less the kernel takes IPv6 away from a link.
_MINIMUM_MTU = 1280
# Each is a message to the kernel, at every renewal.
_MAXIMUM_ROUTES = 64

LeasedRoute = tuple[IPv4Network, IPv4Address | None]
"""A destination and its gateway, None for the link itself."""


def _leased_routes(lease: Answer | None) -> Sequence[LeasedRoute]:
    """
    Return the routes of a lease, those to the link first: a gateway has to be within reach.

    Where there are classless routes, no router counts (RFC 3442).
    """
    if lease is None:
        return ()
    routes: list[LeasedRoute] = [
        (each.destination, None if each.router == NO_ADDRESS else each.router) for each in lease.classless_routes
    ]
    if not routes:
        routes = [(IPv4Network(EVERYWHERE[4]), router) for router in lease.routers[:1]]
    return sorted(dict.fromkeys(routes[:_MAXIMUM_ROUTES]), key=lambda route: route[1] is not None)


class LeasedInterface:
    """
    The interface as leases leave it. Its routes have a `metric`: of several interfaces the first has the lowest.

    Whatever cannot be done is said, and the rest done.
    """

    def __init__(self, metric: int) -> None:
        self.lease: Answer | None = None
        self._metric = metric
        self._own_mtu: int | None = None

    def change(self, links: Links, link: Link, lease: Answer | None) -> None:
        """Take a lease instead of the previous one, or none."""
        old, self.lease = self.lease, lease
        try:
            self._set_address(links, link, old, lease)
            self._set_routes(links, link, _leased_routes(old), _leased_routes(lease))
            if old is None or lease is None or old.mtu != lease.mtu:
                self._set_mtu(links, link, None if lease is None else lease.mtu)
        except NetworkError as error:
            _complain(link, str(error))

    def _set_address(self, links: Links, link: Link, old: Answer | None, lease: Answer | None) -> None:
        wanted = None if lease is None else lease.address
        previous = [] if old is None else [old.address]
        # Of a helper that died as well. The routes by an address go with it.
        present = [one for one in links.addresses(link, leased=True) if one.version == 4]
        for address in dict.fromkeys([*present, *previous]):
            if address != wanted:
                links.delete_address(link, address)
        if lease is not None:
            links.lease_address(link, lease.address, lease.lease_seconds)
            if wanted not in previous:
                _complain(link, str(wanted))

    def _set_mtu(self, links: Links, link: Link, mtu: int | None) -> None:
        wanted = self._own_mtu if mtu is None or mtu < _MINIMUM_MTU else mtu
        if wanted is None or wanted == link.mtu:
            return
        if self._own_mtu is None:
            self._own_mtu = link.mtu
        links.set_mtu(link, wanted)

    def _set_routes(self, links: Links, link: Link, old: Sequence[LeasedRoute], wanted: Sequence[LeasedRoute]) -> None:
        present = {
            (route.destination, route.gateway)
            for route in links.routes()
            if (route.index, route.protocol, route.destination.version) == (link.index, PROTOCOL_DHCP, 4)
        }
        for destination, _ in present - set(wanted):
            links.delete_route(link, destination)
        for destination, gateway in wanted:
            if (destination, gateway) in present:
                continue
            new = NewRoute(
                destination=destination,
                gateway=gateway,
                scope=SCOPE_LINK if gateway is None else SCOPE_UNIVERSE,
                metric=self._metric or None,
                protocol=PROTOCOL_DHCP,
            )
            try:
                links.add_route(link, new)
            except NetworkError as error:
                if (destination, gateway) not in old:  # said once, not at every renewal
                    _complain(link, str(error))


def _complain(link: Link, line: str) -> None:
    complain_at_once(f"minit: interface {link.name}: {line}")
