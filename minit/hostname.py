"""Valid host names of a pod or a machine: those of hostname(7), with underscores. Pure."""

from __future__ import annotations

_MAXIMUM_BYTES = 64  # of sethostname(2)
_INSIDE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def find_fault(name: str) -> str | None:
    """Return what is wrong with a host name, for after it; None if nothing is."""
    if len(name.encode(errors="surrogateescape")) > _MAXIMUM_BYTES:
        return f"is longer than {_MAXIMUM_BYTES} bytes"
    if all(part and _INSIDE.issuperset(part) and "-" not in (part[0], part[-1]) for part in name.split(".")):
        return None
    return "is no host name: expected letters, digits, underscores and inner hyphens, and dots between them"
