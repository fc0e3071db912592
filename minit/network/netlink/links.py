"""Links, attributes of links, addresses and routes of a network namespace, rtnetlink(7)."""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import ExitStack
from typing import Any, TypeVar

from pyroute2.netlink import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE
from pyroute2.netlink.rtnl import (
    RTM_DELADDR,
    RTM_DELLINK,
    RTM_DELROUTE,
    RTM_GETADDR,
    RTM_GETLINK,
    RTM_GETROUTE,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_SETLINK,
)
from pyroute2.netlink.rtnl.ifaddrmsg import IFA_F_NODAD, IFA_F_PERMANENT, ifaddrmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from minit.base.errors import NetworkError, describe
from minit.base.value import Value
from minit.linux.loop import wait_readable
from minit.network.addresses import IPInterface, IPNetwork
from minit.network.namespace import run_in_namespace
from minit.network.netlink.messages import (
    ANY_FAMILY,
    IFF_UP,
    OPTIONS,
    TABLE_MAIN,
    Link,
    NewLink,
    NewRoute,
    Route,
    address_message,
    address_of,
    creation,
    is_usual_route,
    link_message,
    link_of,
    new_route,
    route_message,
    route_of,
)
from minit.network.netlink.transport import NETLINK_ROUTE, KernelEvents, Netlink, NetlinkError

T = TypeVar("T")

_IFF_PROMISC = 0x100
_RTEXT_FILTER_SKIP_STATS = 1 << 3
_UNKNOWN_KIND = "Unknown device type"  # net/core/rtnetlink.c

_RUNNING_TIMEOUT_SECONDS = 5.0
_RUNNING_PAUSE_SECONDS = 0.001

_IFF_ALLMULTI = 0x200


class Links:
    """
    The links of the network namespace of the descriptor `namespace`, or of this process.

    Changes raise NetworkError with the failed change.
    """

    def __init__(self, namespace: int | None = None) -> None:
        self._netlink = _netlink() if namespace is None else run_in_namespace(namespace, _netlink)

    def __enter__(self) -> Links:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._netlink.__exit__()

    def change(self, what: str, message: Any, unless: int | None = None) -> None:
        """Make a request; NetworkError says "cannot `what`", but not for the errno `unless`."""
        try:
            self._netlink.request(message)
        except OSError as error:
            if error.errno != unless:
                raise _cannot(what, error) from error

    def find(self, name: str) -> Link | None:
        """Return the link of a name, None if there is none."""
        message = link_message(RTM_GETLINK)
        message["attrs"] = [["IFLA_IFNAME", name]]
        return self._look_up(name, message)

    def at(self, index: int) -> Link | None:
        """Return the link of an index, None if there is none."""
        message = link_message(RTM_GETLINK)
        message["index"] = index
        message["attrs"] = []
        return self._look_up(f"of index {index}", message)

    def get(self, name: str) -> Link:
        """Return the link of a name; NetworkError if there is none."""
        link = self.find(name)
        if link is None:
            raise NetworkError(f"interface {name} has vanished")
        return link

    def all(self) -> list[Link]:
        """Return all links."""
        message = link_message(RTM_GETLINK)
        message["attrs"] = [["IFLA_EXT_MASK", _RTEXT_FILTER_SKIP_STATS]]
        return [link_of(answer) for answer in self._netlink.dump(message)]

    def add(self, new: NewLink, namespace: int | None = None) -> None:
        """Make a link, which is down, on top of a link here or of none, in the namespace of a descriptor if given."""
        what = f"create {new.kind} {new.name}"
        try:
            self._netlink.request(creation(new, namespace))
        except NetlinkError as error:
            if error.errno == errno.EOPNOTSUPP and error.explanation in ("", _UNKNOWN_KIND):
                raise NetworkError(f"cannot {what}: the kernel has no {new.kind} ({OPTIONS[new.kind]})") from error
            detail = f" ({error.explanation})" if error.explanation else ""
            raise NetworkError(f"{_cannot(what, error)}{detail}") from error

    def move(self, link: Link, namespace: int, name: str, alias: str) -> None:
        """Move a link to the namespace of a descriptor, with a new name and an alias, and down."""
        message = link_message(RTM_SETLINK)
        message["index"] = link.index
        message["attrs"] = [["IFLA_NET_NS_FD", namespace], ["IFLA_IFNAME", name], ["IFLA_IFALIAS", alias]]
        self.change(f"move {link.name} to another network namespace as {name}", message)

    def rename(self, link: Link, name: str, alias: str) -> None:
        """Give a link another name and an alias; the link is down then."""
        self.set_up(link, up=False)  # before 6.2 the kernel renames no link that is up
        message = link_message(RTM_SETLINK)
        message["index"] = link.index
        message["attrs"] = [["IFLA_IFNAME", name], ["IFLA_IFALIAS", alias]]
        self.change(f"rename {link.name} to {name}", message)

    def add_veth(
        self,
        name: str,
        peer: str,
        peer_namespace: int,
        mtu: int | None = None,
        peer_mac: str | None = None,
        may_exist: bool = False,
    ) -> None:
        """Make a pair of links: `name` here and up, `peer` in the namespace of the descriptor and down."""
        # The kernel makes a queue for each processor and gives all but one up again, with a wait for all processors.
        queues = [["IFLA_NUM_TX_QUEUES", 1], ["IFLA_NUM_RX_QUEUES", 1]]
        sizes = [*queues, *([] if mtu is None else [["IFLA_MTU", mtu]])]
        mac = [] if peer_mac is None else [["IFLA_ADDRESS", peer_mac]]
        other = {"attrs": [["IFLA_IFNAME", peer], ["IFLA_NET_NS_FD", peer_namespace], *sizes, *mac]}
        pair = {"attrs": [["IFLA_INFO_KIND", "veth"], ["IFLA_INFO_DATA", {"attrs": [["VETH_INFO_PEER", other]]}]]}
        message = link_message(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL)
        message["flags"] = message["change"] = IFF_UP
        message["attrs"] = [["IFLA_IFNAME", name], *sizes, ["IFLA_LINKINFO", pair]]
        unless = errno.EEXIST if may_exist else None
        self.change(f"create interface {peer} with its host end {name}", message, unless)

    def delete(self, link: Link) -> None:
        """Remove a link; nothing for a vanished link."""
        message = link_message(RTM_DELLINK)
        message["index"] = link.index
        self.change(f"remove interface {link.name}", message, unless=errno.ENODEV)

    def delete_early(self, link: Link, freed: ExitStack) -> None:
        """
        Remove a link of this process's network namespace, and return when nobody sees the link any more.

        The kernel frees the link afterwards. The end of `freed` waits for that, some ten milliseconds.
        """
        with KernelEvents() as events, _Removal(link, freed) as removal:
            while removal.fileno() not in wait_readable([events.fileno(), removal.fileno()]):
                events.drop()
                if self.at(link.index) is None:
                    return
            removal.raise_refusal()

    def set_up(self, link: Link, up: bool = True) -> None:
        """Bring a link up, or down."""
        self._set_flags(f"bring {link.name} {'up' if up else 'down'}", link, IFF_UP, up)

    def set_promiscuous(self, link: Link) -> None:
        """Have a link receive every packet."""
        self._set_flags(f"set {link.name} promiscuous", link, _IFF_PROMISC, True)

    def fix_mac(self, link: Link) -> None:
        """Fix the hardware address of a bridge: otherwise the bridge always takes the lowest address of its ports."""
        message = link_message(RTM_SETLINK)
        message["index"] = link.index
        message["attrs"] = [["IFLA_ADDRESS", link.mac]]
        self.change(f"set the hardware address of {link.name}", message)

    def set_mtu(self, link: Link, mtu: int) -> None:
        """Have a link take packets of so many bytes at most."""
        message = link_message(RTM_SETLINK)
        message["index"] = link.index
        message["attrs"] = [["IFLA_MTU", mtu]]
        self.change(f"give {link.name} the MTU {mtu}", message)

    def addresses(self, link: Link, *, leased: bool = False) -> list[IPInterface]:
        """Return the addresses of a link, IPv4 first, or with `leased` only the addresses with an end."""
        return [address for address, flags in self.address_flags(link) if not (leased and flags & IFA_F_PERMANENT)]

    def address_flags(self, link: Link) -> list[tuple[IPInterface, int]]:
        """Return the addresses of a link with flags, IFA_F_…."""
        message = ifaddrmsg()
        message["header"]["type"] = RTM_GETADDR
        message["family"] = ANY_FAMILY
        answers = [answer for answer in self._netlink.dump(message) if answer["index"] == link.index]
        return [(address_of(answer), answer["flags"]) for answer in answers]

    def add_address(self, link: Link, address: IPInterface, duplicates: bool = False) -> None:
        """
        Add an address, unless the link has the address.

        With `duplicates` an IPv6 address is usable only after no neighbour has turned out to have the address (RFC
        4862).
        """
        message = address_message(RTM_NEWADDR, link, address)
        message["header"]["flags"] = NLM_F_CREATE | NLM_F_EXCL
        flags = 0 if duplicates or address.version == 4 else IFA_F_NODAD
        message["attrs"].append(["IFA_FLAGS", flags])
        self.change(f"add address {address} to {link.name}", message, unless=errno.EEXIST)

    def lease_address(
        self, link: Link, address: IPInterface, seconds: int, preferred_seconds: int | None = None
    ) -> None:
        """Add an address for so many seconds; then the kernel removes the address, and avoids it once not preferred."""
        message = address_message(RTM_NEWADDR, link, address)
        message["header"]["flags"] = NLM_F_CREATE | NLM_F_REPLACE
        message["attrs"].append(
            ["IFA_CACHEINFO", {"ifa_preferred": preferred_seconds or seconds, "ifa_valid": seconds}]
        )
        self.change(f"add address {address} to {link.name}", message)

    def delete_address(self, link: Link, address: IPInterface) -> None:
        """Remove an address; nothing for a missing address."""
        message = address_message(RTM_DELADDR, link, address)
        self.change(f"remove address {address} from {link.name}", message, unless=errno.EADDRNOTAVAIL)

    def routes(self, table: int = TABLE_MAIN) -> list[Route]:
        """Return the routes of a table, of both families."""
        message = rtmsg()
        message["header"]["type"] = RTM_GETROUTE
        message["family"] = ANY_FAMILY
        return [route_of(one) for one in self._netlink.dump(message) if is_usual_route(one, table)]

    def add_route(self, link: Link, new: NewRoute) -> None:
        """Add a route by a link."""
        via = "" if new.gateway is None else f" via {new.gateway}"
        self.change(f"add route {new.destination}{via} by {link.name}", new_route(link, new))

    def delete_route(self, link: Link, destination: IPNetwork) -> None:
        """Remove a route by a link from the main table; nothing if there is none."""
        message = route_message(RTM_DELROUTE, destination)
        message["attrs"] = [["RTA_DST", str(destination.network_address)], ["RTA_OIF", link.index]]
        self.change(f"remove route {destination} by {link.name}", message, unless=errno.ESRCH)

    def wait_until_running(self, name: str) -> None:
        """Wait for the kernel to notice that both ends are up: until then packets sent by the link are lost."""
        end = time.monotonic() + _RUNNING_TIMEOUT_SECONDS
        while not self.get(name).running:
            if time.monotonic() > end:
                raise NetworkError(f"interface {name} is up and does not carry packets")
            time.sleep(_RUNNING_PAUSE_SECONDS)

    def _look_up(self, what: str, message: Any) -> Link | None:
        message["attrs"].append(["IFLA_EXT_MASK", _RTEXT_FILTER_SKIP_STATS])
        try:
            return link_of(self._netlink.ask(message))
        except OSError as error:
            if error.errno == errno.ENODEV:
                return None
            raise _cannot(f"look up interface {what}", error) from error

    def _set_flags(self, what: str, link: Link, flags: int, on: bool) -> None:
        message = link_message(RTM_SETLINK)
        message["index"] = link.index
        message["flags"] = flags if on else 0
        message["change"] = flags
        self.change(what, message)


class _Removal:
    """A thread that removes a link: the request waits for the memory of the link; the end of `freed` for the thread."""

    def __init__(self, link: Link, freed: ExitStack) -> None:
        self._link = link
        self._reader, self._writer = os.pipe()
        self._links = Links()
        self._error: NetworkError | None = None
        thread = threading.Thread(target=self._remove, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._remove()  # no more processes may be made
        else:
            freed.callback(thread.join)

    def __enter__(self) -> _Removal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._reader)

    def fileno(self) -> int:
        """Return a descriptor, readable at the end of the thread."""
        return self._reader

    def raise_refusal(self) -> None:
        """Raise NetworkError if the kernel has refused the request of the ended thread."""
        if self._error is not None:
            raise self._error

    def _remove(self) -> None:
        try:
            self._links.delete(self._link)
        except NetworkError as error:
            self._error = error
        finally:
            self._links.close()
            os.close(self._writer)


def write_sysctl(name: str, value: str) -> None:
    """Set a sysctl of this network namespace, `net/…`, unless it has the value already; NetworkError on a failure."""
    path = f"/proc/sys/{name}"
    try:
        with open(path, "rb") as file:
            if file.read().strip() == value.encode():
                return
        with open(path, "wb", buffering=0) as file:
            file.write(value.encode())
    except OSError as error:
        raise _cannot(f"set {path} to {value}", error) from error


def _netlink() -> Netlink:
    return Netlink(NETLINK_ROUTE)


def _cannot(what: str, error: OSError) -> NetworkError:
    reason = error.strerror or "unknown error"
    return NetworkError(f"cannot {what}: {reason[:1].lower()}{reason[1:]}")


class Attributes(Value):
    """
    Attributes that can change while a link exists (ip-link(8), `set`); None is no change; `queue_length` counts
    packets.
    """

    mac: str | None = None
    mtu: int | None = None
    promiscuous: bool | None = None
    all_multicast: bool | None = None
    queue_length: int | None = None


class LinkAttributes:
    """The link of a name in the network namespace of a descriptor."""

    def __init__(self, namespace: int, name: str) -> None:
        self._name = name
        self._netlink = run_in_namespace(namespace, lambda: Netlink(NETLINK_ROUTE))

    def __enter__(self) -> LinkAttributes:
        return self

    def __exit__(self, *_: object) -> None:
        self._netlink.__exit__()

    def read(self) -> Attributes | None:
        """Return all attributes, None for a missing link; NetworkError if the kernel does not answer."""
        message = link_message(RTM_GETLINK)
        message["attrs"] = [["IFLA_IFNAME", self._name]]
        try:
            answer = self._netlink.ask(message)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return None
            raise NetworkError(f"cannot look up interface {self._name}: {describe(error)}") from error
        return Attributes(
            mac=answer.get_attr("IFLA_ADDRESS") or "",
            mtu=answer.get_attr("IFLA_MTU"),
            promiscuous=bool(answer["flags"] & _IFF_PROMISC),
            all_multicast=bool(answer["flags"] & _IFF_ALLMULTI),
            queue_length=answer.get_attr("IFLA_TXQLEN"),
        )

    def write(self, wanted: Attributes) -> None:
        """Make the wanted changes in their order; NetworkError names the first refused change."""
        if wanted.mac is not None:
            self._change(f"the hardware address {wanted.mac}", ["IFLA_ADDRESS", wanted.mac])
        if wanted.promiscuous is not None:
            self._switch("promiscuous mode", _IFF_PROMISC, wanted.promiscuous)
        if wanted.mtu is not None:
            self._change(f"the MTU {wanted.mtu}", ["IFLA_MTU", wanted.mtu])
        if wanted.all_multicast is not None:
            self._switch("all-multicast mode", _IFF_ALLMULTI, wanted.all_multicast)
        if wanted.queue_length is not None:
            self._change(f"the queue length {wanted.queue_length}", ["IFLA_TXQLEN", wanted.queue_length])

    def _change(self, what: str, attribute: list[object]) -> None:
        message = link_message(RTM_SETLINK)
        message["attrs"] = [["IFLA_IFNAME", self._name], attribute]
        self._request(f"give interface {self._name} {what}", message)

    def _switch(self, what: str, flag: int, on: bool) -> None:
        message = link_message(RTM_SETLINK)
        message["attrs"] = [["IFLA_IFNAME", self._name]]
        message["flags"] = flag if on else 0
        message["change"] = flag
        self._request(f"switch {what} of interface {self._name} {'on' if on else 'off'}", message)

    def _request(self, what: str, message: Any) -> None:
        try:
            self._netlink.request(message)
        except OSError as error:
            raise NetworkError(f"cannot {what}: {describe(error)}") from error
