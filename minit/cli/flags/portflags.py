"""`--port`: ports of the host that lead to apps, by name, or to ports of the pod. Pure."""

from __future__ import annotations

import re

from minit.base.hostname import canonical_address
from minit.cli.flags.scalars import parse_number
from minit.cli.flagwords import FlagError
from minit.manifest.app import MAX_PORT, Port
from minit.manifest.names import is_ac_name
from minit.manifest.pod import ExposedPort

PORT_FORM = "[IP:]PORT:PORT[/udp] or NAME:[IP:]PORT"
DIRECT_PORT_FORM = "NAME:PROTOCOL:PORT:HOSTIP:HOSTPORT"

_PROTOCOLS = ("tcp", "udp")
# As docker and podman have it. What rkt has begins with a name, which number and address are not.
_BY_NUMBER = re.compile(
    r"((?P<address>\[[^\]]*\]|[^:]*\.[^:]*):)?(?P<host>[0-9]+):(?P<pod>[0-9]+)(/(?P<protocol>[^/]*))?"
)


def parse_port(flag: str, text: str) -> ExposedPort:
    """
    Return the port that `NAME:[IP:]PORT` describes, or by number that of the pod that `[IP:]PORT:PORT[/udp]` does.

    The first number is the host's. An IPv6 address stands in brackets. FlagError, naming `flag`.
    """
    by_number = _BY_NUMBER.fullmatch(text)
    if by_number is not None:
        return _port_by_number(f"{flag} {text}", by_number)
    name, separator, rest = text.partition(":")
    if not separator or not is_ac_name(name):
        raise FlagError(f'{flag}: expected {PORT_FORM}, got "{text}"')
    address, separator, port = rest.rpartition(":")
    return ExposedPort(
        name=name,
        host_port=parse_number(f"{flag} {name}", port, 1, MAX_PORT),
        host_ip=_parse_address(f"{flag} {name}", address) if separator else None,
    )


def parse_direct_port(flag: str, text: str) -> ExposedPort:
    """
    Return the port that `NAME:PROTOCOL:PORT:HOSTIP:HOSTPORT` describes, or `[IP:]PORT:PORT[/udp]` as for parse_port.

    An IPv6 address of the first form stands in brackets or not.
    """
    by_number = _BY_NUMBER.fullmatch(text)
    if by_number is not None:
        return _port_by_number(f"{flag} {text}", by_number)
    name, _, rest = text.partition(":")
    protocol, _, rest = rest.partition(":")
    pod_port, _, rest = rest.partition(":")
    address, separator, host_port = rest.rpartition(":")
    if not separator or not is_ac_name(name):
        raise FlagError(f'{flag}: expected {DIRECT_PORT_FORM}, got "{text}"')
    place = f"{flag} {name}"
    if protocol not in _PROTOCOLS:
        raise FlagError(f'{place}: expected the protocol tcp or udp, got "{protocol}"')
    bare = ":" in address and not address.startswith("[")
    return ExposedPort(
        name=name,
        host_port=parse_number(place, host_port, 1, MAX_PORT),
        host_ip=_parse_address(place, f"[{address}]" if bare else address),
        pod_port=Port(name=name, protocol=protocol, port=parse_number(place, pod_port, 1, MAX_PORT)),
    )


def _port_by_number(place: str, match: re.Match[str]) -> ExposedPort:
    protocol = _PROTOCOLS[0] if match["protocol"] is None else match["protocol"]
    if protocol not in _PROTOCOLS:
        raise FlagError(f'{place}: expected the protocol tcp or udp, got "{protocol}"')
    host_port, pod_port = (parse_number(place, match[side], 1, MAX_PORT) for side in ("host", "pod"))
    # A manifest names every port; this one only messages show.
    name = f"{host_port}-{pod_port}-{protocol}"
    return ExposedPort(
        name=name,
        host_port=host_port,
        host_ip=None if match["address"] is None else _parse_address(place, match["address"]),
        pod_port=Port(name=name, protocol=protocol, port=pod_port),
    )


def _parse_address(place: str, text: str) -> str:
    bracketed = text.startswith("[") and text.endswith("]")
    address = canonical_address(text[1:-1] if bracketed else text)
    if address is None or bracketed != (":" in address):
        raise FlagError(f'{place}: expected an IP address, one of IPv6 in brackets, got "{text}"')
    return address
