"""Ports of the host that a pod asks for, and the packets that such ports are about. Pure."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeAlias

from minit.base.value import Value

Address: TypeAlias = IPv4Address | IPv6Address


class HostPorts(Value):
    """
    `count` ports of the host from the first on, by tcp or udp, at an address of the host.

    `0.0.0.0` is every address of IPv4, `::` every address of IPv6, and None every address of both.
    """

    protocol: str
    address: Address | None
    first: int
    count: int = 1

    @property
    def last(self) -> int:
        """The last of the ports."""
        return self.first + self.count - 1


def overlap(one: HostPorts, other: HostPorts) -> bool:
    """Tell whether a packet to the host can be meant by both."""
    return (
        one.protocol == other.protocol
        and one.first <= other.last
        and other.first <= one.last
        and _addresses_overlap(one.address, other.address)
    )


def parse_host_address(text: str) -> Address:
    """Return an address, of IPv4 also if `text` has the IPv6 form of such an address; ValueError for other texts."""
    address = ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _addresses_overlap(one: Address | None, other: Address | None) -> bool:
    if one is None or other is None:
        return True
    return one.version == other.version and (one == other or one.is_unspecified or other.is_unspecified)
