"""The plugin host-local: an address out of each set of ranges, leased in files of the host."""

from __future__ import annotations

from minit.errors import NetworkError
from minit.manifest.reader import Node
from minit.network.addresses import IPAddress, parse_address
from minit.network.builtin.arguments import requested_addresses
from minit.network.builtin.call import Call
from minit.network.builtin.ipam.leases import holds_lease, refuse_exhausted, release, release_all_but, reserve
from minit.network.builtin.ipam.ranges import read_range_sets
from minit.network.builtin.ipam.resolvconf import read_resolv_conf
from minit.network.builtin.settings import network_name, routes, valid_attachments
from minit.network.protocol.result import Address, Dns, Result
from minit.value import replace

_DEFAULT_DIRECTORY = "/var/lib/cni/networks"


def add(call: Call) -> Result:
    """Lease the addresses; NetworkError, with none leased, if one of them cannot be had."""
    config = call.config
    sets = read_range_sets(config)
    resolv_conf = config["ipam"]["resolvConf"].optional(Node.string)
    result = Result(
        routes=routes(config["ipam"]),
        dns=read_resolv_conf(resolv_conf) if resolv_conf else Dns(),
    )
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
    if not holds_lease(_directory(call.config), call.request):
        raise NetworkError(f'{call.request.interface} has no lease in network "{network_name(call.config)}"')


def collect(call: Call) -> None:
    """Give back the addresses of all interfaces that are no more."""
    release_all_but(_directory(call.config), valid_attachments(call.config))


def status(call: Call) -> None:
    """Raise NetworkError if a set of ranges has no address left."""
    refuse_exhausted(_directory(call.config), network_name(call.config), read_range_sets(call.config))


def _directory(config: Node) -> str:
    parent = config["ipam"]["dataDir"].optional(Node.string) or _DEFAULT_DIRECTORY
    return f"{parent.rstrip('/')}/{network_name(config)}"


def _wanted(call: Call) -> list[IPAddress]:
    # The length of a prefix means nothing here: that of the range counts.
    return [parse_address(str(address).partition("/")[0]) for address in requested_addresses(call)]
