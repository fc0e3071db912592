"""
The two sides of a pod's link: the links of host and pod, settings in /proc/sys/net (ip-sysctl.rst), addresses, routes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyroute2.netlink.rtnl import RTMGRP_IPV6_IFADDR
from pyroute2.netlink.rtnl.ifaddrmsg import IFA_F_DADFAILED, IFA_F_TENTATIVE

from minit.base.errors import NetworkError, describe, reason_of
from minit.linux.loop import wait_readable
from minit.network.addresses import IPAddress, IPInterface
from minit.network.namespace import open_namespace, run_in_namespace
from minit.network.netlink.links import Links, write_sysctl
from minit.network.netlink.messages import SCOPE_LINK, SCOPE_UNIVERSE, Link, NewRoute
from minit.network.netlink.transport import KernelEvents
from minit.network.protocol import Address, Request, Route

_IPV6 = "/proc/sys/net/ipv6/conf"
_FORWARDING = "net/ipv6/conf/all/forwarding"
_SPECIAL = ("all", "default", "lo")

_TIMEOUT_SECONDS = 10.0  # as long as the reference plugins wait


class Undo:
    """A block whose steps are undone, the last step first, if the block fails."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def __enter__(self) -> Undo:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        while error is not None and self._steps:
            try:
                self._steps.pop()()
            except (NetworkError, OSError):
                # The user needs the first reason; gc deletes the attachment once more.
                continue

    def add(self, step: Callable[[], object]) -> None:
        """Remember how to undo a step that the block takes next or has taken."""
        self._steps.append(step)


class Sides:
    """The links of the host and of the pod; `namespace` is a descriptor of the pod's network namespace."""

    def __init__(self, request: Request) -> None:
        self.namespace = _open_namespace(request)
        self.host = Links()
        self.pod = Links(self.namespace)

    def __enter__(self) -> Sides:
        return self

    def __exit__(self, *_: object) -> None:
        self.host.close()
        self.pod.close()
        os.close(self.namespace)


@contextmanager
def pod_links(request: Request) -> Iterator[Links | None]:
    """Open the links of the pod's network namespace; None if there is none any more."""
    try:
        namespace = open_namespace(request.namespace)
    except FileNotFoundError:
        yield None
        return
    try:
        with Links(namespace) as links:
            yield links
    finally:
        os.close(namespace)


def _open_namespace(request: Request) -> int:
    try:
        return open_namespace(request.namespace)
    except OSError as error:
        # Of an error of setns(2) the path is not known.
        raise NetworkError(f"network namespace {request.namespace}: {reason_of(error.errno or 0)}") from error


def ignore_routers(name: str) -> None:
    """Have the host's end of a link take no router advertisement: no pod may be taken for a router."""
    _write_ipv6(name, "accept_ra", "0")


def prepare_pod_link(
    namespace: int,
    link: Link,
    addresses: Iterable[IPInterface],
    *,
    accept_ra: bool,
    accept_dad: bool | None = None,
    tells_neighbours: bool = True,
) -> None:
    """
    Write the settings of the pod's end before it is up; `namespace` is a descriptor of the pod's network namespace.

    The link takes router advertisements only if the network asks for them, and tells its neighbours at once about an
    address, which another pod may have had a moment ago. With `accept_dad` the kernel asks whether the link's own
    address is free, and recognises its own question when it comes back; with False the kernel does not ask; None leaves
    the setting to the pod's network.
    """
    versions = {address.version for address in addresses}

    def write() -> None:
        _write_ipv6(link.name, "accept_ra", "2" if accept_ra else "0")
        if accept_dad is not None:
            _write_ipv6(link.name, "accept_dad", str(int(accept_dad)))
        if accept_dad:
            _write_ipv6(link.name, "enhanced_dad", "1")
        if versions and tells_neighbours:
            write_sysctl(f"net/ipv4/conf/{link.name}/arp_notify", "1")
        if 6 in versions:
            write_sysctl(f"net/ipv6/conf/{link.name}/disable_ipv6", "0")
            write_sysctl("net/ipv6/conf/lo/disable_ipv6", "0")
            # As with the reference plugins: a link that is down for a while keeps its IPv6 addresses, as its IPv4
            # addresses.
            write_sysctl(f"net/ipv6/conf/{link.name}/keep_addr_on_down", "1")
            if tells_neighbours:
                write_sysctl(f"net/ipv6/conf/{link.name}/ndisc_notify", "1")

    run_in_namespace(namespace, write)


def enable_forwarding(addresses: Iterable[IPInterface]) -> None:
    """Let the host forward packets of the families of these addresses, from pods and to pods."""
    versions = {address.version for address in addresses}
    if 4 in versions:
        write_sysctl("net/ipv4/ip_forward", "1")
    if 6 in versions:
        _keep_routers()
        write_sysctl(_FORWARDING, "1")


def _keep_routers() -> None:
    """
    Have the host's links that follow router advertisements keep doing so.

    A forwarding machine takes no advertisements, and would lose its default route after the last one has expired.
    """
    if _read(f"/proc/sys/{_FORWARDING}") != "0":
        return
    try:
        names = [name for name in os.listdir(_IPV6) if name not in _SPECIAL]
    except OSError as error:
        raise NetworkError(f"cannot forward IPv6: {describe(error)}") from error
    for name in names:
        if _read(f"{_IPV6}/{name}/accept_ra") == "1":
            _write_ipv6(name, "accept_ra", "2")


def _write_ipv6(name: str, key: str, value: str) -> None:
    # Without IPv6 there is nothing to settle.
    if os.path.exists(f"{_IPV6}/{name}/{key}"):
        write_sysctl(f"net/ipv6/conf/{name}/{key}", value)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""  # it has vanished, or there is no IPv6


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
        """Wait until a link that is up can use its addresses; NetworkError if a neighbour has an address."""
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
    Give the pod's link its addresses and bring the link up.

    With `duplicates` the neighbours are asked for the IPv6 addresses first; NetworkError if a neighbour has an address.
    """
    wanted = [one.address for one in addresses]
    with DuplicateDetection(sides.namespace) as detection:
        for address in wanted:
            sides.pod.add_address(pod, address, duplicates=duplicates)
        sides.pod.set_up(pod)
        detection.wait(sides.pod, pod, wanted)


def usual_gateways(addresses: Sequence[Address]) -> dict[int, IPAddress]:
    """Return the gateway of each IP version, from the first address with a gateway."""
    return {one.gateway.version: one.gateway for one in reversed(addresses) if one.gateway is not None}


def add_routes(links: Links, pod: Link, routes: Iterable[Route], gateways: Mapping[int, IPAddress]) -> None:
    """
    Add routes by the pod's link: a route without a gateway takes its version's gateway, or ends on the link itself.
    """
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
