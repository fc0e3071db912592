"""
The messages of DHCP for IPv4 as values (RFC 2131, RFC 2132), and the packets they travel in while there is no address.

Pure. Any packet from the network is a message or nothing.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv4Interface

from minit.value import Value

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
_MINIMUM_BYTES = 300  # of BOOTP, which some relays insist on
_MAXIMUM_BYTES = 1472

_PAD, _MASK, _ROUTERS, _NAME_SERVERS, _HOST_NAME, _DOMAIN = 0, 1, 3, 6, 12, 15
_REQUESTED, _LEASE, _KIND, _SERVER, _PARAMETERS = 50, 51, 53, 54, 55
_MAXIMUM_SIZE, _RENEWAL, _REBINDING, _CLIENT, _END = 57, 58, 59, 61, 255
_WANTED = bytes((_MASK, _ROUTERS, _NAME_SERVERS, _DOMAIN, _LEASE, _RENEWAL, _REBINDING))

_IP = struct.Struct(">BBHHHBBHII")
_UDP = struct.Struct(">HHHH")
_PSEUDO = struct.Struct(">IIBBH")
_UDP_PROTOCOL = 17
_FRAGMENT = 0x3FFF  # more fragments, or not the first


class Answer(Value):
    """
    A server's answer; times are in seconds.

    `address` has the length of its prefix. It and `server` are 0.0.0.0 if they are left out.
    """

    kind: int
    address: IPv4Interface = IPv4Interface(NO_ADDRESS)
    server: IPv4Address = NO_ADDRESS
    routers: tuple[IPv4Address, ...] = ()
    name_servers: tuple[IPv4Address, ...] = ()
    domain: str = ""
    lease_seconds: int = INFINITE_SECONDS
    renewal_seconds: int | None = None
    rebinding_seconds: int | None = None


def encode_request(
    kind: int,
    *,
    transaction: int,
    mac: bytes,
    seconds: int = 0,
    hostname: str = "",
    own: IPv4Address = NO_ADDRESS,
    requested: IPv4Address = NO_ADDRESS,
    server: IPv4Address = NO_ADDRESS,
) -> bytes:
    """
    Return a message to a server. `own` is the address that this machine has and uses, `requested` the one it wants.

    Without an address answers are to be broadcast: there is nobody yet to whom they could be addressed.
    """
    flags = _FLAG_BROADCAST if own == NO_ADDRESS else 0
    header = _HEADER.pack(
        *(_BOOT_REQUEST, _ETHERNET, len(mac), 0, transaction, min(seconds, 0xFFFF), flags),
        *(int(own), 0, 0, 0, mac, b"", b"", _COOKIE),
    )
    options = [(_KIND, bytes((kind,))), (_CLIENT, bytes((_ETHERNET,)) + mac)]
    options += [(_REQUESTED, requested.packed)] if requested != NO_ADDRESS else []
    options += [(_SERVER, server.packed)] if server != NO_ADDRESS else []
    if kind != DECLINE:
        # Which is no question; the server must not be told what is wanted (RFC 2131, table 5).
        options += [(_MAXIMUM_SIZE, _MAXIMUM_BYTES.to_bytes(2, "big")), (_PARAMETERS, _WANTED)]
        name = hostname.encode()[:255]
        options += [(_HOST_NAME, name)] if name else []
    data = header + b"".join(bytes((code, len(text))) + text for code, text in options) + bytes((_END,))
    return data.ljust(_MINIMUM_BYTES, b"\0")


def parse_answer(data: bytes, transaction: int, mac: bytes) -> Answer | None:
    """Return what a server says to this machine in this transaction; None for anything else."""
    if len(data) < _HEADER.size:
        return None
    fields = _HEADER.unpack_from(data)
    reply, number, address, owner, cookie = fields[0], fields[4], fields[8], fields[11], fields[14]
    if (reply, number, cookie) != (_BOOT_REPLY, transaction, _COOKIE) or owner[: len(mac)] != mac:
        return None
    options = _parse_options(data[_HEADER.size :])
    kind = options.get(_KIND, b"")
    mask = _number(options, _MASK, 4)
    if len(kind) != 1 or (mask is not None and not _is_mask(mask)):
        return None
    length = _class_prefix(address) if mask is None else mask.bit_count()
    return Answer(
        kind=kind[0],
        address=IPv4Interface((address, length)),
        server=next(iter(_addresses(options, _SERVER)), NO_ADDRESS),
        routers=_addresses(options, _ROUTERS),
        name_servers=_addresses(options, _NAME_SERVERS),
        domain=_domain(options.get(_DOMAIN, b"")),
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
    """Return the message in an IP packet to the client's port; None for any other packet, or a damaged one."""
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
    # A checksum is not looked at: on a virtual network the sender's kernel leaves it to a device that does not exist.
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
        # One that comes several times is one (RFC 3396).
        options[data[at]] = options.get(data[at], b"") + data[at + 2 : at + 2 + data[at + 1]]
        at += 2 + data[at + 1]
    return options


def _number(options: dict[int, bytes], code: int, size: int) -> int | None:
    text = options.get(code, b"")
    return int.from_bytes(text, "big") if len(text) == size else None


def _addresses(options: dict[int, bytes], code: int) -> tuple[IPv4Address, ...]:
    text = options.get(code, b"")
    return tuple(IPv4Address(text[at : at + 4]) for at in range(0, len(text) - 3, 4))


def _domain(text: bytes) -> str:
    # It becomes a line of resolv.conf.
    name = text.rstrip(b"\0").decode("ascii", "replace")
    return name if all(letter.isascii() and (letter.isalnum() or letter in "-._") for letter in name) else ""


def _is_mask(mask: int) -> bool:
    inverted = mask ^ int(BROADCAST)
    return mask != 0 and inverted & (inverted + 1) == 0


def _class_prefix(address: int) -> int:
    return 8 if address >> 31 == 0 else 16 if address >> 30 == 2 else 24


def _checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071); 0 for data that holds its own."""
    padded = data + bytes(len(data) % 2)
    total: int = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF
