"""
The messages of DHCP for IPv4 as values (RFC 2131, RFC 2132), and their packets while there is no address.

Pure. Any packet from the network is a message or nothing.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from minit.base.value import Value
from minit.network.addresses import is_domain_name, parse_domain_names

DISCOVER, OFFER, REQUEST, DECLINE, ACK, NAK, RELEASE = 1, 2, 3, 4, 5, 6, 7
CLIENT_PORT, SERVER_PORT = 68, 67
NO_ADDRESS = IPv4Address("0.0.0.0")
BROADCAST = IPv4Address("255.255.255.255")
INFINITE_SECONDS = 0xFFFFFFFF

# op, htype, hlen, hops, xid, secs, flags, ciaddr, yiaddr, siaddr, giaddr, chaddr, sname, file, cookie
_HEADER = struct.Struct(">BBBBIHHIIII16s64s128sI")
_COOKIE = 0x63825363
_BOOT_REQUEST, _BOOT_REPLY, _ETHERNET = 1, 2, 1
_FLAG_BROADCAST = 0x8000
_ADDRESS_BITS = 32
_MINIMUM_BYTES = 300  # of BOOTP, which some relays insist on
_MAXIMUM_BYTES = 1472

# Options of RFC 2132, RFC 3397 and RFC 3442.
SUBNET_MASK, ROUTERS, NAME_SERVERS, HOST_NAME, DOMAIN, STATIC_ROUTES = 1, 3, 6, 12, 15, 33
CLIENT_IDENTIFIER, CLASSLESS_ROUTES = 61, 121
_MTU, _NTP_SERVERS, _SEARCH = 26, 42, 119
_PAD = 0
_REQUESTED, _LEASE, _KIND, _SERVER, _PARAMETERS = 50, 51, 53, 54, 55
_MAXIMUM_SIZE, _RENEWAL, _REBINDING, _END = 57, 58, 59, 255
# The routes that count stand before the router (RFC 3442).
_MACHINE_WANTS = bytes(
    (CLASSLESS_ROUTES, SUBNET_MASK, ROUTERS, NAME_SERVERS, DOMAIN, _SEARCH, _NTP_SERVERS, _MTU)
    + (_LEASE, _RENEWAL, _REBINDING)
)
# Without any of these a lease would be another lease: a message with another length is not an answer.
_LENGTHS = {_KIND: 1, SUBNET_MASK: 4, _LEASE: 4, _SERVER: 4}
_LONGEST_OPTION_BYTES = 255

_IP = struct.Struct(">BBHHHBBHII")
_UDP = struct.Struct(">HHHH")
_PSEUDO = struct.Struct(">IIBBH")
_UDP_PROTOCOL = 17
_FRAGMENT = 0x3FFF  # more fragments, or not the first


class Identity(Value):
    """A client's identity: hardware address, identifier, `options` by number, and the numbers of wanted options."""

    mac: bytes
    identifier: bytes
    wanted: bytes
    options: tuple[tuple[int, bytes], ...] = ()


class StaticRoute(Value):
    """A route from a server; the router 0.0.0.0 stands for the link itself."""

    destination: IPv4Network
    router: IPv4Address


class Answer(Value):
    """
    A server's answer; times are in seconds.

    `address` has a prefix length. A missing address or `server` is 0.0.0.0. `hop` is the hardware address of the
    answer's sender: the server, or a relay before it.
    """

    kind: int
    address: IPv4Interface = IPv4Interface(NO_ADDRESS)
    server: IPv4Address = NO_ADDRESS
    hop: bytes = b""
    routers: tuple[IPv4Address, ...] = ()
    static_routes: tuple[StaticRoute, ...] = ()
    classless_routes: tuple[StaticRoute, ...] = ()
    name_servers: tuple[IPv4Address, ...] = ()
    ntp_servers: tuple[IPv4Address, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    mtu: int | None = None
    lease_seconds: int = INFINITE_SECONDS
    renewal_seconds: int | None = None
    rebinding_seconds: int | None = None


def machine_identity(mac: bytes, hostname: str) -> Identity:
    """Return the identity of a machine's interface, by the interface's hardware address."""
    name = hostname.encode()[:_LONGEST_OPTION_BYTES]
    return Identity(
        mac=mac,
        identifier=bytes((_ETHERNET,)) + mac,
        wanted=_MACHINE_WANTS,
        options=((HOST_NAME, name),) if name else (),
    )


def encode_request(
    kind: int,
    identity: Identity,
    *,
    transaction: int,
    seconds: int = 0,
    own: IPv4Address = NO_ADDRESS,
    requested: IPv4Address = NO_ADDRESS,
    server: IPv4Address = NO_ADDRESS,
) -> bytes:
    """
    Return a message to a server. `own` is the client's address in use, `requested` the wanted address.

    Without an own address answers have to be broadcast: no client can be addressed yet.
    """
    flags = _FLAG_BROADCAST if own == NO_ADDRESS else 0
    header = _HEADER.pack(
        *(_BOOT_REQUEST, _ETHERNET, len(identity.mac), 0, transaction, min(seconds, 0xFFFF), flags),
        *(int(own), 0, 0, 0, identity.mac, b"", b"", _COOKIE),
    )
    options = {_KIND: bytes((kind,)), CLIENT_IDENTIFIER: identity.identifier}
    if requested != NO_ADDRESS:
        options[_REQUESTED] = requested.packed
    if server != NO_ADDRESS:
        options[_SERVER] = server.packed
    if kind not in (DECLINE, RELEASE):
        # Not a question: the server must not be told the wanted options (RFC 2131, table 5).
        options |= {_MAXIMUM_SIZE: _MAXIMUM_BYTES.to_bytes(2, "big"), _PARAMETERS: identity.wanted}
        options |= identity.options
    written = (bytes((code, len(text))) + text for code, text in options.items() if text)
    return (header + b"".join(written) + bytes((_END,))).ljust(_MINIMUM_BYTES, b"\0")


def parse_answer(data: bytes, transaction: int, mac: bytes) -> Answer | None:
    """Return a server's answer to this machine in this transaction; None for any other message."""
    if len(data) < _HEADER.size:
        return None
    fields = _HEADER.unpack_from(data)
    reply, number, address, owner, cookie = fields[0], fields[4], fields[8], fields[11], fields[14]
    if (reply, number, cookie) != (_BOOT_REPLY, transaction, _COOKIE) or owner[: len(mac)] != mac:
        return None
    options = _parse_options(data[_HEADER.size :])
    mask = _number(options, SUBNET_MASK, 4)
    if any(len(options[code]) != size for code, size in _LENGTHS.items() if code in options):
        return None
    if _KIND not in options or (mask is not None and not _is_mask(mask)) or not _may_be_given(IPv4Address(address)):
        return None
    length = _class_prefix(address) if mask is None else mask.bit_count()
    return Answer(
        kind=options[_KIND][0],
        address=IPv4Interface((address, length)),
        server=next(iter(_addresses(options, _SERVER)), NO_ADDRESS),
        routers=_addresses(options, ROUTERS),
        static_routes=_static_routes(options),
        classless_routes=_classless_routes(options.get(CLASSLESS_ROUTES, b"")),
        name_servers=_addresses(options, NAME_SERVERS),
        ntp_servers=_addresses(options, _NTP_SERVERS),
        domain=_domain(options.get(DOMAIN, b"")),
        search=parse_domain_names(options.get(_SEARCH, b""), compressed=True),
        mtu=_number(options, _MTU, 2),
        lease_seconds=lease if (lease := _number(options, _LEASE, 4)) is not None else INFINITE_SECONDS,
        renewal_seconds=_number(options, _RENEWAL, 4),
        rebinding_seconds=_number(options, _REBINDING, 4),
    )


def wrap(data: bytes, source: IPv4Address = NO_ADDRESS, target: IPv4Address = BROADCAST) -> bytes:
    """Return a message in an IP packet from the client's port to the server's."""
    length = _UDP.size + len(data)
    pseudo = _PSEUDO.pack(int(source), int(target), 0, _UDP_PROTOCOL, length)
    checksum = _checksum(pseudo + _UDP.pack(CLIENT_PORT, SERVER_PORT, length, 0) + data) or 0xFFFF
    fields = [0x45, 0, _IP.size + length, 0, 0, 64, _UDP_PROTOCOL, 0, int(source), int(target)]
    fields[7] = _checksum(_IP.pack(*fields))
    return _IP.pack(*fields) + _UDP.pack(CLIENT_PORT, SERVER_PORT, length, checksum) + data


def unwrap(packet: bytes) -> bytes | None:
    """Return the message in an IP packet to the client's port; None for any other packet, or a damaged packet."""
    if len(packet) < _IP.size or packet[0] >> 4 != 4:
        return None
    start = (packet[0] & 15) * 4
    _, _, total, _, fragment, _, protocol, _, source, target = _IP.unpack_from(packet)
    if protocol != _UDP_PROTOCOL or fragment & _FRAGMENT or not _IP.size <= start <= total - _UDP.size:
        return None
    if total > len(packet) or _checksum(packet[:start]):
        return None
    _, port, length, checksum = _UDP.unpack_from(packet, start)
    if port != CLIENT_PORT or not _UDP.size <= length <= total - start:
        return None
    # The checksum is ignored: on a virtual network the sender's kernel leaves it to a device that does not exist.
    return packet[start + _UDP.size : start + length]


def _parse_options(data: bytes) -> dict[int, bytes]:
    options: dict[int, bytes] = {}
    at = 0
    while at < len(data) and data[at] != _END:
        if data[at] == _PAD:
            at += 1
            continue
        if at + 1 >= len(data) or at + 2 + data[at + 1] > len(data):
            break
        # Several parts of an option are a single option (RFC 3396).
        options[data[at]] = options.get(data[at], b"") + data[at + 2 : at + 2 + data[at + 1]]
        at += 2 + data[at + 1]
    return options


def _number(options: dict[int, bytes], code: int, size: int) -> int | None:
    text = options.get(code, b"")
    return int.from_bytes(text, "big") if len(text) == size else None


def _addresses(options: dict[int, bytes], code: int) -> tuple[IPv4Address, ...]:
    text = options.get(code, b"")
    return tuple(IPv4Address(text[at : at + 4]) for at in range(0, len(text), 4)) if len(text) % 4 == 0 else ()


def _static_routes(options: dict[int, bytes]) -> tuple[StaticRoute, ...]:
    """Return the routes to networks whose length follows from their class."""
    addresses = _addresses(options, STATIC_ROUTES)
    return tuple(
        StaticRoute(destination=IPv4Network((network, _class_prefix(int(network))), strict=False), router=router)
        for network, router in zip(addresses[::2], addresses[1::2])
    )


def _classless_routes(text: bytes) -> tuple[StaticRoute, ...]:
    """Return the routes of RFC 3442: a prefix length, as many bytes of the prefix as needed, a router; or none."""
    routes = []
    while text:
        length = text[0]
        router = 1 + (length + 7) // 8
        if length > _ADDRESS_BITS or router + 4 > len(text):
            return ()
        network = IPv4Address(text[1:router].ljust(4, b"\0"))
        destination = IPv4Network((network, length), strict=False)
        routes.append(StaticRoute(destination=destination, router=IPv4Address(text[router : router + 4])))
        text = text[router + 4 :]
    return tuple(routes)


def _domain(text: bytes) -> str:
    # The name becomes a line of resolv.conf.
    name = text.rstrip(b"\0").decode("ascii", "replace")
    return name if is_domain_name(name) else ""


def _may_be_given(address: IPv4Address) -> bool:
    return not (address.is_multicast or address.is_loopback or address == BROADCAST)


def _is_mask(mask: int) -> bool:
    inverted = mask ^ int(BROADCAST)
    return mask != 0 and inverted & (inverted + 1) == 0


def _class_prefix(address: int) -> int:
    return 8 if address >> 31 == 0 else 16 if address >> 30 == 2 else 24


def _checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071); 0 for data with a correct checksum inside."""
    padded = data + bytes(len(data) % 2)
    total: int = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF
