"""Reading resolv.conf(5) of the host, for networks whose pods are to resolve names as it does."""

from __future__ import annotations

import os
import stat

from minit.base.errors import NetworkError, describe
from minit.network.protocol.result import Dns

_MAX_BYTES = 1 << 16


def read_resolv_conf(path: str) -> Dns:
    """Return what the file at `path` says; NetworkError if it cannot be read."""
    try:
        text = _read(path)
    except OSError as error:
        raise NetworkError(f"resolvConf: {describe(error)}") from error
    return parse_resolv_conf(text)


def parse_resolv_conf(text: str) -> Dns:
    """Return what a resolv.conf says: all name servers, search domains and options, and the last domain."""
    found: dict[str, list[str]] = {"nameserver": [], "domain": [], "search": [], "options": []}
    for line in text.splitlines():
        keyword, *values = line.split() or [""]
        # A comment's first word is none of these.
        if values and keyword in found:
            found[keyword] += values if keyword in ("search", "options") else values[:1]
    return Dns(
        nameservers=tuple(found["nameserver"]),
        domain=found["domain"][-1] if found["domain"] else "",
        search=tuple(found["search"]),
        options=tuple(found["options"]),
    )


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NetworkError(f"resolvConf: {path} is not a regular file")
        return os.read(fd, _MAX_BYTES).decode(errors="replace")
    finally:
        os.close(fd)
