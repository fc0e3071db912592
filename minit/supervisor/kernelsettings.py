"""Settings of the kernel for the namespaces of this process: `lo` is brought up, netdevice(7), sysctls are written."""

from __future__ import annotations

import fcntl
import socket
from collections.abc import Iterable

from minit.plan.networks.kernelsettings import Sysctl
from minit.reaper.record import write_file

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFREQ_BYTES = 40


def bring_up_loopback() -> None:
    """Set the loopback interface of this network namespace up."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        request = bytearray(b"lo".ljust(_IFREQ_BYTES, b"\0"))
        fcntl.ioctl(sock.fileno(), _SIOCGIFFLAGS, request)
        flags = int.from_bytes(request[16:18], "little") | _IFF_UP
        request[16:18] = flags.to_bytes(2, "little")
        fcntl.ioctl(sock.fileno(), _SIOCSIFFLAGS, request)
    finally:
        sock.close()


def write_sysctls(settings: Iterable[Sysctl]) -> None:
    """Write settings; OSError names the file of a setting missing in the kernel, or refused by the kernel."""
    for setting in settings:
        write_file(f"/proc/sys/{setting.path}", setting.value.encode("ascii"))
