"""Host names of a pod or a machine, by hostname(7) with underscores, and IP addresses of either version. Pure."""

from __future__ import annotations

import socket

_MAXIMUM_BYTES = 64  # of sethostname(2)
_LONGEST_DOMAIN_NAME = 253
_INSIDE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def find_fault(name: str) -> str | None:
    """Return the fault of a host name, as the rest of a sentence about the name; None for a valid name."""
    if len(name.encode(errors="surrogateescape")) > _MAXIMUM_BYTES:
        return f"is longer than {_MAXIMUM_BYTES} bytes"
    if _has_labels(name):
        return None
    return "is no host name: expected letters, digits, underscores and inner hyphens, and dots between them"


def default_name(uuid: str) -> str:
    """Return the host name of a pod without a given name."""
    return f"rkt-{uuid}"


def is_domain_name(text: str) -> bool:
    """Tell whether DNS may know a host of this name; a name with a number at its end is an address (RFC 3696, 2)."""
    return len(text) <= _LONGEST_DOMAIN_NAME and _has_labels(text) and not text.rpartition(".")[2].isdigit()


def canonical_address(text: str) -> str | None:
    """Return an IP address in its shortest spelling, None if `text` is none."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_ntop(family, socket.inet_pton(family, text))
        except (OSError, UnicodeError, ValueError):
            continue
    return None


def _has_labels(name: str) -> bool:
    return all(part and _INSIDE.issuperset(part) and "-" not in (part[0], part[-1]) for part in name.split("."))
