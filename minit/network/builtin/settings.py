"""
The parts of a configuration that several plugins have in common, with the keys of the reference plugins.

Unknown keys are ignored, as by the reference plugins. A wrong value is refused with a line that names file and key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from minit.errors import UnsupportedFieldError
from minit.manifest.reader import Node
from minit.network.addresses import parse_address, parse_destination
from minit.network.result import Dns, Route

T = TypeVar("T")

_MAX_MTU = 65535
_MAX_INTERFACE_NAME = 15


def network_name(config: Node) -> str:
    """Return the name of the network, which names the directory of its leases; ManifestError if it cannot."""
    return config["name"].matching(_is_file_name, "the name of a network")


def ipam_type(config: Node) -> str | None:
    """Return the type of the address manager, None for a network without addresses."""
    ipam = config["ipam"]
    return ipam["type"].matching(_is_file_name, "the name of a plugin") if ipam.raw() else None


def masquerades(config: Node) -> bool:
    """Tell whether the network hides its pods behind the host's address."""
    return truth(config["ipMasq"])


def dns(config: Node) -> Dns:
    """Return what a configuration says about names."""
    node = config["dns"]
    return Dns(
        nameservers=node["nameservers"].each(Node.string),
        domain=node["domain"].optional(Node.string) or "",
        search=node["search"].each(Node.string),
        options=node["options"].each(Node.string),
    )


def routes(ipam: Node) -> tuple[Route, ...]:
    """Return the routes that go with the addresses."""
    return ipam["routes"].each(_route)


def mtu(config: Node) -> int | None:
    """Return the largest size of packets, None if it is left to the kernel."""
    return config["mtu"].optional(lambda node: node.integer(0, _MAX_MTU)) or None


def interface_name(node: Node) -> str | None:
    """Return the name of an interface, None for an absent one."""
    return node.matching(_is_interface_name, "the name of an interface") if node.raw() else None


def valid_attachments(config: Node) -> frozenset[tuple[str, str]]:
    """Return container and interface of each attachment that there still is, which GC must be told."""
    node = config["cni.dev/valid-attachments"]
    if not node.given:
        raise node.error("a list")
    return frozenset(node.each(lambda one: (one["containerID"].string(), one["ifname"].string())))


def truth(node: Node) -> bool:
    """Return true or false, which is the default."""
    return bool(node.optional(Node.boolean))


def read_with(node: Node, parse: Callable[[str], T], expected: str) -> T:
    """Return what `parse` makes of a string; ManifestError if that raises ValueError."""
    try:
        return parse(node.string())
    except ValueError as error:
        raise node.error(expected) from error


def refuse(node: Node, reason: str) -> UnsupportedFieldError:
    """Build the error for a key that is known and not provided."""
    return UnsupportedFieldError(str(node.error(f"nothing here: {reason}")))


def _route(node: Node) -> Route:
    return Route(
        destination=read_with(node["dst"], parse_destination, "a subnet"),
        gateway=node["gw"].optional(lambda gateway: read_with(gateway, parse_address, "an IP address")),
    )


def _is_file_name(text: str) -> bool:
    return text not in ("", ".", "..") and "/" not in text


def _is_interface_name(text: str) -> bool:
    # As the kernel's dev_valid_name().
    return _is_file_name(text) and len(text.encode()) <= _MAX_INTERFACE_NAME and not set(text) & set(": \t\n\v\f\r")
