"""CNI_ARGS, `KEY=VALUE;…`: what a user asks of a network (CNI, "Well-known Capabilities" and host-local)."""

from __future__ import annotations

from minit import jsontext
from minit.errors import NetworkError
from minit.network.ipv4 import parse_address
from minit.value import Value

_TRUTHS = {"1": True, "true": True, "0": False, "false": False}


class Arguments(Value):
    """The request of CNI_ARGS to an address manager: the address to have."""

    address: int | None = None


def parse_arguments(text: str) -> Arguments:
    """
    Return the arguments in `text`.

    NetworkError for what is no `KEY=VALUE`, and for an unknown key without `IgnoreUnknown=1`: a wish that nobody grants
    should be noticed.
    """
    address = None
    ignored = False
    unknown = []
    for pair in text.split(";") if text else ():
        key, equals, value = pair.partition("=")
        if not equals or "=" in value:
            raise _refused(pair, "expected KEY=VALUE")
        if key == "IP":
            address = _address(pair, value)
        elif key == "IgnoreUnknown":
            if value.lower() not in _TRUTHS:
                raise _refused(pair, "expected 1, true, 0 or false")
            ignored = _TRUTHS[value.lower()]
        else:
            unknown.append(pair)
    if unknown and not ignored:
        raise _refused(unknown[0], "unknown; IgnoreUnknown=1 allows it")
    return Arguments(address=address)


def _address(pair: str, value: str) -> int | None:
    # A prefix length is allowed and means nothing: the subnet's own counts.
    if not value:
        return None
    try:
        return parse_address(value.partition("/")[0])
    except ValueError as error:
        raise _refused(pair, "expected an IPv4 address") from error


def _refused(pair: str, reason: str) -> NetworkError:
    return NetworkError(f"CNI_ARGS: {jsontext.quote(pair)}: {reason}")
