"""`--port`: ports of the host that lead to apps. Pure."""

from __future__ import annotations

from minit.cli.addresses import canonical_address
from minit.cli.flagwords import FlagError
from minit.cli.numberflags import parse_number
from minit.manifest.app import MAX_PORT
from minit.manifest.names import is_ac_name
from minit.manifest.pod import ExposedPort

PORT_FORM = "NAME:[IP:]PORT"


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


def _parse_address(place: str, text: str) -> str:
    bracketed = text.startswith("[") and text.endswith("]")
    address = canonical_address(text[1:-1] if bracketed else text)
    if address is None or bracketed != (":" in address):
        raise FlagError(f'{place}: expected an IP address, one of IPv6 in brackets, got "{text}"')
    return address
