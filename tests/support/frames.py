"""Frames of an Ethernet as bytes, true or not, and sockets that send and see them."""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv4Address, IPv6Address

BROADCAST = "ff:ff:ff:ff:ff:ff"
# Protocols behind a header of IP.
ICMP = 1
FRAGMENT = 44
UDP = 17
ICMPV6 = 58
OPTIONS = 60

_IPV4 = 0x0800
_ARP = 0x0806
_VLAN = 0x8100
_IPV6 = 0x86DD
_ETH_P_ALL = 3
_ROUTE = 43
_SEGMENTS = 4
_LOOSE_ROUTE = 131


def ethernet(protocol: int, payload: bytes, source: str, destination: str = BROADCAST) -> bytes:
    """Return a frame."""
    return octets(destination) + octets(source) + struct.pack("!H", protocol) + payload


def vlan(frame: bytes, number: int, kind: int = _VLAN) -> bytes:
    """Return a frame with the tag of a VLAN."""
    return frame[:12] + struct.pack("!HH", kind, number) + frame[12:]


def udp4(source: str, destination: str, mac: str, to: str = BROADCAST, ports: tuple[int, int] = (4000, 4000)) -> bytes:
    """Return a datagram of IPv4 from `source`, sent by `mac`."""
    data = b"spoofed?"
    udp = struct.pack("!HHHH", *ports, 8 + len(data), 0) + data
    return ipv4(source, destination, UDP, udp, mac, to)


def routed4(source: str, by: str, destination: str, port: int, mac: str, to: str) -> bytes:
    """Return a datagram of IPv4 that is to go to its destination by another node, which an option says (RFC 791)."""
    data = b"spoofed?"
    udp = struct.pack("!HHHH", 4000, port, 8 + len(data), 0) + data
    option = bytes((_LOOSE_ROUTE, 7, 4)) + IPv4Address(destination).packed + bytes(1)
    return ipv4(source, by, UDP, udp, mac, to, option)


def routed6(source: str, by: str, destination: str, port: int, mac: str, to: str) -> bytes:
    """Return a datagram of IPv6 that is to go to its destination by another node, which a header says (RFC 8754)."""
    segments = IPv6Address(destination).packed + IPv6Address(by).packed
    route = struct.pack("!BBBBBBH", UDP, len(segments) // 8, _SEGMENTS, 1, 1, 0, 0) + segments
    direct = udp6(source, destination, mac, to, ports=(4000, port))
    return ipv6(source, by, _ROUTE, route + direct[54:], mac, to)


def udp6(source: str, destination: str, mac: str, to: str = BROADCAST, ports: tuple[int, int] = (4000, 4000)) -> bytes:
    """Return a datagram of IPv6 from `source`, sent by `mac`."""
    data = b"spoofed?"
    udp = struct.pack("!HHHH", *ports, 8 + len(data), 0) + data
    total = checksum(_pseudo_header(source, destination, UDP, udp) + udp)
    return ipv6(source, destination, UDP, udp[:6] + struct.pack("!H", total) + udp[8:], mac, to)


def icmp(kind: int, source: str, destination: str, mac: str) -> bytes:
    """Return a message of ICMP that is about the gateway 10.1.0.77, say."""
    body = IPv4Address("10.1.0.77").packed + bytes(8)
    total = checksum(struct.pack("!BBH", kind, 1, 0) + body)
    return ipv4(source, destination, ICMP, struct.pack("!BBH", kind, 1, total) + body, mac)


def icmpv6(
    kind: int, source: str, mac: str, target: str = "::", destination: str = "ff02::1", *, hop_by_hop: bool = False
) -> bytes:
    """Return a message of neighbour discovery, perhaps behind a header of options that every hop looks at."""
    message = icmpv6_message(kind, source, destination, IPv6Address(target).packed)
    if hop_by_hop:
        return ipv6(source, destination, 0, options(ICMPV6) + message, mac)
    return ipv6(source, destination, ICMPV6, message, mac)


def icmpv6_message(kind: int, source: str, destination: str, body: bytes) -> bytes:
    """Return a message of ICMPv6 without the packet around it; of neighbour discovery the body is the target."""
    message = struct.pack("!BBHI", kind, 0, 0, 0) + body
    total = checksum(_pseudo_header(source, destination, ICMPV6, message) + message)
    return message[:2] + struct.pack("!H", total) + message[4:]


def options(protocol: int, count: int = 1) -> bytes:
    """Return a header of IPv6 with options that mean nothing, of `count` times 8 bytes, before one of a protocol."""
    padding = count * 8 - 4
    return struct.pack("!BBBB", protocol, count - 1, 1, padding) + bytes(padding)


def fragment(protocol: int, offset_bytes: int, payload: bytes, *, more: bool = False, number: int = 1) -> bytes:
    """Return the header of a fragment of IPv6 and what is in it."""
    return struct.pack("!BBHI", protocol, 0, offset_bytes | more, number) + payload


def arp(operation: int, mac: str, address: str, target: str, *, sent_by: str | None = None) -> bytes:
    """Return a packet of ARP that says that `mac` has the address."""
    sender = octets(mac) + IPv4Address(address).packed
    packet = struct.pack("!HHBBH", 1, _IPV4, 6, 4, operation) + sender + bytes(6) + IPv4Address(target).packed
    return ethernet(_ARP, packet, sent_by or mac)


def octets(mac: str) -> bytes:
    """Return a hardware address as bytes."""
    return bytes.fromhex(mac.replace(":", ""))


def frame_socket(link: str) -> socket.socket:
    """Return a socket that sends frames by a link of this namespace, and sees all that come by it."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    sock.bind((link, _ETH_P_ALL))
    return sock


def ipv4(
    source: str, destination: str, protocol: int, payload: bytes, mac: str, to: str = BROADCAST, option: bytes = b""
) -> bytes:
    """Return a packet of IPv4, with options of whole words behind its header."""
    size = 20 + len(option)
    addresses = IPv4Address(source).packed + IPv4Address(destination).packed + option
    header = struct.pack("!BBHHHBBH", 0x40 | size // 4, 0, size + len(payload), 1, 0, 64, protocol, 0) + addresses
    header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
    return ethernet(_IPV4, header + payload, mac, to)


def ipv6(source: str, destination: str, protocol: int, payload: bytes, mac: str, to: str = BROADCAST) -> bytes:
    """Return a packet of IPv6, whose payload begins with a header of the protocol."""
    addresses = IPv6Address(source).packed + IPv6Address(destination).packed
    header = struct.pack("!IHBB", 6 << 28, len(payload), protocol, 255) + addresses
    return ethernet(_IPV6, header + payload, mac, to)


def _pseudo_header(source: str, destination: str, protocol: int, payload: bytes) -> bytes:
    addresses = IPv6Address(source).packed + IPv6Address(destination).packed
    return addresses + struct.pack("!II", len(payload), protocol)


def checksum(data: bytes) -> int:
    """Return the checksum of the Internet, RFC 1071."""
    data += bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF
