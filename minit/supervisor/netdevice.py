"""Bringing up `lo` in a new network namespace by ioctl, netdevice(7)."""

from __future__ import annotations

import fcntl
import socket

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFREQ_BYTES = 40


def bring_up_loopback() -> None:
    """Set the loopback interface of this network namespace up."""
    with_name = b"lo".ljust(16, b"\0")
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        request = bytearray(with_name.ljust(_IFREQ_BYTES, b"\0"))
        fcntl.ioctl(sock.fileno(), _SIOCGIFFLAGS, request)
        flags = int.from_bytes(request[16:18], "little") | _IFF_UP
        request[16:18] = flags.to_bytes(2, "little")
        fcntl.ioctl(sock.fileno(), _SIOCSIFFLAGS, request)
    finally:
        sock.close()
