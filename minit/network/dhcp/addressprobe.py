"""
Asking by ARP whether an address is somebody else's already, before it is used (RFC 2131, 4.4.1; RFC 5227, 2.1).

Three questions in less than a second, where the RFC takes up to seven: apps may be waiting.
"""

from __future__ import annotations

import socket
import struct
import time
from ipaddress import IPv4Address

_ETH_P_ARP = 0x0806
_ETHERNET_BROADCAST = b"\xff" * 6
# Hardware and protocol, the lengths of their addresses, the operation; then both addresses of sender and target.
_ARP = struct.Struct(">HHBBH6sI6sI")
_ETHERNET, _IPV4, _REQUEST = 1, 0x0800, 1
_RECEIVE_BYTES = 1024
_MOST_PACKETS = 64
_QUESTIONS = 3
_PAUSE_SECONDS = 0.2


class AddressProbe:
    """The questions about one address; `turn` is called at `deadline` (monotonic) and when `fileno` can be read."""

    def __init__(self, interface: str, mac: bytes, address: IPv4Address) -> None:
        self.deadline = 0.0
        self.owner: bytes | None = None
        self._interface = interface
        self._mac = mac
        self._address = address
        self._left = _QUESTIONS
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_PACKET, kind, socket.htons(_ETH_P_ARP))
        try:
            self._socket.bind((interface, _ETH_P_ARP))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor on which answers come."""
        return self._socket.fileno()

    def close(self) -> None:
        """Ask no more."""
        self._socket.close()

    def turn(self) -> bool:
        """Go on; returns whether it is known by now, `owner` then being the hardware address of whoever has it."""
        for _ in range(_MOST_PACKETS):
            try:
                packet = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                break
            self.owner = find_owner(packet, self._mac, self._address)
            if self.owner is not None:
                return True
        if time.monotonic() < self.deadline:
            return False
        if not self._left:
            return True
        self._left -= 1
        self.deadline = time.monotonic() + _PAUSE_SECONDS
        question = encode_probe(self._mac, self._address)
        try:
            self._socket.sendto(question, (self._interface, _ETH_P_ARP, 0, 0, _ETHERNET_BROADCAST))
        except BlockingIOError:
            pass  # there is another one
        return False


def encode_probe(mac: bytes, address: IPv4Address) -> bytes:
    """Return the question: it names no sender's address, so that nobody believes this machine to have it."""
    return _ARP.pack(_ETHERNET, _IPV4, 6, 4, _REQUEST, mac, 0, bytes(6), int(address))


def find_owner(packet: bytes, mac: bytes, address: IPv4Address) -> bytes | None:
    """Return the hardware address of another one that has an IPv4 address, or is about to take it, by what it sends."""
    if len(packet) < _ARP.size:
        return None
    hardware, protocol, size, other_size, operation, sender, own, _, target = _ARP.unpack_from(packet)
    if (hardware, protocol, size, other_size) != (_ETHERNET, _IPV4, 6, 4) or sender == mac:
        return None
    takes = operation == _REQUEST and own == 0 and target == int(address)
    return bytes(sender) if own == int(address) or takes else None
