"""Messages of rtnetlink(7) about links, new links, addresses and routes, and the values for answers."""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from ipaddress import ip_interface, ip_network
from typing import Any

from pyroute2.netlink import NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, nla
from pyroute2.netlink.rtnl import RTM_NEWADDR, RTM_NEWLINK, RTM_NEWROUTE
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from minit.base.value import Value
from minit.network.addresses import EVERYWHERE, IPAddress, IPInterface, IPNetwork, parse_address
from minit.network.netlink.transport import WrittenMessage, attribute, nested, text

ANY_FAMILY = 0  # pyroute2 takes IPv4 otherwise
IFF_UP = 0x1
IPVLAN_MODE_NAMES = {0: "l2", 1: "l3", 2: "l3s"}
TABLE_MAIN = 254
SCOPE_UNIVERSE = 0
SCOPE_LINK = 253
SCOPE_HOST = 254
PROTOCOL_BOOT = 3  # what `ip route add` and the reference plugins say
PROTOCOL_DHCP = 16

_FAMILIES = {4: 2, 6: 10}  # AF_INET and AF_INET6
_VERSIONS = {family: version for version, family in _FAMILIES.items()}
_IFF_LOWER_UP = 0x10000
_TABLE_UNSPECIFIED = 0
_TYPE_UNICAST = 1
_SCOPE_NOWHERE = 255
_BROADCAST_PREFIX_MAX = 30  # RFC 3021: longer prefixes have no broadcast address

MACVLAN = "macvlan"
IPVLAN = "ipvlan"
VLAN = "vlan"
DUMMY = "dummy"
IFB = "ifb"

MACVLAN_MODES = {"private": 1, "vepa": 2, "bridge": 4, "passthru": 8}
IPVLAN_MODES = {name: number for number, name in IPVLAN_MODE_NAMES.items()}
OPTIONS = {
    MACVLAN: "CONFIG_MACVLAN",
    IPVLAN: "CONFIG_IPVLAN",
    VLAN: "CONFIG_VLAN_8021Q",
    DUMMY: "CONFIG_DUMMY",
    IFB: "CONFIG_IFB",
}
"""The kernel's option for each kind of link."""

# linux/if_link.h
_IFLA_ADDRESS = 1
_IFLA_IFNAME = 3
_IFLA_MTU = 4
_IFLA_LINK = 5
_IFLA_TXQLEN = 13
_IFLA_LINKINFO = 18
_IFLA_NET_NS_FD = 28
_IFLA_INFO_KIND = 1
_IFLA_INFO_DATA = 2
_IFLA_MACVLAN_MODE = 1
_IFLA_MACVLAN_BC_QUEUE_LEN = 7
_IFLA_IPVLAN_MODE = 1
_IFLA_VLAN_ID = 1

_IFINFOMSG = struct.Struct("=BxHiII")


class Link(Value):
    """
    A network interface: `peer` and `master` are indices, 0 for none; with `running` the link can carry packets, with
    `carrier` the cable has another end.

    `peer` is also the link below a link on top of another. `mode` is the mode of a macvlan or ipvlan, `vlan` the number
    of a VLAN. `ipv6_flags` are IF_RA_…, of the last router advertisement.
    """

    index: int
    name: str
    mac: str = ""
    mtu: int = 0
    kind: str = ""
    master: int = 0
    peer: int = 0
    up: bool = False
    running: bool = False
    carrier: bool = False
    alias: str = ""
    mode: str = ""
    vlan: int | None = None
    ipv6_flags: int = 0


class Route(Value):
    """An existing route; the default route's destination is 0.0.0.0/0 or ::/0. `protocol` is the route's origin."""

    destination: IPNetwork
    gateway: IPAddress | None = None
    index: int = 0
    protocol: int = PROTOCOL_BOOT


class NewRoute(Value):
    """
    A route to add, ip-route(8); None leaves the choice to the kernel, and `table` to the main table.

    Packets of the host itself go out with the address `source`. With `is_alternative` there may be another route to the
    same destination: the route with the lowest `metric` counts. `mtu` and `advertised_mss` are bytes of a packet, and
    of a TCP segment.
    """

    destination: IPNetwork
    gateway: IPAddress | None = None
    source: IPAddress | None = None
    scope: int = SCOPE_UNIVERSE
    is_alternative: bool = False
    metric: int | None = None
    mtu: int | None = None
    advertised_mss: int | None = None
    table: int | None = None
    protocol: int = PROTOCOL_BOOT


def link_message(kind: int, flags: int = 0) -> Any:
    """Return a message about a link."""
    message = ifinfmsg()
    message["header"]["type"] = kind
    message["header"]["flags"] = flags
    return message


def address_message(kind: int, link: Link, address: IPInterface) -> Any:
    """Return a message about an address of a link."""
    message = ifaddrmsg()
    message["header"]["type"] = kind
    message["family"] = _FAMILIES[address.version]
    message["prefixlen"] = address.network.prefixlen
    message["index"] = link.index
    message["attrs"] = [["IFA_LOCAL", str(address.ip)], ["IFA_ADDRESS", str(address.ip)]]
    has_broadcast = address.version == 4 and address.network.prefixlen <= _BROADCAST_PREFIX_MAX
    if kind == RTM_NEWADDR and has_broadcast:
        message["attrs"].append(["IFA_BROADCAST", str(address.network.broadcast_address)])
    return message


def address_of(answer: Any) -> IPInterface:
    """Return the address in an answer."""
    text = answer.get_attr("IFA_LOCAL") or answer.get_attr("IFA_ADDRESS")
    return ip_interface((text, answer["prefixlen"]))


def new_route(link: Link, new: NewRoute) -> Any:
    """Return a message for adding a route by a link."""
    message = route_message(RTM_NEWROUTE, new.destination)
    message["header"]["flags"] = NLM_F_CREATE | (NLM_F_APPEND if new.is_alternative else NLM_F_EXCL)
    message["proto"] = new.protocol
    message["scope"] = new.scope
    message["type"] = _TYPE_UNICAST
    metrics = _given({"RTAX_MTU": new.mtu, "RTAX_ADVMSS": new.advertised_mss})
    optional: dict[str, object] = {
        "RTA_GATEWAY": new.gateway and str(new.gateway),
        "RTA_PREFSRC": new.source and str(new.source),
    }
    optional |= {"RTA_PRIORITY": new.metric, "RTA_METRICS": {"attrs": metrics} if metrics else None}
    if new.table:
        message["table"] = _TABLE_UNSPECIFIED
        optional["RTA_TABLE"] = new.table
    message["attrs"] = [
        ["RTA_DST", str(new.destination.network_address)],
        ["RTA_OIF", link.index],
        *_given(optional),
    ]
    return message


def route_message(kind: int, destination: IPNetwork) -> Any:
    """Return a message about a route of the main table, of any scope unless the caller sets a scope."""
    message = rtmsg()
    message["header"]["type"] = kind
    message["family"] = _FAMILIES[destination.version]
    message["dst_len"] = destination.prefixlen
    message["table"] = TABLE_MAIN
    message["scope"] = _SCOPE_NOWHERE
    return message


def link_of(answer: Any) -> Link:
    """Return the link in an answer."""
    information = answer.get_attr("IFLA_LINKINFO")
    data = information and information.get_attr("IFLA_INFO_DATA")
    own = data.get_attr if isinstance(data, nla) else {}.get
    return Link(
        index=answer["index"],
        name=answer.get_attr("IFLA_IFNAME"),
        mac=answer.get_attr("IFLA_ADDRESS") or "",
        mtu=answer.get_attr("IFLA_MTU") or 0,
        kind=(information and information.get_attr("IFLA_INFO_KIND")) or "",
        master=answer.get_attr("IFLA_MASTER") or 0,
        peer=answer.get_attr("IFLA_LINK") or 0,
        up=bool(answer["flags"] & IFF_UP),
        running=answer.get_attr("IFLA_OPERSTATE") == "UP",
        carrier=bool(answer["flags"] & _IFF_LOWER_UP),
        alias=answer.get_attr("IFLA_IFALIAS") or "",
        mode=own("IFLA_MACVLAN_MODE") or IPVLAN_MODE_NAMES.get(own("IFLA_IPVLAN_MODE"), ""),
        vlan=own("IFLA_VLAN_ID"),
        ipv6_flags=_ipv6_flags(answer),
    )


def _ipv6_flags(answer: Any) -> int:
    families = answer.get_attr("IFLA_AF_SPEC")
    own = families and families.get_attr("AF_INET6")
    return (own and own.get_attr("IFLA_INET6_FLAGS")) or 0


def route_of(answer: Any) -> Route:
    """Return the route in an answer."""
    destination, gateway = answer.get_attr("RTA_DST"), answer.get_attr("RTA_GATEWAY")
    everywhere = EVERYWHERE[_VERSIONS[answer["family"]]]
    return Route(
        destination=ip_network((destination, answer["dst_len"])) if destination else everywhere,
        gateway=None if gateway is None else parse_address(gateway),
        index=answer.get_attr("RTA_OIF") or 0,
        protocol=answer["proto"],
    )


def is_usual_route(answer: Any, table: int) -> bool:
    """Tell whether an answer is a unicast route of a table."""
    usual = (table, _TYPE_UNICAST)
    return answer["family"] in _VERSIONS and (answer.get_attr("RTA_TABLE"), answer["type"]) == usual


def _given(attributes: Mapping[str, object]) -> list[list[object]]:
    return [[name, value] for name, value in attributes.items() if value is not None]


class NewLink(Value):
    """
    A new link: `lower` is the index of the link below, 0 for none; `data` has the attributes of its kind.

    Without an MTU, a hardware address or a queue length the kernel chooses, most often the value of the link below.
    """

    kind: str
    name: str
    lower: int = 0
    mtu: int | None = None
    mac: str | None = None
    queue_length: int | None = None
    data: bytes = b""


def creation(link: NewLink, namespace: int | None) -> WrittenMessage:
    """Return the message for making a link, in the namespace of a descriptor if given."""
    attributes = [text(_IFLA_IFNAME, link.name)]
    if link.lower:
        attributes.append(_number(_IFLA_LINK, link.lower))
    if link.mtu is not None:
        attributes.append(_number(_IFLA_MTU, link.mtu))
    if link.mac is not None:
        attributes.append(attribute(_IFLA_ADDRESS, bytes.fromhex(link.mac.replace(":", ""))))
    if link.queue_length is not None:
        attributes.append(_number(_IFLA_TXQLEN, link.queue_length))
    if namespace is not None:
        attributes.append(_number(_IFLA_NET_NS_FD, namespace))
    attributes.append(
        nested(_IFLA_LINKINFO, text(_IFLA_INFO_KIND, link.kind), nested(_IFLA_INFO_DATA, link.data)),
    )
    body = _IFINFOMSG.pack(0, 0, 0, 0, 0) + b"".join(attributes)
    return WrittenMessage(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body)


def macvlan_data(mode: str, broadcast_queue: int | None) -> bytes:
    """
    Return the attributes of a macvlan; `broadcast_queue` is the number of broadcast packets that may wait, if given.
    """
    queue = b"" if broadcast_queue is None else _number(_IFLA_MACVLAN_BC_QUEUE_LEN, broadcast_queue)
    return _number(_IFLA_MACVLAN_MODE, MACVLAN_MODES[mode]) + queue


def ipvlan_data(mode: str) -> bytes:
    """Return the attributes of an ipvlan."""
    return attribute(_IFLA_IPVLAN_MODE, IPVLAN_MODES[mode].to_bytes(2, sys.byteorder))


def vlan_data(number: int) -> bytes:
    """Return the attributes of a VLAN with a number."""
    return attribute(_IFLA_VLAN_ID, number.to_bytes(2, sys.byteorder))


def _number(kind: int, value: int) -> bytes:
    # Unlike in nfnetlink, in the byte order of this machine.
    return attribute(kind, value.to_bytes(4, sys.byteorder))
