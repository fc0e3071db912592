"""minit.machine.dhcp beyond what a server of tests/ns shows."""

from __future__ import annotations

import math
from typing import Any, cast

from minit.machine.dhcp import DhcpClient


class BusyNetwork:
    """A socket on which packets for others come faster than they are read."""

    def __init__(self) -> None:
        self.read = 0

    def recv(self, size: int) -> bytes:
        """Return a packet."""
        self.read += 1
        assert self.read < 10_000
        return bytes(min(size, 64))


def test_a_busy_network_leaves_time_for_what_else_is_due() -> None:
    """A turn ends though there is always another packet."""
    client = DhcpClient("eth0", bytes(6), "host", lambda lease: None)
    client.deadline = math.inf
    network = BusyNetwork()
    client._raw = cast(Any, network)
    client.turn()
    assert network.read > 0
