"""IP addresses on the command line, of either version."""

from __future__ import annotations

import socket


def canonical_address(text: str) -> str | None:
    """Return an IP address in its shortest spelling, None if `text` is none."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_ntop(family, socket.inet_pton(family, text))
        except (OSError, UnicodeError, ValueError):
            continue
    return None
