"""
The host's routes, and the end of a bridge, without netlink: for the command, whose dump has no pyroute2.

Sources: proc_net_route(5) of the kernel's net/ipv4/fib_trie.c, net/ipv6/route.c, and netdevice(7).
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from ipaddress import IPv4Address, IPv4Network, IPv6Network

_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914
_DELETE_BRIDGE = 0x89A1
_IS_UP = 1
_NAME_BYTES = 15


def route_destinations() -> list[IPv4Network | IPv6Network]:
    """Return the destinations of the main table's routes, of both families, but for default routes."""
    found: list[IPv4Network | IPv6Network] = []
    with open("/proc/net/route", encoding="ascii") as file:
        for line in file.readlines()[1:]:
            fields = line.split()
            address, mask = (IPv4Address(struct.pack("=I", int(fields[number], 16))) for number in (1, 7))
            found.append(IPv4Network(f"{address}/{mask}", strict=False))
    try:
        with open("/proc/net/ipv6_route", encoding="ascii") as file:
            for line in file:
                destination, length = line.split()[:2]
                found.append(IPv6Network((bytes.fromhex(destination), int(length, 16)), strict=False))
    except FileNotFoundError:
        pass  # a kernel without IPv6
    return [network for network in found if network.prefixlen]


def delete_bridge(name: str) -> None:
    """Remove a bridge; nothing is removed if no link, or a link of another kind, has the name."""
    request = struct.pack("16sh", name.encode()[:_NAME_BYTES], 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as link:
        try:
            _, flags = struct.unpack("16sh", fcntl.ioctl(link, _GET_FLAGS, request))
            try:
                fcntl.ioctl(link, _DELETE_BRIDGE, request[:16])
            except OSError as error:
                # The kernel looks at the kind before: this one is a bridge, and up.
                if error.errno != errno.EBUSY:
                    raise
                fcntl.ioctl(link, _SET_FLAGS, struct.pack("16sh", name.encode(), flags & ~_IS_UP))
                fcntl.ioctl(link, _DELETE_BRIDGE, request[:16])
        except OSError as error:
            if error.errno not in (errno.ENODEV, errno.ENXIO, errno.EPERM):
                raise
