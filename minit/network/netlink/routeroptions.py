"""
The options of router advertisements that the kernel leaves to others: name servers and domains (RFC 8106).

The kernel takes addresses and routes from an advertisement, and hands these out over rtnetlink(7), RTNLGRP_ND_USEROPT.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv6Address

from minit.base.value import Value
from minit.network.domainnames import parse_domain_names

_RTMGRP_ND_USEROPT = 1 << 19
_RTM_NEWNDUSEROPT = 68
_ROUTER_ADVERTISEMENT = 134
_NAME_SERVERS, _SEARCH = 25, 31
_UNIT_BYTES = 8
_HEADER = struct.Struct("=IHHII")
_USER_OPTION = struct.Struct("=BxHiBBxxxxxx")  # struct nduseroptmsg
_OPTION = struct.Struct(">BBxxI")
_RECEIVE_BYTES = 1 << 16
_MOST_MESSAGES = 64  # at a time


class RouterOption(Value):
    """What routers say about the link `index` for `lifetime_seconds` from now on; with 0 it holds no more."""

    index: int
    lifetime_seconds: int
    name_servers: tuple[IPv6Address, ...] = ()
    search: tuple[str, ...] = ()


class RouterOptions:
    """The options that come from now on, in the network namespace that the process is in when this is made."""

    def __init__(self) -> None:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, 0)
        self._socket.bind((0, _RTMGRP_ND_USEROPT))

    def fileno(self) -> int:
        """Return the descriptor that can be read when options have come."""
        return self._socket.fileno()

    def take(self) -> Iterator[RouterOption]:
        """Yield those that have come by now; routers repeat those that are lost."""
        for _ in range(_MOST_MESSAGES):
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except OSError:
                return
            yield from parse_router_options(data)


def parse_router_options(data: bytes) -> Iterator[RouterOption]:
    """Yield the options in messages of the kernel, of which the content is a router's; broken ones are left out."""
    while len(data) >= _HEADER.size + _USER_OPTION.size:
        length, kind, _, _, _ = _HEADER.unpack_from(data)
        _, size, index, icmp_type, _ = _USER_OPTION.unpack_from(data, _HEADER.size)
        begin = _HEADER.size + _USER_OPTION.size
        if length < begin or length > len(data):
            return
        if (kind, icmp_type) == (_RTM_NEWNDUSEROPT, _ROUTER_ADVERTISEMENT):
            yield from _parse_options(data[begin : min(begin + size, length)], index)
        data = data[(length + 3) & ~3 :]


def _parse_options(data: bytes, index: int) -> Iterator[RouterOption]:
    while len(data) >= _OPTION.size:
        kind, units, lifetime = _OPTION.unpack_from(data)
        length = units * _UNIT_BYTES
        content = data[_OPTION.size : length]
        if not length or length > len(data):
            return
        if kind == _NAME_SERVERS and content and len(content) % 16 == 0:
            servers = tuple(IPv6Address(content[at : at + 16]) for at in range(0, len(content), 16))
            yield RouterOption(index=index, lifetime_seconds=lifetime, name_servers=servers)
        elif kind == _SEARCH and (names := parse_domain_names(content)):
            yield RouterOption(index=index, lifetime_seconds=lifetime, search=names)
        data = data[length:]


def solicit_routers(interface: str) -> None:
    """Have routers send an advertisement soon (RFC 4861, 4.1), which the kernel does itself when a link comes up."""
    with socket.socket(socket.AF_INET6, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_ICMPV6) as sock:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        sock.sendto(bytes((133, 0, 0, 0, 0, 0, 0, 0)), ("ff02::2", 0, 0, socket.if_nametoindex(interface)))
