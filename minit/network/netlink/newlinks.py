"""Messages that make links on top of others: what they have in common, and the attributes of each kind."""

from __future__ import annotations

import struct
import sys

from pyroute2.netlink import NLM_F_CREATE, NLM_F_EXCL
from pyroute2.netlink.rtnl import RTM_NEWLINK

from minit.base.value import Value
from minit.network.netlink.attributes import attribute, nested, text
from minit.network.netlink.messages import IPVLAN_MODE_NAMES
from minit.network.netlink.transport import WrittenMessage

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
"""What the kernel is configured with to have links of a kind."""

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


class NewLink(Value):
    """
    A link to make: `lower` is the index of the link that it is on top of, 0 for none; `data` has what its kind needs.

    Without a size of packets, a hardware address or a length of its queue the kernel gives it one, most often that of
    the link below.
    """

    kind: str
    name: str
    lower: int = 0
    mtu: int | None = None
    mac: str | None = None
    queue_length: int | None = None
    data: bytes = b""


def creation(link: NewLink, namespace: int | None) -> WrittenMessage:
    """Return the message that makes a link, in the namespace of a descriptor if one is given."""
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
    """Return the attributes of a macvlan; the queue is how many packets to all may wait, if it is given."""
    queue = b"" if broadcast_queue is None else _number(_IFLA_MACVLAN_BC_QUEUE_LEN, broadcast_queue)
    return _number(_IFLA_MACVLAN_MODE, MACVLAN_MODES[mode]) + queue


def ipvlan_data(mode: str) -> bytes:
    """Return the attributes of an ipvlan."""
    return attribute(_IFLA_IPVLAN_MODE, IPVLAN_MODES[mode].to_bytes(2, sys.byteorder))


def vlan_data(number: int) -> bytes:
    """Return the attributes of the VLAN of that number."""
    return attribute(_IFLA_VLAN_ID, number.to_bytes(2, sys.byteorder))


def _number(kind: int, value: int) -> bytes:
    # Unlike in nfnetlink, in the order of this machine.
    return attribute(kind, value.to_bytes(4, sys.byteorder))
