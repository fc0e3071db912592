"""
The IPv6 of an interface: advertisements of routers, and the lease of a DHCP server; and texts that outlive a boot.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv6Interface

from pyroute2.netlink.rtnl.ifaddrmsg import IFA_F_TENTATIVE

from minit.base.errors import LaunchError, NetworkError, describe
from minit.linux.stdio import complain_at_once
from minit.manifest.machineconfig import Interface
from minit.network.dhcp.client6 import Dhcp6Client
from minit.network.dhcp.message6 import Answer6, LeasedAddress, RouterOption, is_duid, link_layer_duid, solicit_routers
from minit.network.netlink.links import Links, write_sysctl
from minit.network.netlink.messages import Link
from minit.podfiles.podfile import write_pod_file

# include/net/if_inet6.h: flags of the last advertisement.
_ADDRESSES_BY_DHCP = 0x40
_THE_REST_BY_DHCP = 0x80
_ACCEPT_ALWAYS = "2"  # also by a machine that forwards packets
_DUID = "duid"
_WHOLE = 128
_MOST_ENTRIES = 8

_DIRECTORY = "network"
_MAXIMUM_BYTES = 4096


class IPv6Connection:
    """
    An interface's IPv6 beside its addresses of machine.toml.

    `changed` is called when the name servers may have changed.
    """

    def __init__(self, interface: Interface, state: NetworkState, changed: Callable[[], None]) -> None:
        self._interface = interface
        self._state = state
        self._changed = changed
        self._client: Dhcp6Client | None = None
        self._answer: Answer6 | None = None
        self._unchecked: IPv6Interface | None = None
        # The end of each server's lifetime, in the order of arrival.
        self._advertised_servers: dict[str, float] = {}
        self._advertised_search: dict[str, float] = {}

    @property
    def is_complete(self) -> bool:
        """Whether the interface has the lease that the configuration asks for."""
        has_lease = self._answer is not None and self._answer.leased is not None and self._unchecked is None
        return has_lease or not self._interface.dhcp6

    @property
    def deadline(self) -> float | None:
        """The next deadline."""
        ends = [*self._advertised_servers.values(), *self._advertised_search.values()]
        return min([*ends, *([] if self._client is None else [self._client.deadline])], default=None)

    @property
    def name_servers(self) -> list[str]:
        """The name servers of the lease, then of routers."""
        leased = () if self._answer is None else self._answer.name_servers
        return [*map(str, leased), *self._advertised_servers]

    @property
    def search(self) -> list[str]:
        """The domains of the lease, then of routers."""
        return [*(() if self._answer is None else self._answer.search), *self._advertised_search]

    @property
    def ntp_servers(self) -> list[str]:
        """The NTP servers of the lease."""
        return [] if self._answer is None else list(self._answer.ntp_servers)

    def fileno(self) -> int | None:
        """Return the descriptor of the DHCP client."""
        return None if self._client is None else self._client.fileno()

    def prepare(self, link: Link) -> None:
        """Set the kernel's use of advertisements, before the link is up; a failure is reported."""
        if self._interface.accept_ra is None:
            return
        try:
            write_sysctl(f"net/ipv6/conf/{link.name}/accept_ra", _ACCEPT_ALWAYS if self._interface.accept_ra else "0")
            if self._interface.accept_ra and link.carrier:
                solicit_routers(link.name)  # another helper has brought it up: the kernel has asked long ago
        except (NetworkError, OSError) as error:
            self._complain(describe(error))

    def hear(self, option: RouterOption) -> None:
        """Take a router's option."""
        if not self._interface.accept_ra:
            return
        until = time.monotonic() + option.lifetime_seconds
        zone = f"%{self._interface.name}"
        servers = (f"{one}{zone if one.is_link_local else ''}" for one in option.name_servers)
        for entries, names in ((self._advertised_servers, servers), (self._advertised_search, iter(option.search))):
            _renew(entries, names, until if option.lifetime_seconds else None)
        self._changed()

    def turn(self, links: Links, link: Link) -> None:
        """Do the due work, while the link has a carrier."""
        self._drop_ended()
        advertised = link.ipv6_flags if self._interface.accept_ra else 0
        wants_address = self._interface.dhcp6 or bool(advertised & _ADDRESSES_BY_DHCP)
        wants_client = wants_address or advertised & _THE_REST_BY_DHCP
        if wants_client and (self._client is None or wants_address > self._client.wants_address):
            self._close()
            duid, mac = self._duid(link), bytes.fromhex(link.mac.replace(":", ""))
            association = int.from_bytes(mac[-4:], "big")
            self._client = Dhcp6Client(link.name, duid, association, wants_address, self._take)
        if self._client is not None:
            self._client.turn()
        if self._unchecked is not None:
            self._check(links, link, self._unchecked)

    def forget(self) -> None:
        """Start anew: the network is another, or the interface is gone."""
        self._close()
        had = bool(self.name_servers or self.search)
        self._answer = self._unchecked = None
        self._advertised_servers, self._advertised_search = {}, {}
        if had:
            self._changed()

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _take(self, answer: Answer6 | None) -> None:
        """Take the place of the previous lease."""
        with Links() as links:
            link = links.find(self._interface.name)
            if link is not None:
                self._set_address(links, link, None if answer is None else answer.leased)
        self._answer = answer
        self._changed()

    def _set_address(self, links: Links, link: Link, leased: LeasedAddress | None) -> None:
        wanted = None if leased is None else IPv6Interface((leased.address, _WHOLE))
        try:
            present = [one for one in links.addresses(link, leased=True) if one.network.prefixlen == _WHOLE]
            for address in present:
                if address != wanted:
                    links.delete_address(link, address)
            if leased is not None and wanted is not None:
                links.lease_address(link, wanted, leased.valid_seconds, leased.preferred_seconds)
                if wanted not in present:
                    self._unchecked = wanted
        except NetworkError as error:
            self._complain(str(error))

    def _check(self, links: Links, link: Link, address: IPv6Interface) -> None:
        """Decline an address that the kernel has found at a neighbour; report a usable address."""
        flags = dict(links.address_flags(link)).get(address)
        if flags is not None and flags & IFA_F_TENTATIVE:
            return
        self._unchecked = None
        if flags is not None:
            self._complain(str(address))
        elif self._client is not None:
            # The kernel removes an address with an end that a neighbour has.
            self._complain(f"{address.ip} is in use by a neighbour")
            self._client.decline()

    def _duid(self, link: Link) -> bytes:
        """Return the lasting identifier of this machine."""
        try:
            kept = bytes.fromhex(self._state.read(_DUID))
        except ValueError:
            kept = b""
        duid = kept if is_duid(kept) else link_layer_duid(bytes.fromhex(link.mac.replace(":", "")))
        self._state.write(_DUID, duid.hex())
        return duid

    def _drop_ended(self) -> None:
        now = time.monotonic()
        for entries in (self._advertised_servers, self._advertised_search):
            ended = [name for name, until in entries.items() if until <= now]
            for name in ended:
                del entries[name]
            if ended:
                self._changed()

    def _complain(self, line: str) -> None:
        complain_at_once(f"minit: interface {self._interface.name}: {line}")


def _renew(entries: dict[str, float], names: Iterable[str] | Iterator[str], until: float | None) -> None:
    for name in names:
        if until is None:
            entries.pop(name, None)
        elif name in entries or len(entries) < _MOST_ENTRIES:
            entries[name] = until


class NetworkState:
    """
    Short texts by name that outlive a boot, for example the address of a lease; none is kept without the machine's
    state directory.
    """

    def __init__(self, directory: str | None) -> None:
        self._directory = None if directory is None else os.path.join(directory, _DIRECTORY)

    def read(self, name: str) -> str:
        """Return a text, empty if missing or unreadable."""
        if self._directory is None:
            return ""
        try:
            fd = os.open(os.path.join(self._directory, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                return os.read(fd, _MAXIMUM_BYTES).decode("ascii", "replace").strip()
            finally:
                os.close(fd)
        except OSError:
            return ""

    def write(self, name: str, text: str) -> None:
        """Keep a changed text; a failure is a line on the console."""
        if self._directory is None or self.read(name) == text:
            return
        try:
            os.makedirs(self._directory, 0o700, exist_ok=True)
            write_pod_file(os.path.join(self._directory, name), f"{text}\n".encode())
        except (OSError, LaunchError) as error:
            complain_at_once(f"minit: network: {name} is not kept: {describe(error)}")
