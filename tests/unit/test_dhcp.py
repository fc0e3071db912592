"""minit.network.dhcp.client beyond what a server of tests/ns shows."""

from __future__ import annotations

import socket

import pytest

from minit.network.dhcp.client import DhcpClient
from minit.network.dhcp.message import machine_identity


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
