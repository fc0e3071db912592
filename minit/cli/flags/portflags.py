"""`--port`: ports of the host that lead to apps, by name, or to ports of the pod. Pure."""

from __future__ import annotations

from minit.cli.flags.scalars import canonical_address, parse_number
from minit.cli.flagwords import FlagError
from minit.manifest.app import MAX_PORT, Port
from minit.manifest.names import is_ac_name
from minit.manifest.pod import ExposedPort

PORT_FORM = "NAME:[IP:]PORT"
DIRECT_PORT_FORM = "NAME:PROTOCOL:PORT:HOSTIP:HOSTPORT"

_PROTOCOLS = ("tcp", "udp")


def parse_port(flag: str, text: str) -> ExposedPort:
    """Return the port that `NAME:[IP:]PORT` describes, an IPv6 address in brackets; FlagError, naming `flag`."""
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
    """Return the port that `NAME:PROTOCOL:PORT:HOSTIP:HOSTPORT` describes, an IPv6 address in brackets or not."""
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


def _parse_address(place: str, text: str) -> str:
    bracketed = text.startswith("[") and text.endswith("]")
    address = canonical_address(text[1:-1] if bracketed else text)
    if address is None or bracketed != (":" in address):
        raise FlagError(f'{place}: expected an IP address, one of IPv6 in brackets, got "{text}"')
    return address
