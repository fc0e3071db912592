"""The plugin static: the addresses of a configuration or a request, without any record of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from minit.base.errors import NetworkError
from minit.base.value import replace
from minit.manifest.networkconfig import CNI_VERSIONS, is_at_least
from minit.manifest.reader import Node
from minit.network.addresses import IPInterface, parse_address, parse_interface
from minit.network.builtin.call import Arguments, Call, dns, parse_arguments, routes
from minit.network.protocol import Address, Result

_LISTS_SINCE = "0.3.0"
_WITH_PREFIX = "an IP address with the length of its prefix"


def add(call: Call) -> Result:
    """Return the addresses with routes and name servers; nothing is kept."""
    ipam = call.config["ipam"]
    return Result(addresses=_read_addresses(call), routes=routes(ipam), dns=dns(ipam))


def delete(_: Call) -> None:
    """Do nothing: no owner of an address is recorded."""


def check(call: Call) -> None:
    """Raise NetworkError if the result lacks an address, or has another gateway for the address."""
    wanted, previous = _read_addresses(call), call.need_result_of_add()
    present = {address.address.ip: address for address in previous.addresses}
    for address in wanted:
        found = present.get(address.address.ip)
        if found is None:
            raise NetworkError(f"the result does not have the address {address.address}")
        if address.gateway is not None and address.gateway != found.gateway:
            raise NetworkError(f"the result has {address.address} with the gateway {found.gateway}")


def _read_addresses(call: Call) -> tuple[Address, ...]:
    """
    Return the addresses to have.

    Addresses of the capability `ips` replace all others, and addresses of `args` all but those. Addresses of CNI_ARGS
    come after the configuration's own; a gateway there belongs to each such address in the gateway's subnet.
    """
    config = call.config
    if not config["ipam"].raw():
        raise config["ipam"].error("an object with addresses")
    addresses = (*config["ipam"]["addresses"].each(_read_configured), *_asked(parse_arguments(call.request.args)))
    for asked in (call.asked["ips"], config["runtimeConfig"]["ips"]):
        addresses = asked.each(lambda node: Address(address=_read_interface(node))) or addresses
    version = config["cniVersion"].optional(Node.string) or CNI_VERSIONS[0]
    counts = Counter(address.address.version for address in addresses)
    if any(count > 1 for count in counts.values()) and not is_at_least(version, _LISTS_SINCE):
        raise config["cniVersion"].error(f"{_LISTS_SINCE} or newer for two addresses of a family")
    return addresses


def _read_configured(node: Node) -> Address:
    gateway = node["gateway"]
    return Address(
        address=_read_interface(node["address"]),
        gateway=gateway.parsed(parse_address, "an IP address") if gateway.raw() else None,
    )


def _read_interface(node: Node) -> IPInterface:
    return node.parsed(parse_interface, _WITH_PREFIX)


def _asked(arguments: Arguments) -> Iterator[Address]:
    for asked in arguments.addresses:
        if not isinstance(asked, IPInterface):
            raise NetworkError(f'CNI_ARGS: IP: expected {_WITH_PREFIX}, got "{asked}"')
        address = Address(address=asked)
        for gateway in arguments.gateways:
            if gateway in asked.network:
                address = replace(address, gateway=gateway)
        yield address
