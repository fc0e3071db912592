"""The wishes of a user: CNI_ARGS, `KEY=VALUE;…`, and the addresses that other parts of a configuration ask for."""

from __future__ import annotations

from minit.base import jsontext
from minit.base.errors import NetworkError
from minit.base.value import Value
from minit.manifest.reader import Node
from minit.network.addresses import (
    IPAddress,
    IPInterface,
    parse_address,
    parse_hardware_address,
    parse_interface,
)
from minit.network.builtin.call import Call
from minit.network.builtin.settings import mac_address

_TRUTHS = {"1": True, "true": True, "0": False, "false": False}


class Arguments(Value):
    """The request of CNI_ARGS: addresses to have, some with a prefix length, gateways, and a hardware address."""

    addresses: tuple[IPAddress | IPInterface, ...] = ()
    gateways: tuple[IPAddress, ...] = ()
    mac: str | None = None


def requested_addresses(call: Call) -> tuple[IPAddress | IPInterface, ...]:
    """Return what CNI_ARGS, `args.cni.ips` and the capability `ips` ask for (CNI, "Well-known Capabilities")."""
    config = call.config
    asked = [*call.asked["ips"].each(_address_at), *config["runtimeConfig"]["ips"].each(_address_at)]
    return (*parse_arguments(call.request.args).addresses, *asked)


def requested_mac(call: Call) -> str | None:
    """Return the hardware address that CNI_ARGS, `args.cni.mac` or the capability `mac` ask for, the last one first."""
    config = call.config
    asked = mac_address(config["runtimeConfig"]["mac"]) or mac_address(call.asked["mac"])
    return asked or parse_arguments(call.request.args).mac


def parse_arguments(text: str) -> Arguments:
    """
    Return the arguments in `text`.

    NetworkError for what is no `KEY=VALUE`, and for an unknown key without `IgnoreUnknown=1`: a wish that nobody grants
    should be noticed. A key that is for another plugin of a chain is known.
    """
    addresses: tuple[IPAddress | IPInterface, ...] = ()
    gateways: tuple[IPAddress, ...] = ()
    mac = None
    ignored = False
    unknown = []
    for pair in text.split(";") if text else ():
        key, equals, value = pair.partition("=")
        if not equals or "=" in value:
            raise _refused(pair, "expected KEY=VALUE")
        try:
            if key == "IP":
                # Said once for each address, too: --net separates networks by commas.
                addresses += tuple(map(_parse, value.split(",") if value else ()))
            elif key == "GATEWAY":
                gateways += tuple(map(parse_address, value.split(",") if value else ()))
            elif key == "MAC":
                mac = parse_hardware_address(value) if value else None
            elif key == "IgnoreUnknown":
                if value.lower() not in _TRUTHS:
                    raise _refused(pair, "expected 1, true, 0 or false")
                ignored = _TRUTHS[value.lower()]
            else:
                unknown.append(pair)
        except ValueError as error:
            raise _refused(pair, f"expected {'a hardware' if key == 'MAC' else 'an IP'} address") from error
    if unknown and not ignored:
        raise _refused(unknown[0], "unknown; IgnoreUnknown=1 allows it")
    return Arguments(addresses=addresses, gateways=gateways, mac=mac)


def _parse(text: str) -> IPAddress | IPInterface:
    return parse_interface(text) if "/" in text else parse_address(text)


def _address_at(node: Node) -> IPAddress | IPInterface:
    return node.parsed(_parse, "an IP address")


def _refused(pair: str, reason: str) -> NetworkError:
    return NetworkError(f"CNI_ARGS: {jsontext.quote(pair)}: {reason}")
