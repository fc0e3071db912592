"""
Addresses of both families as the CNI writes them: what Go's net.ParseIP and net.ParseCIDR read.

Of an address that is IPv4 written as IPv6 (`::ffff:192.0.2.1`) the IPv4 address counts. There are no zones.
"""

from __future__ import annotations

import re
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
)

IPAddress = IPv4Address | IPv6Address
IPInterface = IPv4Interface | IPv6Interface
"""An address with the length of its prefix."""
IPNetwork = IPv4Network | IPv6Network

_HARDWARE_ADDRESS = re.compile(r"[0-9A-Fa-f]{2}([:-])[0-9A-Fa-f]{2}(\1[0-9A-Fa-f]{2}){4}")

EVERYWHERE: dict[int, IPNetwork] = {4: IPv4Network("0.0.0.0/0"), 6: IPv6Network("::/0")}
"""The destination of the default route, by the version of IP."""


def parse_address(text: str) -> IPAddress:
    """Return the address that `text` is; ValueError if it is none."""
    address = ip_address(text)
    if isinstance(address, IPv4Address):
        return address
    if address.scope_id is not None:
        raise ValueError(f"an address with a zone: {text!r}")
    return address.ipv4_mapped or address


def parse_interface(text: str) -> IPInterface:
    """Return the address and the length of its prefix in `ADDRESS/LENGTH`; ValueError if it is no such text."""
    address, _, length = text.partition("/")
    if not (length.isascii() and length.isdigit()) or (len(length) > 1 and length[0] == "0"):
        raise ValueError(f"not an address with the length of its prefix: {text!r}")
    return ip_interface((parse_address(address), int(length)))


def parse_destination(text: str) -> IPNetwork:
    """Return the network that the address in `ADDRESS/LENGTH` is in; ValueError if it is no such text."""
    return parse_interface(text).network


def parse_subnet(text: str) -> IPNetwork:
    """Return the network `ADDRESS/LENGTH`; ValueError if it is no such text or has bits beyond the prefix."""
    interface = parse_interface(text)
    if interface.ip != interface.network.network_address:
        raise ValueError(f"bits beyond the prefix: {text!r}")
    return interface.network


def only(address: IPAddress) -> IPNetwork:
    """Return the network of one address."""
    return ip_interface(address).network


def parse_hardware_address(text: str) -> str:
    """Return the address of an Ethernet link, `00:00:5e:00:53:01`, in the kernel's form; ValueError if it is none."""
    if not _HARDWARE_ADDRESS.fullmatch(text):
        raise ValueError(f"not a hardware address: {text!r}")
    return text.lower().replace("-", ":")
