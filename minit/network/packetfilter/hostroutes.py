"""
The host's ways to a pod: the interface, and the way from 127.0.0.1 and ::1, closed unless opened for an interface.

Packets from these addresses do not leave a machine, and none to these addresses may come in. Packets of forwarded ports
do, with another address on the wire. For IPv4 the kernel has a setting for the interface of the answers,
`route_localnet`. For IPv6 there is no setting; the kernel looks whether the interface has the address, and a route
gives the address to it.
"""

from __future__ import annotations

import errno
import socket
from ipaddress import IPv4Network, IPv6Network, ip_address

from pyroute2.netlink import NLM_F_APPEND, NLM_F_CREATE
from pyroute2.netlink.rtnl import RTM_DELROUTE, RTM_GETADDR, RTM_GETROUTE, RTM_NEWROUTE
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from minit.base.errors import NetworkError, describe
from minit.network.addresses import IPAddress, IPNetwork
from minit.network.netlink import nftables
from minit.network.netlink.nftables import Table
from minit.network.netlink.transport import NETLINK_ROUTE, Netlink
from minit.network.packetfilter.tables import TABLE_PREFIX

LOOPBACK: dict[int, IPNetwork] = {nftables.IP: IPv4Network("127.0.0.0/8"), nftables.IP6: IPv6Network("::1/128")}

# In the comment of a table, with the interface: a deletion of the table reads there which way to close.
_COMMENTS = {nftables.IP: "route_localnet of ", nftables.IP6: "route to ::1 by "}
_IPV6_LOOPBACK = "::1"
_TABLE_LOCAL = 255
_TYPE_LOCAL = 2
_PROTOCOL_STATIC = 4
# Distinguishes the route from others' routes; the route of the interface `lo` has 0, so that this route is for answers
# alone.
_METRIC = 28009


def way_comment(family: int, interface: str) -> str:
    """Return the comment of a table with an opened way, empty if another program has opened the way."""
    if family == nftables.IP and _read_localnet(interface) == "1" and interface not in _opened_for(family):
        return ""
    return f"{_COMMENTS[family]}{interface}"


def open_way(family: int, interface: str) -> None:
    """Let packets to a pod by an interface have a loopback address as source."""
    if family == nftables.IP:
        _switch_localnet(interface, "1")
        return
    try:
        _request_route(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_APPEND, interface)
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise NetworkError(f"cannot forward from {_IPV6_LOOPBACK}: {describe(error)}") from error


def close_way(table: Table) -> None:
    """Close the way of a table, unless another table needs the way too."""
    interface = _noted_interface(table)
    if interface is None or interface in _opened_for(table.family, but=table.name):
        return
    if table.family == nftables.IP:
        _switch_localnet(interface, "0")
        return
    try:
        _request_route(RTM_DELROUTE, 0, interface)
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.ENODEV):
            raise NetworkError(f"cannot remove the route to {_IPV6_LOOPBACK}: {describe(error)}") from error


def _opened_for(family: int, but: str | None = None) -> list[str | None]:
    """Return the interfaces with a way for any table but those of a name."""
    tables = nftables.read_tables(TABLE_PREFIX)
    return [_noted_interface(table) for table in tables if table.family == family and table.name != but]


def _noted_interface(table: Table) -> str | None:
    start = _COMMENTS.get(table.family)
    if not start or not table.comment.startswith(start):
        return None
    return table.comment.removeprefix(start).partition(" ")[0]


def _localnet_path(interface: str) -> str:
    return f"/proc/sys/net/ipv4/conf/{interface}/route_localnet"


def _read_localnet(interface: str) -> str:
    try:
        with open(_localnet_path(interface), encoding="utf-8") as file:
            return file.read().strip()
    except OSError as error:
        raise NetworkError(f"cannot forward from 127.0.0.1: {describe(error)}") from error


def _switch_localnet(interface: str, value: str) -> None:
    try:
        with open(_localnet_path(interface), "wb", buffering=0) as file:
            file.write(value.encode())
    except FileNotFoundError as error:
        if value != "0":  # an interface that is gone needs nothing switched off
            raise NetworkError(f"cannot forward from 127.0.0.1: {describe(error)}") from error
    except OSError as error:
        raise NetworkError(f"cannot switch route_localnet: {describe(error)}") from error


def _request_route(kind: int, flags: int, interface: str) -> None:
    message = rtmsg()
    message["header"]["type"] = kind
    message["header"]["flags"] = flags
    message["family"] = socket.AF_INET6
    message["dst_len"] = LOOPBACK[nftables.IP6].max_prefixlen
    message["table"] = _TABLE_LOCAL
    message["type"] = _TYPE_LOCAL
    message["proto"] = _PROTOCOL_STATIC
    try:
        index = socket.if_nametoindex(interface)
    except OSError as error:
        raise OSError(errno.ENODEV, f"there is no interface {interface}") from error
    message["attrs"] = [["RTA_DST", _IPV6_LOOPBACK], ["RTA_OIF", index], ["RTA_PRIORITY", _METRIC]]
    with Netlink(NETLINK_ROUTE) as netlink:
        netlink.request(message)


def host_interface(address: IPAddress, gateway: IPAddress) -> str:
    """
    Return the name of the interface by which this machine reaches the pod's `address`.

    NetworkError unless `gateway` is an address of this machine: answers by another router would not come back for
    translation.
    """
    if gateway not in host_addresses():
        raise NetworkError(f'no interface found with IP "{gateway}": ports are forwarded by the pod\'s gateway')
    try:
        return _interface_towards(address)
    except OSError as error:
        raise NetworkError(f"cannot find the interface that leads to {address}: {describe(error)}") from error


def interface_towards(address: IPAddress) -> str | None:
    """Return the name of the interface by which this machine reaches an address, None for an unreachable address."""
    try:
        return _interface_towards(address)
    except OSError:
        return None


def host_addresses() -> set[IPAddress]:
    """Return the addresses of this machine."""
    request = ifaddrmsg()
    request["header"]["type"] = RTM_GETADDR
    try:
        with Netlink(NETLINK_ROUTE) as netlink:
            answers = netlink.dump(request)
    except OSError as error:
        raise NetworkError(f"cannot read the addresses of this machine: {describe(error)}") from error
    # Between point-to-point ends IFA_ADDRESS is the other one's.
    return {ip_address(one.get_attr("IFA_LOCAL") or one.get_attr("IFA_ADDRESS")) for one in answers}


def _interface_towards(address: IPAddress) -> str:
    request = rtmsg()
    request["header"]["type"] = RTM_GETROUTE
    request["family"] = socket.AF_INET if address.version == 4 else socket.AF_INET6
    request["dst_len"] = address.max_prefixlen
    request["attrs"] = [("RTA_DST", str(address))]
    with Netlink(NETLINK_ROUTE) as netlink:
        return socket.if_indextoname(netlink.ask(request).get_attr("RTA_OIF"))
