"""The machine's network: its interfaces as machine.toml has them, brought up as they appear, and their leases kept."""

from __future__ import annotations

import os
import time

from minit import paths
from minit.errors import NetworkError, describe
from minit.loop import wait_readable
from minit.machine.devices import MachineDevices
from minit.manifest.machineconfig import Interface, MachineConfig
from minit.network.addresses import EVERYWHERE, IPAddress, parse_address, parse_interface
from minit.network.dhcp.client import DhcpClient
from minit.network.dhcp.message import Answer, machine_identity
from minit.network.netlink.events import KernelEvents
from minit.network.netlink.links import Links
from minit.network.netlink.messages import Link, NewRoute
from minit.stdio import complain_at_once

_MAXIMUM_NAME_SERVERS = 3  # of the C library


class MachineNetwork:
    """All interfaces of the configuration; `turn` is called when one of `filenos` can be read, and at `deadline`."""

    def __init__(self, config: MachineConfig, resolv_conf: str = paths.MACHINE_RESOLV_CONF) -> None:
        self._links = Links()
        self._resolv_conf = resolv_conf
        self._events = KernelEvents()
        self._static_name_servers = config.name_servers
        self._interfaces = [_Connection(interface, config.hostname, self) for interface in config.interfaces]
        self._written: str | None = None
        # One that is there is of a helper that died, and as good as what can be said now.
        if not os.path.exists(resolv_conf):
            self.write_resolv_conf()

    @property
    def deadline(self) -> float | None:
        """The monotonic time at which something is due, None if nothing is."""
        return min((one.deadline for one in self._interfaces if one.deadline is not None), default=None)

    def filenos(self) -> list[int]:
        """Return the descriptors to poll."""
        clients = [one.fileno() for one in self._interfaces]
        return [self._events.fileno(), *(fd for fd in clients if fd is not None)]

    def turn(self) -> None:
        """Look at the links, and do what is due."""
        self._events.drop()
        for one in self._interfaces:
            one.turn(self._links)

    def wait(self, devices: MachineDevices) -> None:
        """Wait for the interfaces that apps wait for, each as long as it says."""
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
        domains = []
        for one in self._interfaces:
            if one.lease is not None:
                servers += map(str, one.lease.name_servers)
                domains += [one.lease.domain] if one.lease.domain else []
        lines = [f"search {' '.join(domains)}\n"] if domains else []
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


class _Connection:
    """One interface: not there, there without carrier, or connected with the addresses it is to have."""

    def __init__(self, interface: Interface, hostname: str, network: MachineNetwork) -> None:
        self.interface = interface
        self.lease: Answer | None = None
        self._hostname = hostname
        self._network = network
        self._index: int | None = None
        self._configured = False
        self._carrier = False
        self._client: DhcpClient | None = None

    @property
    def connected(self) -> bool:
        """Tell whether it has a carrier and its addresses."""
        return self._configured and self._carrier

    @property
    def missing(self) -> str:
        """The reason why it is not up yet."""
        if self._index is None:
            return "not there"
        return "no answer from a DHCP server" if self._carrier else "no carrier"

    @property
    def deadline(self) -> float | None:
        """The time at which its client has something to do."""
        return None if self._client is None or not self._carrier else self._client.deadline

    def fileno(self) -> int | None:
        """Return the descriptor of its client."""
        return None if self._client is None else self._client.fileno()

    def turn(self, links: Links) -> None:
        """Bring it up if it has appeared, and go on with its addresses."""
        try:
            link = links.find(self.interface.name)
            if link is None or link.index != self._index:
                self._forget()
            if link is None:
                return
            if self._index is None:
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
        except (NetworkError, OSError) as error:
            complain_at_once(f"minit: interface {self.interface.name}: {describe(error)}")

    def _start_client(self, link: Link) -> None:
        # With a new carrier it may be another network: the lease is asked for anew.
        if self._client is not None:
            self._client.close()
            self._change(None)
        mac = bytes.fromhex(link.mac.replace(":", ""))
        identity = machine_identity(mac, self._hostname)
        self._client = DhcpClient(link.name, identity, self._change, self._complain)

    def _complain(self, line: str) -> None:
        complain_at_once(f"minit: interface {self.interface.name}: {line}")

    def _change(self, lease: Answer | None) -> None:
        """Take the place of the previous lease."""
        with Links() as links:
            link = links.find(self.interface.name)
            if link is not None:
                self._replace(links, link, lease)
        self.lease, self._configured = lease, lease is not None
        self._network.write_resolv_conf()

    def _replace(self, links: Links, link: Link, lease: Answer | None) -> None:
        wanted = None if lease is None else lease.address
        old = [] if self.lease is None else [self.lease.address]
        try:
            # Of a helper that died as well. The routes by an address go with it.
            present = [one for one in links.addresses(link, leased=True) if one.version == 4]
            for address in dict.fromkeys([*present, *old]):
                if address != wanted:
                    links.delete_address(link, address)
            if lease is not None and wanted is not None:
                links.lease_address(link, wanted, lease.lease_seconds)
                if lease.routers:
                    self._set_gateway(links, link, lease.routers[0])
                if wanted not in old:
                    complain_at_once(f"minit: interface {link.name}: {wanted}")
        except NetworkError as error:
            complain_at_once(f"minit: interface {link.name}: {error}")

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
        had_lease = self.lease is not None
        self._index, self._client, self.lease = None, None, None
        self._configured = self._carrier = False
        if had_lease:
            self._network.write_resolv_conf()
