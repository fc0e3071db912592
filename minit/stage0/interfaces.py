"""What went through the network interfaces of a running pod, by rtnetlink(7) in its network namespace."""

from __future__ import annotations

import os

from pyroute2.netlink.rtnl import RTM_GETLINK
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from minit import syscalls
from minit.network.namespace import return_to
from minit.network.netlink import NETLINK_ROUTE, Netlink
from minit.value import Value

_COUNTERS = (
    *("rx_bytes", "rx_packets", "rx_errors", "rx_dropped"),
    *("tx_bytes", "tx_packets", "tx_errors", "tx_dropped"),
)
_IFF_LOOPBACK = 0x8


class InterfaceUsage(Value):
    """The counters of one interface, as the pod sees them: rx is what it got, tx what it sent."""

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
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._netlink = _connect(namespace)
        finally:
            os.close(namespace)

    def close(self) -> None:
        """Let go of the pod's network."""
        self._netlink.__exit__()

    def read(self) -> tuple[InterfaceUsage, ...]:
        """Return the counters of all interfaces but `lo`, by name."""
        request = ifinfmsg()
        request["header"]["type"] = RTM_GETLINK
        found = []
        for link in self._netlink.dump(request):
            counters = link.get_attr("IFLA_STATS64")
            if counters is None or link["flags"] & _IFF_LOOPBACK:
                continue
            numbers = {name: counters[name] for name in _COUNTERS}
            found.append(InterfaceUsage(name=str(link.get_attr("IFLA_IFNAME")), **numbers))
        return tuple(sorted(found, key=lambda usage: usage.name))


def has_own_network(pid: int) -> bool:
    """Return whether a process is in another network namespace than this one; OSError if it is gone."""
    return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")


def _connect(namespace: int) -> Netlink:
    # A socket stays in the namespace in which it was made.
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.setns(namespace, syscalls.CLONE_NEWNET)
        try:
            return Netlink(NETLINK_ROUTE)
        finally:
            return_to(own)
    finally:
        os.close(own)
