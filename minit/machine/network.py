"""
A machine's interfaces: addresses of machine.toml, or the address, routes and MTU of a lease; and the name servers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network

from pyroute2.netlink.rtnl import RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_IFINFO, RTMGRP_LINK

from minit.base.errors import NetworkError, describe
from minit.linux.loop import wait_readable
from minit.linux.stdio import complain_at_once
from minit.machine.devices import MachineDevices
from minit.machine.ipv6 import IPv6Connection, NetworkState
from minit.manifest.machineconfig import Interface, MachineConfig
from minit.network.addresses import EVERYWHERE, IPAddress, parse_address, parse_interface
from minit.network.dhcp.client import DhcpClient
from minit.network.dhcp.message import NO_ADDRESS, Answer, machine_identity
from minit.network.dhcp.message6 import RouterOption, RouterOptions
from minit.network.netlink.links import Links
from minit.network.netlink.messages import PROTOCOL_DHCP, SCOPE_LINK, SCOPE_UNIVERSE, Link, NewRoute
from minit.network.netlink.transport import KernelEvents
from minit.podfiles import paths

# With less the kernel takes IPv6 away from a link.
_MINIMUM_MTU = 1280
# Each is a message to the kernel, at every renewal.
_MAXIMUM_ROUTES = 64

_LeasedRoute = tuple[IPv4Network, IPv4Address | None]
"""A destination and its gateway, None for the link itself."""

# The limit of C libraries: glibc before 2.26, and musl.
_MAXIMUM_NAME_SERVERS = 3
_MAXIMUM_SEARCHED = 6
_LONGEST_SEARCH = 255


class Connection:
    """
    An interface: missing, present without carrier, or connected with its addresses.

    `changed` is called when the name servers may have changed. Of two leases with the same routes, the lease of the
    interface with the lower `metric` counts.
    """

    def __init__(
        self, interface: Interface, metric: int, hostname: str, state: NetworkState, changed: Callable[[], None]
    ) -> None:
        self.interface = interface
        self._metric = metric
        self._hostname = hostname
        self._state = state
        self._changed = changed
        self._kept_name = f"address-{interface.name}"
        self._leased = LeasedInterface(metric)
        self._index: int | None = None
        self._configured = False
        self._carrier = False
        self._client: DhcpClient | None = None
        self._ipv6 = IPv6Connection(interface, state, changed)

    @property
    def connected(self) -> bool:
        """Tell whether the interface has a carrier and its addresses."""
        return self._configured and self._carrier and self._ipv6.is_complete

    @property
    def missing(self) -> str:
        """The reason why the interface is not up yet."""
        if self._index is None:
            return "not there"
        return "no answer from a DHCP server" if self._carrier else "no carrier"

    @property
    def name_servers(self) -> list[str]:
        """The name servers from the interface's networks, the most important first."""
        lease = self._leased.lease
        return [*(() if lease is None else map(str, lease.name_servers)), *self._ipv6.name_servers]

    @property
    def ntp_servers(self) -> list[str]:
        """The NTP servers from the interface's networks."""
        lease = self._leased.lease
        return [*(() if lease is None else map(str, lease.ntp_servers)), *self._ipv6.ntp_servers]

    @property
    def search(self) -> list[str]:
        """The search domains from the interface's networks."""
        lease = self._leased.lease
        domains: Sequence[str] = ()
        if lease is not None:
            domains = lease.search or ((lease.domain,) if lease.domain else ())
        return [*domains, *self._ipv6.search]

    @property
    def deadline(self) -> float | None:
        """The time of the clients' next work."""
        if not self._carrier:
            return None
        own = None if self._client is None else self._client.deadline
        return min((one for one in (own, self._ipv6.deadline) if one is not None), default=None)

    def filenos(self) -> list[int]:
        """Return the descriptors of the clients."""
        own = None if self._client is None else self._client.fileno()
        return [fd for fd in (own, self._ipv6.fileno()) if fd is not None]

    def hear(self, option: RouterOption) -> None:
        """Take a router's option, if it is about this interface."""
        if option.index == self._index:
            self._ipv6.hear(option)

    def turn(self, links: Links) -> None:
        """Bring an interface up after its appearance, and go on with its addresses."""
        try:
            link = links.find(self.interface.name)
            if link is None or link.index != self._index:
                self._forget()
            if link is None:
                return
            if self._index is None:
                self._ipv6.prepare(link)
                links.set_up(link)
                link = links.get(link.name)
                self._index = link.index
                self._configure(links, link)
                self._configured = not self.interface.dhcp
            had_carrier, self._carrier = self._carrier, link.carrier
            if self.interface.dhcp and self._carrier:
                if self._client is None or not had_carrier:
                    self._start_client(link)
                assert self._client is not None
                self._client.turn()
            if not self._carrier and had_carrier:
                self._ipv6.forget()
            elif self._carrier:
                self._ipv6.turn(links, link)
        except (NetworkError, OSError) as error:
            complain_at_once(f"minit: interface {self.interface.name}: {describe(error)}")

    def _start_client(self, link: Link) -> None:
        # After a new carrier the network may be another: the client asks for the lease anew.
        if self._client is not None:
            self._client.close()
            self._change(None)
        mac = bytes.fromhex(link.mac.replace(":", ""))
        identity = machine_identity(mac, self._hostname)
        self._client = DhcpClient(link.name, identity, self._change, self._complain, self._remembered())

    def _remembered(self) -> IPv4Address:
        try:
            return IPv4Address(self._state.read(self._kept_name))
        except ValueError:
            return NO_ADDRESS

    def _complain(self, line: str) -> None:
        complain_at_once(f"minit: interface {self.interface.name}: {line}")

    def _change(self, lease: Answer | None) -> None:
        """Take the place of the previous lease."""
        with Links() as links:
            link = links.find(self.interface.name)
            if link is not None:
                self._leased.change(links, link, lease)
        self._configured = lease is not None
        if lease is not None:
            self._state.write(self._kept_name, str(lease.address.ip))
        self._changed()

    def _configure(self, links: Links, link: Link) -> None:
        present = links.addresses(link)
        for address in map(parse_interface, self.interface.addresses):
            if address not in present:
                links.add_address(link, address)
        for gateway in (self.interface.gateway, self.interface.gateway6):
            if gateway is not None:
                self._set_gateway(links, link, parse_address(gateway))

    def _set_gateway(self, links: Links, link: Link, gateway: IPAddress) -> None:
        everywhere = EVERYWHERE[gateway.version]
        present = [route for route in links.routes() if route.destination == everywhere]
        # For IPv6 the kernel takes a single route of a metric to a destination, whatever the interface.
        if not any(route.index == link.index or gateway.version == 6 for route in present):
            links.add_route(link, NewRoute(destination=everywhere, gateway=gateway))

    def _forget(self) -> None:
        if self._client is not None:
            self._client.close()
        had_lease = self._leased.lease is not None
        self._index, self._client, self._leased = None, None, LeasedInterface(self._metric)
        self._configured = self._carrier = False
        self._ipv6.forget()
        if had_lease:
            self._changed()


def _leased_routes(lease: Answer | None) -> Sequence[_LeasedRoute]:
    """
    Return the routes of a lease, routes to the link first: a gateway has to be within reach.

    Where there are classless routes, no router counts (RFC 3442).
    """
    if lease is None:
        return ()
    routes: list[_LeasedRoute] = [
        (each.destination, None if each.router == NO_ADDRESS else each.router) for each in lease.classless_routes
    ]
    if not routes:
        routes = [(IPv4Network(EVERYWHERE[4]), router) for router in lease.routers[:1]]
    return sorted(dict.fromkeys(routes[:_MAXIMUM_ROUTES]), key=lambda route: route[1] is not None)


class LeasedInterface:
    """
    The interface with the settings of leases. Its routes have a `metric`: of several interfaces the first has the
    lowest.

    Failures are reported, and the rest is done.
    """

    def __init__(self, metric: int) -> None:
        self.lease: Answer | None = None
        self._metric = metric
        self._own_mtu: int | None = None

    def change(self, links: Links, link: Link, lease: Answer | None) -> None:
        """Take a lease instead of the previous lease, or none."""
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
        # Also addresses of a dead helper. The routes by an address go with the address.
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

    def _set_routes(
        self, links: Links, link: Link, old: Sequence[_LeasedRoute], wanted: Sequence[_LeasedRoute]
    ) -> None:
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


class MachineNetwork:
    """
    All interfaces of the configuration; `turn` is called when a descriptor of `filenos` is readable, and at `deadline`.

    `state` is the machine's state directory, if there is one.
    """

    def __init__(
        self, config: MachineConfig, resolv_conf: str = paths.MACHINE_RESOLV_CONF, state: str | None = None
    ) -> None:
        self._links = Links()
        self._resolv_conf = resolv_conf
        self._events = KernelEvents(RTMGRP_LINK | RTMGRP_IPV6_IFINFO | RTMGRP_IPV6_IFADDR)
        self._router_options = RouterOptions()
        self._static_name_servers = config.name_servers
        kept = NetworkState(state)
        self._interfaces = [
            Connection(interface, metric, config.hostname, kept, self.write_resolv_conf)
            for metric, interface in enumerate(config.interfaces)
        ]
        self._written: str | None = None
        # An existing file is of a dead helper, and as good as any now.
        if not os.path.exists(resolv_conf):
            self.write_resolv_conf()

    @property
    def deadline(self) -> float | None:
        """The monotonic time of the next work, None without any."""
        return min((one.deadline for one in self._interfaces if one.deadline is not None), default=None)

    @property
    def ntp_servers(self) -> list[str]:
        """The NTP servers of all leases."""
        return [server for one in self._interfaces for server in one.ntp_servers]

    def filenos(self) -> list[int]:
        """Return the descriptors to poll."""
        clients = [fd for one in self._interfaces for fd in one.filenos()]
        return [self._events.fileno(), self._router_options.fileno(), *clients]

    def turn(self) -> None:
        """Look at the links, and do the due work."""
        self._events.drop()
        for one in self._interfaces:
            one.turn(self._links)
        for option in self._router_options.take():
            for one in self._interfaces:
                one.hear(option)

    def wait(self, devices: MachineDevices) -> None:
        """Wait for the interfaces that apps need, each for its configured time."""
        begun = time.monotonic()
        while True:
            self.turn()
            now = time.monotonic()
            waits = [one.interface.wait_seconds for one in self._interfaces if not one.connected]
            left = begun + max(waits, default=0) - now
            if left <= 0:
                break
            until = now + left if self.deadline is None else min(self.deadline, now + left)
            if devices.fileno() in wait_readable([*self.filenos(), devices.fileno()], until - now):
                devices.look()
        for one in self._interfaces:
            if not one.connected and one.interface.wait_seconds:
                name, seconds = one.interface.name, one.interface.wait_seconds
                complain_at_once(f"minit: interface {name}: {one.missing} after {seconds} s")

    def write_resolv_conf(self) -> None:
        """Write the name servers, in place: the apps have this very file mounted."""
        servers = list(self._static_name_servers)
        domains: list[str] = []
        for one in self._interfaces:
            servers += one.name_servers
            domains += one.search
        search = _bounded(dict.fromkeys(domains))
        lines = [f"search {search}\n"] if search else []
        lines += [f"nameserver {server}\n" for server in list(dict.fromkeys(servers))[:_MAXIMUM_NAME_SERVERS]]
        text = "".join(lines)
        if text == self._written:
            return
        try:
            with open(self._resolv_conf, "w", encoding="ascii") as file:
                file.write(text)
            self._written = text
        except OSError as error:
            complain_at_once(f"minit: {describe(error)}")


def _bounded(domains: Iterable[str]) -> str:
    """Return as many of the names, from the first on, as any C library takes."""
    taken = ""
    for name in list(domains)[:_MAXIMUM_SEARCHED]:
        longer = f"{taken} {name}".strip()
        if len(longer) > _LONGEST_SEARCH:
            break
        taken = longer
    return taken
