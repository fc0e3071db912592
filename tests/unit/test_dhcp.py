"""minit.network.dhcp.client beyond what a server of tests/ns shows."""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.network.dhcp.client import DhcpClient, encode_probe, find_owner
from minit.network.dhcp.message import machine_identity

MAC, OTHER = bytes.fromhex("525400123456"), bytes.fromhex("525400abcdef")
ADDRESS = 0xC0000214
_ARP = ">HHBBH6sI6sI"


class BusyNetwork:
    """A socket on which packets for others come faster than they are read."""

    def __init__(self) -> None:
        self.read = 0

    def bind(self, address: object) -> None:
        """Be on an interface."""

    def sendto(self, data: bytes, address: object) -> None:
        """Drop a packet."""

    def recvfrom(self, size: int) -> tuple[bytes, object]:
        """Return a packet."""
        self.read += 1
        assert self.read < 10_000
        return bytes(min(size, 64)), None


def test_a_busy_network_leaves_time_for_what_else_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends though there is always another packet."""
    client = DhcpClient("eth0", machine_identity(bytes(6), "host"), lambda lease: None, lambda line: None)
    network = BusyNetwork()
    monkeypatch.setattr(socket, "socket", lambda *_: network)
    client.turn()
    assert network.read == 0, "it has asked"
    client.turn()
    assert network.read > 0


def packet(operation: int, sender: bytes, own: int, target: int) -> bytes:
    """Return a packet of somebody's."""
    return struct.pack(_ARP, 1, 0x0800, 6, 4, operation, sender, own, bytes(6), target)


def test_a_question() -> None:
    """It is one of Ethernet and IPv4, and names no address of the sender."""
    assert (
        encode_probe(MAC, IPv4Address(ADDRESS)).hex() == "00010800060400015254001234560000000000000000" + "0000c0000214"
    )


@pytest.mark.parametrize(
    ("data", "owner"),
    [
        (packet(2, OTHER, ADDRESS, 0), OTHER),
        (packet(1, OTHER, ADDRESS, 7), OTHER),
        (packet(1, OTHER, 0, ADDRESS), OTHER),
        (packet(1, OTHER, 7, ADDRESS), None),
        (packet(2, OTHER, 0, ADDRESS), None),
        (packet(1, MAC, 0, ADDRESS), None),
        (packet(2, MAC, ADDRESS, 0), None),
        (packet(2, OTHER, ADDRESS, 0)[:-1], None),
        (b"\0\6" + packet(2, OTHER, ADDRESS, 0)[2:], None),
    ],
)
def test_who_has_an_address(data: bytes, owner: bytes | None) -> None:
    """A sender from the address has it, or asks for it too; not one that looks for it, and not this machine."""
    assert find_owner(data, MAC, IPv4Address(ADDRESS)) == owner


@given(st.binary(max_size=64))
def test_anything_else_is_nothing(data: bytes) -> None:
    """No packet is an error."""
    assert find_owner(data, MAC, IPv4Address(ADDRESS)) is None or len(data) >= 28
