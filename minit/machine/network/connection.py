"""One interface of a machine: its addresses of machine.toml, or those of a lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import IPv4Address

from minit.errors import NetworkError, describe
from minit.machine.network.ipv6 import IPv6Connection
from minit.machine.network.lease import LeasedInterface
from minit.machine.network.networkstate import NetworkState
from minit.manifest.machineconfig import Interface
from minit.network.addresses import EVERYWHERE, IPAddress, parse_address, parse_interface
from minit.network.dhcp.client import DhcpClient
from minit.network.dhcp.message import NO_ADDRESS, Answer, machine_identity
from minit.network.netlink.links import Links
from minit.network.netlink.messages import Link, NewRoute
from minit.network.netlink.routeroptions import RouterOption
from minit.stdio import complain_at_once


class Connection:
    """
    One interface: not there, there without carrier, or connected with the addresses it is to have.

    `changed` is called when its name servers may have changed. Of two leases with the same routes, the one of the
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
        """Tell whether it has a carrier and its addresses."""
        return self._configured and self._carrier and self._ipv6.is_complete

    @property
    def missing(self) -> str:
        """The reason why it is not up yet."""
        if self._index is None:
            return "not there"
        return "no answer from a DHCP server" if self._carrier else "no carrier"

    @property
    def name_servers(self) -> list[str]:
        """The name servers that its networks tell, the most important first."""
        lease = self._leased.lease
        return [*(() if lease is None else map(str, lease.name_servers)), *self._ipv6.name_servers]

    @property
    def ntp_servers(self) -> list[str]:
        """The servers that tell the time."""
        lease = self._leased.lease
        return [*(() if lease is None else map(str, lease.ntp_servers)), *self._ipv6.ntp_servers]

    @property
    def search(self) -> list[str]:
        """The domains in which its networks have names looked up."""
        lease = self._leased.lease
        domains: Sequence[str] = ()
        if lease is not None:
            domains = lease.search or ((lease.domain,) if lease.domain else ())
        return [*domains, *self._ipv6.search]

    @property
    def deadline(self) -> float | None:
        """The time at which its client has something to do."""
        if not self._carrier:
            return None
        own = None if self._client is None else self._client.deadline
        return min((one for one in (own, self._ipv6.deadline) if one is not None), default=None)

    def filenos(self) -> list[int]:
        """Return the descriptors of its clients."""
        own = None if self._client is None else self._client.fileno()
        return [fd for fd in (own, self._ipv6.fileno()) if fd is not None]

    def hear(self, option: RouterOption) -> None:
        """Take what a router has said, if it is about this interface."""
        if option.index == self._index:
            self._ipv6.hear(option)

    def turn(self, links: Links) -> None:
        """Bring it up if it has appeared, and go on with its addresses."""
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
        # With a new carrier it may be another network: the lease is asked for anew.
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
        # Of IPv6 the kernel takes one route of a metric to a destination, whatever the interface.
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
