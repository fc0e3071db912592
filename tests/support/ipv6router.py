"""A router and server of DHCP for IPv6 that says what a test wants to have said, and remembers what it was asked."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from ipaddress import IPv6Address

SOLICIT, ADVERTISE, REQUEST, RENEW, REPLY, DECLINE, INFORMATION_REQUEST = 1, 2, 3, 5, 7, 9, 11
MANAGED, OTHER = 0x80, 0x40

_SO_BINDTODEVICE = 25
_SERVER = bytes.fromhex("00030001020000000001")


def option(code: int, text: bytes) -> bytes:
    """Return an option of DHCP for IPv6."""
    return struct.pack(">HH", code, len(text)) + text


def association(number: bytes, address: str, seconds: tuple[int, int, int, int] = (0, 0, 3600, 7200)) -> bytes:
    """Return an IA_NA with an address, and the seconds of T1, T2, preferred and valid."""
    renewal, rebinding, preferred, valid = seconds
    inner = option(5, IPv6Address(address).packed + struct.pack(">II", preferred, valid))
    return option(3, number + struct.pack(">II", renewal, rebinding) + inner)


class Ipv6Router:
    """
    It is on the interface `name` of the network namespace in which it is made.

    It gives `address` if there is one, and `options` with every answer. `asked` has the kind of each request and its
    options.
    """

    def __init__(self, name: str) -> None:
        self.address: str | None = None
        self.options = b""
        self.asked: list[tuple[int, dict[int, bytes]]] = []
        index = socket.if_nametoindex(name)
        self._index = index
        self._raw = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
        self._raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        self._socket = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, name.encode())
        group = socket.inet_pton(socket.AF_INET6, "ff02::1:2") + struct.pack("@I", index)
        self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
        self._socket.bind(("::", 547))

    def close(self) -> None:
        """Say no more."""
        self._raw.close()
        self._socket.close()

    def kinds(self) -> list[int]:
        """Return the kinds of all requests so far."""
        return [kind for kind, _ in self.asked]

    def advertise(self, flags: int = 0, prefix: str | None = None, options: bytes = b"") -> None:
        """Send a router advertisement with these options beside a prefix."""
        if prefix is not None:
            numbers = struct.pack(">BBBBIII", 3, 4, 64, 0xC0, 7200, 3600, 0)
            options = numbers + IPv6Address(prefix).packed + options
        head = struct.pack(">BBHBBHII", 134, 0, 0, 64, flags, 1800, 0, 0)
        with suppress(OSError):  # it has no address yet
            self._raw.sendto(head + options, ("ff02::1", 0, 0, self._index))

    def turn(self) -> None:
        """Answer what has been asked."""
        while True:
            try:
                data, sender = self._socket.recvfrom(2048)
            except BlockingIOError:
                return
            options = _parse(data[4:])
            self.asked.append((data[0], options))
            answer = option(1, options[1]) + option(2, _SERVER) + self.options
            if self.address is not None and 3 in options:
                answer += association(options[3][:4], self.address)
            if data[0] != DECLINE:
                kind = ADVERTISE if data[0] == SOLICIT else REPLY
                self._socket.sendto(bytes((kind,)) + data[1:4] + answer, sender)


def _parse(data: bytes) -> dict[int, bytes]:
    options = {}
    while data:
        code, length = struct.unpack_from(">HH", data)
        options[code] = data[4 : 4 + length]
        data = data[4 + length :]
    return options
