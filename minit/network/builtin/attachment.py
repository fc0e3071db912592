"""
The common part of ptp and bridge: leasing, the pair of links between pod and host, masquerading, and undoing all of it.

The remains of an attachment outside of the pod have names that follow from container and interface: the lease, the
host's end of the pair, and the nf_tables table. So all of it is found again, even if its maker was killed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from ipaddress import IPv4Interface

from minit.errors import MinitError, NetworkError, describe, reason_of
from minit.network.builtin.arguments import parse_arguments
from minit.network.builtin.config import ConfiguredRoute, Ipam, lease_parent, masquerades, network_name
from minit.network.builtin.hostlocal import lease_directory, release, reserve
from minit.network.builtin.resolvconf import read_resolv_conf
from minit.network.firewall import delete_table, protect, table_name
from minit.network.ipv4 import Subnet, format_address
from minit.network.netlink.links import Link, Links, open_namespace, write_sysctl
from minit.network.request import Request
from minit.network.result import Address, Dns, Route
from minit.value import Value

_VETH = "veth"
_NAME_DIGITS = 11  # what "veth" leaves of the 15 bytes of an interface's name


class Undo:
    """A block whose steps are taken back, the last one first, if it fails."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def __enter__(self) -> Undo:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        while error is not None and self._steps:
            try:
                self._steps.pop()()
            except (NetworkError, OSError):
                # The first reason is what the user needs; gc deletes the attachment once more.
                continue

    def add(self, step: Callable[[], object]) -> None:
        """Remember how to take back what the block is about to do or has done."""
        self._steps.append(step)


class Lease(Value):
    """An address of the pod in its subnet, and the gateway there."""

    address: int
    subnet: Subnet
    gateway: int

    def __str__(self) -> str:
        return f"{format_address(self.address)}/{self.subnet.prefix}"

    def of_interface(self, index: int) -> Address:
        """Return the lease as part of a result whose interface at `index` has the address."""
        return Address(address=str(self), gateway=format_address(self.gateway), interface=index)


class Sides:
    """The links of the host and those of the pod; `namespace` is a descriptor of the pod's network namespace."""

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


def host_end(request: Request) -> str:
    """Return the name of the host's end of the pair of links."""
    digest = hashlib.sha1(f"{request.container_id} {request.interface}".encode(), usedforsecurity=False).hexdigest()
    return f"veth{digest[:_NAME_DIGITS]}"


def lease(ipam: Ipam, request: Request, undo: Undo) -> Lease:
    """Lease an address for the pod, the one that its arguments ask for if they do."""
    pool = ipam.pool
    address = reserve(pool, request, parse_arguments(request.args).address)
    undo.add(lambda: release(lease_directory(pool.directory, pool.network), request))
    return Lease(address=address, subnet=pool.subnet, gateway=pool.gateway)


def connect(sides: Sides, request: Request, mtu: int | None, undo: Undo) -> tuple[Link, Link]:
    """Make the pair of links and return the host's end, which is up, and the pod's, which is not."""
    name = host_end(request)
    if sides.pod.find(request.interface) is not None:
        raise NetworkError(f"interface {request.interface} exists already in the pod's network namespace")
    if sides.host.find(name) is not None:
        raise NetworkError(f"interface {name} exists already: {request.interface} of this pod was not removed")
    undo.add(lambda: _delete_host_end(sides.host, request))
    sides.host.add_veth(name, request.interface, sides.namespace, mtu)
    host = sides.host.get(name)
    try:
        write_sysctl(f"net/ipv6/conf/{name}/accept_ra", "0")
    except NetworkError:
        pass  # there is no IPv6; where there is, no router may make routes by a pod
    return host, sides.pod.get(request.interface)


def enable_forwarding() -> None:
    """Let the host pass packets on, from pods and to them."""
    write_sysctl("net/ipv4/ip_forward", "1")


def hide(held: Lease, request: Request, undo: Undo) -> None:
    """Give packets from the pod to elsewhere the host's own address."""
    table = table_name(request.container_id, request.interface)
    undo.add(lambda: delete_table(table))
    protect(table, masqueraded=[IPv4Interface((held.address, held.subnet.prefix))])


def name_service(ipam: Ipam | None, configured: Dns) -> Dns:
    """Return what the network says about names, or else what its address manager says."""
    if configured == Dns() and ipam is not None and ipam.resolv_conf:
        return read_resolv_conf(ipam.resolv_conf)
    return configured


def result_routes(routes: tuple[ConfiguredRoute, ...]) -> tuple[Route, ...]:
    """Return routes as a result names them."""
    return tuple(
        Route(
            destination=str(route.destination),
            gateway=None if route.gateway is None else format_address(route.gateway),
        )
        for route in routes
    )


def delete(config: Mapping[str, object], request: Request) -> None:
    """
    Remove whatever there is of an attachment, with or without the pod's network namespace.

    Each part is tried even if another fails; NetworkError names all that did. The address is given back last: whoever
    gets it next must not meet links or rules of this pod.
    """
    problems = []
    for remove in (_delete_links, _delete_masquerade, _delete_lease):
        try:
            remove(config, request)
        except (MinitError, OSError) as error:
            problems.append(describe(error))
    if problems:
        raise NetworkError("; ".join(problems))


def _delete_links(_: Mapping[str, object], request: Request) -> None:
    with Links() as host:
        if _delete_host_end(host, request):
            return
    # The host's end of a pair that a real plugin made has a name nobody knows.
    try:
        namespace = open_namespace(request.namespace)
    except FileNotFoundError:
        return
    try:
        with Links(namespace) as pod:
            link = pod.find(request.interface)
            if link is not None and link.kind == _VETH:
                pod.delete(link)
    finally:
        os.close(namespace)


def _delete_host_end(host: Links, request: Request) -> bool:
    """Remove the pair by its end on the host; tell whether it was there."""
    link = host.find(host_end(request))
    if link is None or link.kind != _VETH:
        return False
    host.delete(link)
    return True


def _delete_masquerade(config: Mapping[str, object], request: Request) -> None:
    if masquerades(config):
        delete_table(table_name(request.container_id, request.interface))


def _delete_lease(config: Mapping[str, object], request: Request) -> None:
    release(lease_directory(lease_parent(config), network_name(config)), request)


def _open_namespace(request: Request) -> int:
    try:
        return open_namespace(request.namespace)
    except OSError as error:
        # Of an error of setns(2) the path is not known.
        raise NetworkError(f"network namespace {request.namespace}: {reason_of(error.errno or 0)}") from error
