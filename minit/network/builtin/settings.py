"""
The parts of a configuration that several plugins have in common, with the keys of the reference plugins.

Unknown keys are ignored, as by the reference plugins. A wrong value is refused with a line that names file and key.
"""

from __future__ import annotations

from minit.base.errors import UnsupportedFieldError
from minit.base.value import Value
from minit.manifest.reader import Node
from minit.network.addresses import parse_hardware_address
from minit.network.protocol.result import Dns, Route, read_dns, read_route

VALID_ATTACHMENTS = "cni.dev/valid-attachments"

_MAX_MTU = 65535
_MAX_INTERFACE_NAME = 15


def network_name(config: Node) -> str:
    """Return the name of the network, which names the directory of its leases; ManifestError if it cannot."""
    return config["name"].matching(_is_file_name, "the name of a network")


def ipam_type(config: Node) -> str | None:
    """Return the type of the address manager, None for a network without addresses."""
    ipam = config["ipam"]
    return ipam["type"].matching(_is_file_name, "the name of a plugin") if ipam.raw() else None


class Protection(Value):
    """
    The part of the packet filter in a pod's network.

    It hides the pod behind the host's address, `ipMasq`. It keeps the pod to its addresses, as it does unless
    `spoofCheck` is off, or at least to its hardware address, `macspoofchk`. It keeps the pod to its own subnet,
    `restricted`.
    """

    masquerades: bool
    checks_senders: bool
    checks_macs: bool
    restricts: bool

    @property
    def is_needed(self) -> bool:
        """Tell whether there is anything to do for it."""
        return self.masquerades or self.checks_senders or self.checks_macs or self.restricts


def protection(config: Node) -> Protection:
    """Return what a configuration says about the packet filter."""
    return Protection(
        masquerades=truth(config["ipMasq"]),
        checks_senders=config["spoofCheck"].optional(Node.boolean) is not False,
        checks_macs=truth(config["macspoofchk"]),
        restricts=truth(config["restricted"]),
    )


def accepts_routers(config: Node) -> bool:
    """Tell whether a pod follows router advertisements of the network, `acceptRa`."""
    return truth(config["acceptRa"])


def dns(config: Node) -> Dns:
    """Return what a configuration says about names."""
    return read_dns(config["dns"])


def routes(ipam: Node) -> tuple[Route, ...]:
    """Return the routes that go with the addresses."""
    return ipam["routes"].each(read_route)


def mtu(config: Node) -> int | None:
    """Return the largest size of packets, None if it is left to the kernel."""
    return config["mtu"].optional(lambda node: node.integer(0, _MAX_MTU)) or None


def file_name(node: Node, expected: str) -> str:
    """Return a string that can name a file."""
    return node.matching(_is_file_name, expected)


def interface_name(node: Node) -> str | None:
    """Return the name of an interface, None for an absent one."""
    return node.matching(_is_interface_name, "the name of an interface") if node.raw() else None


def valid_attachments(config: Node) -> frozenset[tuple[str, str]]:
    """Return container and interface of each attachment that there still is, which GC must be told."""
    node = config[VALID_ATTACHMENTS]
    if not node.given:
        raise node.error("a list")
    return frozenset(node.each(lambda one: (one["containerID"].string(), one["ifname"].string())))


def mac_address(node: Node) -> str | None:
    """Return a hardware address, None for an absent one."""
    return node.parsed(parse_hardware_address, "a hardware address") if node.raw() else None


def truth(node: Node) -> bool:
    """Return true or false, which is the default."""
    return bool(node.optional(Node.boolean))


def refuse(node: Node, reason: str) -> UnsupportedFieldError:
    """Build the error for a key that is known and not provided."""
    return UnsupportedFieldError(str(node.error(f"nothing here: {reason}")))


def _is_file_name(text: str) -> bool:
    return text not in ("", ".", "..") and "/" not in text


def _is_interface_name(text: str) -> bool:
    # As the kernel's dev_valid_name(), but for %, of which it makes a number: a link would have another name.
    return _is_file_name(text) and len(text.encode()) <= _MAX_INTERFACE_NAME and not set(text) & set("%: \t\n\v\f\r")
