"""A DHCP server that says what a test wants to have said, and remembers what it was asked."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from ipaddress import IPv4Address

DISCOVER, OFFER, REQUEST, ACK, NAK = 1, 2, 3, 5, 6

_SO_BINDTODEVICE = 25
_HEADER_BYTES = 240
_COOKIE = bytes.fromhex("63825363")


class DhcpResponder:
    """
    A server on the interface `name` of the network namespace in which it is made.

    It gives `address` with `options`, and answers a REQUEST as `confirms` says: True with an ACK, False with a NAK, and
    None not at all. `asked` has each request: its kind and its options.
    """

    def __init__(self, name: str, address: str, options: Mapping[int, bytes]) -> None:
        self.address = IPv4Address(address)
        self.options = options
        self.confirms: bool | None = True
        self.asked: list[tuple[int, dict[int, bytes]]] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, name.encode())
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        self._socket.bind(("", 67))

    def close(self) -> None:
        """Answer no more."""
        self._socket.close()

    def kinds(self) -> list[int]:
        """Return the kinds of all requests so far."""
        return [kind for kind, _ in self.asked]

    def turn(self) -> None:
        """Answer what has been asked."""
        while True:
            try:
                data = self._socket.recv(2048)
            except BlockingIOError:
                return
            options = _options(data[_HEADER_BYTES:])
            kind = options[53][0]
            self.asked.append((kind, options))
            if kind == DISCOVER:
                self._answer(data, OFFER)
            elif kind == REQUEST and self.confirms is not None:
                self._answer(data, ACK if self.confirms else NAK)

    def _answer(self, request: bytes, kind: int) -> None:
        told = {53: bytes((kind,)), 54: IPv4Address("192.0.2.1").packed}
        given = kind != NAK
        told |= {1: bytes((255, 255, 255, 0)), 51: (3600).to_bytes(4, "big"), **self.options} if given else {}
        address = self.address.packed if given else bytes(4)
        head = bytes((2, 1, 6, 0)) + request[4:8] + bytes(8) + address + bytes(8) + request[28:44] + bytes(192)
        body = b"".join(bytes((code, len(value))) + value for code, value in told.items())
        self._socket.sendto(head + _COOKIE + body + b"\xff", ("255.255.255.255", 68))


def _options(data: bytes) -> dict[int, bytes]:
    options = {}
    while data and data[0] != 255:
        options[data[0]] = data[2 : 2 + data[1]]
        data = data[2 + data[1] :]
    return options
