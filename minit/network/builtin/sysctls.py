"""Parameters of the pod's network in /proc/sys/net, sysctl(8)."""

from __future__ import annotations

import os
import re

from minit import jsontext
from minit.errors import NetworkError, describe
from minit.manifest.reader import Node
from minit.network.builtin.smallfiles import read_file
from minit.value import Value

_ROOT = "/proc/sys"
_SUBTREE = "net"
_INTERFACE = "IFNAME"
_SWAPPED = str.maketrans("./", "/.")


class Sysctl(Value):
    """A parameter and the value to give to it; `key` is how the configuration calls it."""

    key: str
    path: str
    value: str


def read_sysctls(nodes: tuple[Node, ...], interface: str) -> tuple[Sysctl, ...]:
    """
    Return the parameters of objects from keys to values, of which a later one has the last word.

    IFNAME in a key stands for the interface. ManifestError for what is not of the network, or twice the same.
    """
    found: dict[str, Sysctl] = {}
    for node in nodes:
        own: dict[str, Sysctl] = {}
        for key, value in node.string_map():
            path = _path_of(key, interface)
            if path is None:
                raise node.error("parameters of the network, net.…", jsontext.quote(key))
            if path in own:
                raise node.error("each parameter once", f"{jsontext.quote(own[path].key)} and {jsontext.quote(key)}")
            own[path] = Sysctl(key=key, path=path, value=value)
        found |= own
    return tuple(found.values())


def refuse_forbidden(sysctls: tuple[Sysctl, ...], allowlist: str) -> None:
    """Raise NetworkError if there is such a file of regular expressions, and no line of it is found in a key."""
    try:
        lines = read_file(allowlist).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return
    expressions = []
    for line in filter(None, map(str.strip, lines)):
        try:
            expressions.append(re.compile(line))
        except re.error as error:
            raise NetworkError(f"{allowlist}: expected regular expressions, got {jsontext.quote(line)}") from error
    for sysctl in sysctls:
        if not any(expression.search(sysctl.key) for expression in expressions):
            raise NetworkError(f"sysctl {sysctl.key} is not allowed by {allowlist}")


def read_value(sysctl: Sysctl) -> str | None:
    """Return the value in the network namespace of this process, None for one that can only be written."""
    try:
        with open(sysctl.path, encoding="utf-8", errors="replace") as file:
            return file.read().strip("\n")
    except PermissionError:
        return None
    except OSError as error:
        raise NetworkError(f"cannot read sysctl {sysctl.key}: {describe(error)}") from error


def write_value(sysctl: Sysctl, value: str) -> None:
    """Set it in the network namespace of this process; NetworkError if it cannot have the value."""
    try:
        fd = os.open(sysctl.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise NetworkError(f"cannot set sysctl {sysctl.key} to {value}: {describe(error)}") from error


def _path_of(key: str, interface: str) -> str | None:
    """
    Return the file of a key, None if it is not one of the network.

    The first separator decides what separates names: dots, and a slash is a dot in a name, or the other way round.
    """
    first = next((letter for letter in key if letter in "./"), "/")
    path = key if first == "/" else key.translate(_SWAPPED)
    names = path.replace(_INTERFACE, interface, 1).split("/")
    if names[0] != _SUBTREE or len(names) < 2 or any(name in ("", ".", "..") or "\0" in name for name in names):
        return None
    return "/".join((_ROOT, *names))
