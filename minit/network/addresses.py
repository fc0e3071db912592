"""
Addresses of both families as the CNI writes them (Go's net.ParseIP and net.ParseCIDR), and domain names of packets.

An IPv4 address written as IPv6 (`::ffff:192.0.2.1`) is read as IPv4. There are no zones.
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

_POINTER = 0xC0
_LONGEST_LABEL_BYTES = 63
_LONGEST_NAME = 253


def parse_address(text: str) -> IPAddress:
    """Return the address in `text`; ValueError for any other text."""
    address = ip_address(text)
    if isinstance(address, IPv4Address):
        return address
    if address.scope_id is not None:
        raise ValueError(f"an address with a zone: {text!r}")
    return address.ipv4_mapped or address


def parse_interface(text: str) -> IPInterface:
    """Return address and prefix length of `ADDRESS/LENGTH`; ValueError for any other text."""
    address, _, length = text.partition("/")
    if not (length.isascii() and length.isdigit()) or (len(length) > 1 and length[0] == "0"):
        raise ValueError(f"not an address with the length of its prefix: {text!r}")
    return ip_interface((parse_address(address), int(length)))


def parse_destination(text: str) -> IPNetwork:
    """Return the network of the address in `ADDRESS/LENGTH`; ValueError for any other text."""
    return parse_interface(text).network


def parse_subnet(text: str) -> IPNetwork:
    """Return the network `ADDRESS/LENGTH`; ValueError for any other text and for bits beyond the prefix."""
    interface = parse_interface(text)
    if interface.ip != interface.network.network_address:
        raise ValueError(f"bits beyond the prefix: {text!r}")
    return interface.network


def only(address: IPAddress) -> IPNetwork:
    """Return the network of a single address."""
    return ip_interface(address).network


def parse_hardware_address(text: str) -> str:
    """Return an Ethernet address, `00:00:5e:00:53:01`, in the kernel's form; ValueError for any other text."""
    if not _HARDWARE_ADDRESS.fullmatch(text):
        raise ValueError(f"not a hardware address: {text!r}")
    return text.lower().replace("-", ":")


def parse_domain_names(data: bytes, *, compressed: bool = False) -> tuple[str, ...]:
    """
    Return the names in an option of DHCP or of a router advertisement (RFC 1035, 3.1; RFC 3397), without final dots.

    If any part is broken, there are no names. A `compressed` name may end with a pointer to an earlier place. Zeros at
    the end are padding.
    """
    names = []
    at = 0
    try:
        while at < len(data):
            labels, at = _read_labels(data, at, compressed)
            name = ".".join(labels)
            if not labels and any(data[at:]):
                return ()
            if len(name) > _LONGEST_NAME:
                return ()
            names += [name] if name else []
    except (IndexError, ValueError):
        return ()
    return tuple(names)


def is_domain_name(text: str) -> bool:
    """Tell whether `text` has only characters that a name in resolv.conf may have."""
    return all(letter.isascii() and (letter.isalnum() or letter in "-._") for letter in text)


def _read_labels(data: bytes, at: int, compressed: bool) -> tuple[list[str], int]:
    """Return the labels of the name at `at`, and where the next name begins."""
    labels: list[str] = []
    after: int | None = None
    begun = at
    while length := data[at]:
        if length & _POINTER == _POINTER and compressed:
            target = (length & ~_POINTER) << 8 | data[at + 1]
            after = at + 2 if after is None else after
            if target >= begun:
                raise ValueError("a pointer that leads not back")
            begun = at = target
            continue
        label = data[at + 1 : at + 1 + length].decode("ascii")
        if length > _LONGEST_LABEL_BYTES or len(label) != length or "." in label or not is_domain_name(label):
            raise ValueError("no label of a name")
        labels.append(label)
        at += 1 + length
    return labels, at + 1 if after is None else after
