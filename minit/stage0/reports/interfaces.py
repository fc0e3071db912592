"""The traffic of a running pod's network interfaces, from its network namespace's file in proc(5)."""

from __future__ import annotations

import os

from minit.base.value import Value

_HEADING_LINES = 2
_COUNTERS = ("bytes", "packets", "errors", "dropped")
# In each direction; four more follow.
_ALL_COUNTERS = 8


class InterfaceUsage(Value):
    """
    The counters of one interface, as the pod sees them: rx is what it got, tx what it sent.

    Dropped are those, too, that a network card missed.
    """

    name: str
    rx_bytes: int
    rx_packets: int
    rx_errors: int
    rx_dropped: int
    tx_bytes: int
    tx_packets: int
    tx_errors: int
    tx_dropped: int


class PodInterfaces:
    """The interfaces of the pod of which `pid` is a process, a context manager; OSError if it is gone."""

    def __init__(self, pid: int) -> None:
        # Once open, it is that namespace's, whatever becomes of the process. Each read is to ask the kernel anew.
        self._file = open(f"/proc/{pid}/net/dev", "rb", buffering=0)

    def close(self) -> None:
        """Let go of the pod's network."""
        self._file.close()

    def read(self) -> tuple[InterfaceUsage, ...]:
        """Return the counters of all interfaces but `lo`, by name."""
        self._file.seek(0)
        found = []
        for line in self._file.readall().decode().splitlines()[_HEADING_LINES:]:
            name, _, numbers = line.partition(":")
            if name.strip() != "lo":
                found.append(_usage(name.strip(), [int(number) for number in numbers.split()]))
        return tuple(sorted(found, key=lambda usage: usage.name))


def has_own_network(pid: int) -> bool:
    """Return whether a process is in another network namespace than this one; OSError if it is gone."""
    return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")


def _usage(name: str, numbers: list[int]) -> InterfaceUsage:
    received = zip([f"rx_{counter}" for counter in _COUNTERS], numbers)
    sent = zip([f"tx_{counter}" for counter in _COUNTERS], numbers[_ALL_COUNTERS:])
    return InterfaceUsage(name=name, **dict(received), **dict(sent))
