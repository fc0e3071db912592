"""
The messages of DHCP for IPv6 as values (RFC 8415, RFC 3646, RFC 5908).

Pure. Any packet from the network is a message or nothing.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from ipaddress import IPv6Address

from minit.base.value import Value
from minit.network.addresses import parse_domain_names

SOLICIT, ADVERTISE, REQUEST, RENEW, REBIND, REPLY, RELEASE, DECLINE, INFORMATION_REQUEST = 1, 2, 3, 5, 6, 7, 8, 9, 11
CLIENT_PORT, SERVER_PORT = 546, 547
ALL_SERVERS = "ff02::1:2"
INFINITE_SECONDS = 0xFFFFFFFF

_CLIENT_ID, _SERVER_ID, _IA_NA, _IA_ADDRESS, _WANTED, _PREFERENCE, _ELAPSED, _STATUS = 1, 2, 3, 5, 6, 7, 8, 13
_NAME_SERVERS, _SEARCH, _REFRESH, _NTP = 23, 24, 32, 56
_NTP_ADDRESS, _NTP_NAME = 1, 3  # within the option
_WANTS = (_NAME_SERVERS, _SEARCH, _REFRESH, _NTP)
_OPTION = struct.Struct(">HH")
_IA = struct.Struct(">III")
_ADDRESS = struct.Struct(">16sII")
_DUID_LINK_LAYER, _ETHERNET = 3, 1
_LONGEST_DUID_BYTES = 130
_MAXIMUM_SERVERS = 8

_Options = Sequence[tuple[int, bytes]]

_RTMGRP_ND_USEROPT = 1 << 19
_RTM_NEWNDUSEROPT = 68
_ROUTER_ADVERTISEMENT = 134
_ROUTER_NAME_SERVERS, _ROUTER_SEARCH = 25, 31
_UNIT_BYTES = 8
_HEADER = struct.Struct("=IHHII")
_USER_OPTION = struct.Struct("=BxHiBBxxxxxx")  # struct nduseroptmsg
_ROUTER_OPTION = struct.Struct(">BBxxI")
_RECEIVE_BYTES = 1 << 16
_MOST_MESSAGES = 64  # at a time


class LeasedAddress(Value):
    """An address from a server; times are in seconds."""

    address: IPv6Address
    preferred_seconds: int
    valid_seconds: int
    renewal_seconds: int
    rebinding_seconds: int


class Answer6(Value):
    """
    A server's answer.

    `ntp_servers` are addresses and names. `leased` is None for an answer without an address. After `refresh_seconds`
    the client asks for the rest again.
    """

    kind: int
    server: bytes
    leased: LeasedAddress | None = None
    preference: int = 0
    name_servers: tuple[IPv6Address, ...] = ()
    search: tuple[str, ...] = ()
    ntp_servers: tuple[str, ...] = ()
    refresh_seconds: int | None = None


def link_layer_duid(mac: bytes) -> bytes:
    """Return a machine's identifier, from the hardware address of an interface (RFC 8415, 11.4)."""
    return struct.pack(">HH", _DUID_LINK_LAYER, _ETHERNET) + mac


def is_duid(duid: bytes) -> bool:
    """Tell whether these bytes can be the identifier of a client or a server."""
    return 3 <= len(duid) <= _LONGEST_DUID_BYTES


def encode_question(
    kind: int,
    duid: bytes,
    *,
    transaction: int,
    elapsed_seconds: float,
    association: int | None = None,
    address: IPv6Address | None = None,
    server: bytes | None = None,
) -> bytes:
    """Return a message to a server: about an address if there is the number of an `association`."""
    options: list[tuple[int, bytes]] = [(_CLIENT_ID, duid)]
    if server is not None:
        options.append((_SERVER_ID, server))
    options.append((_ELAPSED, min(int(elapsed_seconds * 100), 0xFFFF).to_bytes(2, "big")))
    if association is not None:
        # A time of 0 leaves the choice to the server.
        given = b"" if address is None else _write([(_IA_ADDRESS, _ADDRESS.pack(address.packed, 0, 0))])
        options.append((_IA_NA, _IA.pack(association, 0, 0) + given))
    if kind not in (RELEASE, DECLINE):
        options.append((_WANTED, b"".join(code.to_bytes(2, "big") for code in _WANTS)))
    return (kind << 24 | transaction).to_bytes(4, "big") + _write(options)


def parse_answer(data: bytes, duid: bytes, transaction: int, association: int) -> Answer6 | None:
    """Return a server's answer to this client in this transaction; None for any other message."""
    if len(data) < 4 or int.from_bytes(data[1:4], "big") != transaction or data[0] not in (ADVERTISE, REPLY):
        return None
    options = _parse_options(data[4:])
    if options is None or _only(options, _CLIENT_ID) != duid or _failed(options):
        return None
    server = _only(options, _SERVER_ID)
    if server is None or not is_duid(server):
        return None
    refresh, preference = _only(options, _REFRESH), _only(options, _PREFERENCE)
    return Answer6(
        kind=data[0],
        server=server,
        leased=_leased(options, association),
        preference=preference[0] if preference is not None and len(preference) == 1 else 0,
        name_servers=_addresses(_only(options, _NAME_SERVERS) or b""),
        search=parse_domain_names(_only(options, _SEARCH) or b""),
        ntp_servers=_ntp_servers(options),
        refresh_seconds=int.from_bytes(refresh, "big") if refresh is not None and len(refresh) == 4 else None,
    )


def _leased(options: _Options, association: int) -> LeasedAddress | None:
    """Return the first usable address of the association."""
    for code, text in options:
        if code != _IA_NA or len(text) < _IA.size:
            continue
        number, renewal, rebinding = _IA.unpack_from(text)
        inner = _parse_options(text[_IA.size :])
        if number != association or inner is None or _failed(inner) or 0 < rebinding < renewal:
            continue
        for address in _association_addresses(inner):
            preferred = address.preferred_seconds
            # 0 where the server leaves the time to the client (RFC 8415, 14.2).
            return LeasedAddress(
                address=address.address,
                preferred_seconds=preferred,
                valid_seconds=address.valid_seconds,
                renewal_seconds=renewal or (preferred if preferred == INFINITE_SECONDS else preferred // 2),
                rebinding_seconds=rebinding or (preferred if preferred == INFINITE_SECONDS else preferred * 4 // 5),
            )
    return None


def _association_addresses(options: _Options) -> Iterator[LeasedAddress]:
    for code, text in options:
        if code != _IA_ADDRESS or len(text) < _ADDRESS.size:
            continue
        packed, preferred, valid = _ADDRESS.unpack_from(text)
        address, inner = IPv6Address(packed), _parse_options(text[_ADDRESS.size :])
        if inner is None or _failed(inner) or not 0 < preferred <= valid:
            continue
        if not (address.is_multicast or address.is_loopback or address.is_unspecified or address.is_link_local):
            yield LeasedAddress(
                address=address,
                preferred_seconds=preferred,
                valid_seconds=valid,
                renewal_seconds=0,
                rebinding_seconds=0,
            )


def _ntp_servers(options: _Options) -> tuple[str, ...]:
    found: list[str] = []
    for text in (text for code, text in options if code == _NTP):
        for code, inner in _parse_options(text) or ():
            if code == _NTP_ADDRESS and len(inner) == 16:
                found.append(str(IPv6Address(inner)))
            elif code == _NTP_NAME:
                found += parse_domain_names(inner)
    return tuple(found[:_MAXIMUM_SERVERS])


def _addresses(text: bytes) -> tuple[IPv6Address, ...]:
    if len(text) % 16:
        return ()
    return tuple(IPv6Address(text[at : at + 16]) for at in range(0, len(text), 16))[:_MAXIMUM_SERVERS]


def _failed(options: _Options) -> bool:
    """Tell whether the options have a status other than success."""
    return any(code == _STATUS and text[:2] != b"\0\0" for code, text in options)


def _only(options: _Options, wanted: int) -> bytes | None:
    """Return the content of an option that may occur once; None if it is missing or repeated."""
    found = [text for code, text in options if code == wanted]
    return found[0] if len(found) == 1 else None


def _write(options: _Options) -> bytes:
    return b"".join(_OPTION.pack(code, len(text)) + text for code, text in options)


def _parse_options(data: bytes) -> list[tuple[int, bytes]] | None:
    """Return codes and contents in their order; None if an option is longer than the data."""
    options = []
    while data:
        if len(data) < _OPTION.size:
            return None
        code, length = _OPTION.unpack_from(data)
        text = data[_OPTION.size : _OPTION.size + length]
        if len(text) != length:
            return None
        options.append((code, text))
        data = data[_OPTION.size + length :]
    return options


class RouterOption(Value):
    """Name servers and domains from a router, for the link `index` and `lifetime_seconds`; 0 revokes them."""

    index: int
    lifetime_seconds: int
    name_servers: tuple[IPv6Address, ...] = ()
    search: tuple[str, ...] = ()


class RouterOptions:
    """
    The options of router advertisements that the kernel leaves to programs: name servers and domains (RFC 8106).

    The kernel takes addresses and routes from an advertisement, and hands the rest out over rtnetlink(7),
    RTNLGRP_ND_USEROPT, from now on, in the network namespace of the process at the construction.
    """

    def __init__(self) -> None:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, 0)
        self._socket.bind((0, _RTMGRP_ND_USEROPT))

    def fileno(self) -> int:
        """Return the descriptor, which is readable when options have come."""
        return self._socket.fileno()

    def take(self) -> Iterator[RouterOption]:
        """Yield the options that have come; routers repeat lost ones."""
        for _ in range(_MOST_MESSAGES):
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except OSError:
                return
            yield from parse_router_options(data)


def parse_router_options(data: bytes) -> Iterator[RouterOption]:
    """Yield the options in messages of the kernel, whose content is a router's; broken options are left out."""
    while len(data) >= _HEADER.size + _USER_OPTION.size:
        length, kind, _, _, _ = _HEADER.unpack_from(data)
        _, size, index, icmp_type, _ = _USER_OPTION.unpack_from(data, _HEADER.size)
        begin = _HEADER.size + _USER_OPTION.size
        if length < begin or length > len(data):
            return
        if (kind, icmp_type) == (_RTM_NEWNDUSEROPT, _ROUTER_ADVERTISEMENT):
            yield from _parse_router_options(data[begin : min(begin + size, length)], index)
        data = data[(length + 3) & ~3 :]


def _parse_router_options(data: bytes, index: int) -> Iterator[RouterOption]:
    while len(data) >= _ROUTER_OPTION.size:
        kind, units, lifetime = _ROUTER_OPTION.unpack_from(data)
        length = units * _UNIT_BYTES
        content = data[_ROUTER_OPTION.size : length]
        if not length or length > len(data):
            return
        if kind == _ROUTER_NAME_SERVERS and content and len(content) % 16 == 0:
            servers = tuple(IPv6Address(content[at : at + 16]) for at in range(0, len(content), 16))
            yield RouterOption(index=index, lifetime_seconds=lifetime, name_servers=servers)
        elif kind == _ROUTER_SEARCH and (names := parse_domain_names(content)):
            yield RouterOption(index=index, lifetime_seconds=lifetime, search=names)
        data = data[length:]


def solicit_routers(interface: str) -> None:
    """Have routers send an advertisement soon (RFC 4861, 4.1); the kernel does so only when a link comes up."""
    with socket.socket(socket.AF_INET6, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_ICMPV6) as sock:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        sock.sendto(bytes((133, 0, 0, 0, 0, 0, 0, 0)), ("ff02::2", 0, 0, socket.if_nametoindex(interface)))
