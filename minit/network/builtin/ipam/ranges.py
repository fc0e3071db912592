"""The ranges of addresses that host-local leases from, as its configuration has them (CNI plugins, host-local)."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_interface

from minit.base.errors import ManifestError
from minit.base.value import Value
from minit.manifest.reader import Node
from minit.network.addresses import IPAddress, IPInterface, IPNetwork, parse_address, parse_subnet

_SMALLEST_HOST_BITS = 2


class Range(Value):
    """Addresses from `first` to `last`, but for those of the gateway, the subnet and, of IPv4, the broadcast."""

    subnet: IPNetwork
    first: IPAddress
    last: IPAddress
    gateway: IPAddress

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def __contains__(self, address: IPAddress) -> bool:
        return address.version == self.first.version and int(self.first) <= int(address) <= int(self.last)

    def with_prefix(self, address: IPAddress) -> IPInterface:
        """Return an address with the length of the subnet's prefix."""
        return ip_interface((address, self.subnet.prefixlen))

    def may_lease(self, address: IPAddress) -> bool:
        """Tell whether an address is one to give away."""
        useless = [self.gateway, self.subnet.network_address]
        if self.subnet.version == 4:
            useless.append(self.subnet.broadcast_address)
        return address in self and address not in useless


class RangeSet(Value):
    """Ranges of one family, of which each interface gets one address; `index` is the set's place in the list."""

    index: int
    ranges: tuple[Range, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.ranges))

    def range_of(self, address: IPAddress) -> Range | None:
        """Return the range that has an address, None if none does."""
        return next((one for one in self.ranges if address in one), None)

    def after(self, last: IPAddress | None) -> Iterator[tuple[Range, IPAddress]]:
        """Yield each address that may be leased once, beginning behind the last one leased."""
        at = next((place for place, one in enumerate(self.ranges) if last is not None and last in one), None)
        if at is None or last is None:
            for one in self.ranges:
                yield from _between(one, one.first, one.last)
            return
        current = self.ranges[at]
        yield from _between(current, last + 1, current.last)
        for one in (*self.ranges[at + 1 :], *self.ranges[:at]):
            yield from _between(one, one.first, one.last)
        yield from _between(current, current.first, last)


def read_range_sets(config: Node) -> tuple[RangeSet, ...]:
    """
    Return the sets of ranges: those of the capability `ipRanges`, the address manager's own range, and its `ranges`.

    ManifestError for a set without a range or of two families, and for addresses that stand in two ranges.
    """
    ipam = config["ipam"]
    sets = [
        *config["runtimeConfig"]["ipRanges"].each(_read_set),
        *([(ipam, (_read_range(ipam),))] if ipam["subnet"].raw() else []),
        *ipam["ranges"].each(_read_set),
    ]
    if not sets:
        raise ipam["ranges"].error("at least one range")
    _refuse_overlaps(sets)
    return tuple(RangeSet(index=index, ranges=ranges) for index, (_, ranges) in enumerate(sets))


def _read_set(node: Node) -> tuple[Node, tuple[Range, ...]]:
    ranges = node.each(_read_range)
    if not ranges:
        raise node.error("at least one range")
    if len({one.subnet.version for one in ranges}) > 1:
        raise node.error("ranges of one family")
    return node, ranges


def _read_range(node: Node) -> Range:
    subnet = node["subnet"].parsed(parse_subnet, "a subnet")
    longest = subnet.max_prefixlen - _SMALLEST_HOST_BITS
    if subnet.prefixlen > longest:
        raise node["subnet"].error(f"a prefix of at most {longest}")
    # The gateway may be elsewhere, as for the reference plugin.
    gateway = node["gateway"].optional(lambda one: one.parsed(parse_address, "an IP address"))
    end = subnet.broadcast_address - 1 if subnet.version == 4 else subnet.broadcast_address
    first = _in_subnet(node["rangeStart"], subnet) or subnet.network_address + 1
    last = _in_subnet(node["rangeEnd"], subnet) or end
    if int(last) < int(first):
        raise node["rangeEnd"].error("an address not before rangeStart")
    return Range(subnet=subnet, first=first, last=last, gateway=gateway or subnet.network_address + 1)


def _in_subnet(node: Node, subnet: IPNetwork) -> IPAddress | None:
    if not node.raw():
        return None
    address = node.parsed(parse_address, "an IP address")
    if address not in subnet:
        raise node.error(f"an address in {subnet}")
    return address


def _refuse_overlaps(sets: list[tuple[Node, tuple[Range, ...]]]) -> None:
    seen: list[Range] = []
    for node, ranges in sets:
        for one in ranges:
            for other in seen:
                if one.first in other or other.first in one:
                    raise _overlap(node, one, other)
            seen.append(one)


def _overlap(node: Node, one: Range, other: Range) -> ManifestError:
    return node.error("each address in one range", f"{one} and {other}")


def _between(one: Range, first: IPAddress, last: IPAddress) -> Iterator[tuple[Range, IPAddress]]:
    for number in range(int(first), int(last) + 1):
        address = type(one.first)(number)
        if one.may_lease(address):
            yield one, address
