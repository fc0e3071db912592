"""
The plugin host-local: an address out of each set of ranges, leased in files of the host.

The files are those of the reference plugin, so that both can share a directory. In the directory of a network each
leased address is a file with the container's id and the interface. `last_reserved_ip.N` has the last leased address of
set N, and `lock` is locked by flock(2) during every change.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from ipaddress import ip_interface
from typing import TypeVar

from minit.base.errors import ManifestError, NetworkError, describe
from minit.base.value import Value, replace
from minit.manifest.reader import Node
from minit.network.addresses import IPAddress, IPInterface, IPNetwork, parse_address, parse_subnet
from minit.network.builtin.call import Call, network_name, requested_addresses, routes, valid_attachments
from minit.network.podnames import read_resolv_conf
from minit.network.protocol import Address, Dns, Request, Result
from minit.podfiles.usersdirectory import network_leases

T = TypeVar("T")


_LOCK = "lock"
_LAST = "last_reserved_ip."
_NEW = ".new"
_LINE_END = "\r\n"
_MAX_BYTES = 4096  # a lease has about 50
_DIRECTORY_MODE = 0o755
_FILE_MODE = 0o600
_SMALLEST_HOST_BITS = 2


def add(call: Call) -> Result:
    """Lease the addresses; NetworkError, with none leased, on a failure."""
    config = call.config
    sets = read_range_sets(config)
    resolv_conf = config["ipam"]["resolvConf"].optional(Node.string)
    result = Result(routes=routes(config["ipam"]), dns=read_resolv_conf(resolv_conf) if resolv_conf else Dns())
    leases = reserve(_directory(config), network_name(config), sets, call.request, _wanted(call))
    addresses = tuple(
        Address(address=lease.range.with_prefix(lease.address), gateway=lease.range.gateway) for lease in leases
    )
    return replace(result, addresses=addresses)


def delete(call: Call) -> None:
    """Give back all addresses of the interface."""
    release(_directory(call.config), call.request)


def check(call: Call) -> None:
    """Raise NetworkError if the interface has no address of the network."""
    if not _holds_lease(_directory(call.config), call.request):
        raise NetworkError(f'{call.request.interface} has no lease in network "{network_name(call.config)}"')


def collect(call: Call) -> None:
    """Give back the addresses of all vanished interfaces."""
    release_all_but(_directory(call.config), valid_attachments(call.config))


def status(call: Call) -> None:
    """Raise NetworkError if a set of ranges has no address left."""
    _refuse_exhausted(_directory(call.config), network_name(call.config), read_range_sets(call.config))


def _directory(config: Node) -> str:
    parent = config["ipam"]["dataDir"].optional(Node.string) or network_leases()
    return f"{parent.rstrip('/')}/{network_name(config)}"


def _wanted(call: Call) -> list[IPAddress]:
    # The prefix length of a request has no meaning here: the range's length counts.
    return [parse_address(str(address).partition("/")[0]) for address in requested_addresses(call)]


class Lease(Value):
    """An address of a range of the network."""

    address: IPAddress
    range: Range


def reserve(
    directory: str, network: str, sets: Sequence[RangeSet], request: Request, wanted: Collection[IPAddress]
) -> list[Lease]:
    """
    Lease an address of each set: the wanted address, or else the address after the last leased one.

    When this returns, all leases are on the disk, or none. NetworkError if an address is taken or in no range, if no
    address is left, or if the container has a lease for this interface already.
    """
    try:
        os.makedirs(directory, _DIRECTORY_MODE, exist_ok=True)
    except OSError as error:
        raise NetworkError(f"leases: {describe(error)}") from error
    leases = _locked(directory, lambda fd: _reserve(fd, network, sets, request, wanted))
    if leases is None:
        raise NetworkError(f"leases: {directory} was removed meanwhile")
    return leases


def release(directory: str, request: Request) -> None:
    """Give back all leases of the container for this interface."""
    _locked(directory, lambda fd: _release(fd, request))


def release_all_but(directory: str, valid: Collection[tuple[str, str]]) -> None:
    """Give back all leases but those of these containers and interfaces."""
    _locked(directory, lambda fd: _release_all_but(fd, valid))


def _refuse_exhausted(directory: str, network: str, sets: Sequence[RangeSet]) -> None:
    """Raise NetworkError if there is a set with no address left."""
    _locked(directory, lambda fd: [_next_free(fd, network, one) for one in sets])


def _holds_lease(directory: str, request: Request) -> bool:
    """Tell whether the container has a lease for this interface."""
    return bool(_locked(directory, lambda fd: _leases_of(fd, request)))


def _locked(directory: str, function: Callable[[int], T]) -> T | None:
    """Call `function` with a descriptor of the locked directory and return its result; None without the directory."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NetworkError(f"leases: {describe(error)}") from error
    try:
        lock = os.open(_LOCK, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE, dir_fd=fd)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return function(fd)
        finally:
            os.close(lock)
    except OSError as error:
        raise NetworkError(f"leases in {directory}: {describe(error)}") from error
    finally:
        os.close(fd)


def _reserve(
    directory: int, network: str, sets: Sequence[RangeSet], request: Request, wanted: Collection[IPAddress]
) -> list[Lease]:
    _remove_leftover(directory)
    held = _leases_of(directory, request)
    if held:
        raise NetworkError(f'{request.interface} has the address {held[0]} in network "{network}" already')
    for address in wanted:
        if not any(one.range_of(address) for one in sets):
            raise NetworkError(
                f'requested address {address} is not one of network "{network}": {"; ".join(map(str, sets))}'
            )
    leases: list[Lease] = []
    try:
        for one in sets:
            mine = next((address for address in wanted if one.range_of(address)), None)
            found = _next_free(directory, network, one) if mine is None else _take(directory, network, one, mine)
            _write(directory, f"{_LAST}{one.index}", str(found.address))
            _write(directory, str(found.address), f"{request.container_id}{_LINE_END}{request.interface}")
            leases.append(found)
    except BaseException:
        for lease in leases:
            os.unlink(str(lease.address), dir_fd=directory)
        raise
    return leases


def _take(directory: int, network: str, ranges: RangeSet, wanted: IPAddress) -> Lease:
    found = ranges.range_of(wanted)
    assert found is not None
    if wanted == found.gateway:
        raise NetworkError(f'requested address {wanted} is the gateway of network "{network}"')
    if not found.may_lease(wanted):
        raise NetworkError(f'requested address {wanted} is not one of network "{network}": {ranges}')
    holder = _read(directory, str(wanted)).split()
    if holder:
        raise NetworkError(
            f'requested IP address "{wanted}" is not available in network: {network}: it is leased to {holder[0]}'
        )
    return Lease(address=wanted, range=found)


def _next_free(directory: int, network: str, ranges: RangeSet) -> Lease:
    taken = set(os.listdir(directory))
    for one, address in ranges.after(_last_reserved(directory, ranges.index)):
        # Under the lock an empty file is the remains of a killed plugin.
        if str(address) not in taken or not _read(directory, str(address)):
            return Lease(address=address, range=one)
    raise NetworkError(f'no IP addresses available in network "{network}": {ranges}')


def _last_reserved(directory: int, index: int) -> IPAddress | None:
    try:
        return parse_address(_read(directory, f"{_LAST}{index}"))
    except ValueError:
        return None


def _release(directory: int, request: Request) -> None:
    _remove_leftover(directory)
    for name in _leases_of(directory, request):
        os.unlink(name, dir_fd=directory)


def _release_all_but(directory: int, valid: Collection[tuple[str, str]]) -> None:
    _remove_leftover(directory)
    containers = {container for container, _ in valid}
    for name in os.listdir(directory):
        if not _is_address(name):
            continue
        container, has_interface, interface = _read(directory, name).partition(_LINE_END)
        is_valid = (container, interface) in valid if has_interface else container in containers
        if not is_valid:
            os.unlink(name, dir_fd=directory)


def _is_address(name: str) -> bool:
    try:
        parse_address(name)
    except ValueError:
        return False
    return True


def _remove_leftover(directory: int) -> None:
    """Remove the remains of a killed writer; nobody else can be writing under the lock."""
    try:
        os.unlink(_NEW, dir_fd=directory)
    except FileNotFoundError:
        pass


def _leases_of(directory: int, request: Request) -> list[str]:
    """Return the files of a container's interface; files of old plugins name only the container."""
    names = [name for name in os.listdir(directory) if name not in (_LOCK, _NEW) and not name.startswith(_LAST)]
    contents = {name: _read(directory, name) for name in names}
    for content in (f"{request.container_id}{_LINE_END}{request.interface}", request.container_id):
        found = sorted(name for name in contents if contents[name] == content)
        if found:
            return found
    return []


def _read(directory: int, name: str) -> str:
    """Return the content of a file, empty for a file of another program."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    except FileNotFoundError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return os.read(fd, _MAX_BYTES).decode(errors="replace").strip()
    finally:
        os.close(fd)


def _write(directory: int, name: str, text: str) -> None:
    """Write a file that is never seen without its content, not even after a kill."""
    fd = os.open(_NEW, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE, dir_fd=directory)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
    os.rename(_NEW, name, src_dir_fd=directory, dst_dir_fd=directory)


class Range(Value):
    """Addresses from `first` to `last`, but for the addresses of gateway, subnet and, for IPv4, broadcast."""

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
        """Tell whether an address may be leased."""
        useless = [self.gateway, self.subnet.network_address]
        if self.subnet.version == 4:
            useless.append(self.subnet.broadcast_address)
        return address in self and address not in useless


class RangeSet(Value):
    """Ranges of a single family, of which each interface gets an address; `index` is the set's place in the list."""

    index: int
    ranges: tuple[Range, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.ranges))

    def range_of(self, address: IPAddress) -> Range | None:
        """Return the range of an address, None if there is none."""
        return next((one for one in self.ranges if address in one), None)

    def after(self, last: IPAddress | None) -> Iterator[tuple[Range, IPAddress]]:
        """Yield each address for leasing once, beginning behind the last leased address."""
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
    Return the sets of ranges: of the capability `ipRanges`, the address manager's own range, and its `ranges` (CNI
    plugins, host-local).

    ManifestError for a set without a range or of two families, and for overlapping ranges.
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
