"""Open sockets for the start of an app: made in the pod's network, and handed over."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Sequence

from minit.base.errors import LaunchError, describe
from minit.plan.life.sockets import TCP, ListenSocket

_FIRST = 3  # SD_LISTEN_FDS_START
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def open_sockets(app: str, wanted: Sequence[ListenSocket], inherited: Sequence[int | None]) -> tuple[int, ...]:
    """
    Return the app's sockets in the order of its ports: inherited sockets, and new ones for the rest.

    New ones are bound to all addresses of this network namespace, in the host's to the address of the port.
    LaunchError, and no socket left, after a failure.
    """
    opened: list[int] = []
    sockets = []
    try:
        for socket, fd in zip(wanted, inherited):
            if fd is None:
                fd = _open(app, socket)
                opened.append(fd)
            sockets.append(fd)
    except LaunchError:
        for fd in opened:
            os.close(fd)
        raise
    return tuple(sockets)


def place_sockets(sockets: Sequence[int], others: Sequence[int]) -> list[int]:
    """
    Move an app's sockets to the descriptors from 3 on, where the sockets survive execve(2), and return the new numbers
    of `others`.

    `others` are close-on-exec, and may have been in the way.
    """
    beyond = _FIRST + len(sockets)
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, beyond) for fd in (*others, *sockets)]
    for index, fd in enumerate(moved[len(others) :]):
        os.dup2(fd, _FIRST + index)
    return moved[: len(others)]


def socket_environment(sockets: Sequence[ListenSocket]) -> dict[str, str]:
    """Return the variables by which the app, this process, knows the sockets, sd_listen_fds(3)."""
    return {
        "LISTEN_FDS": str(len(sockets)),
        "LISTEN_PID": str(os.getpid()),
        "LISTEN_FDNAMES": ":".join(socket.name for socket in sockets),
    }


def _open(app: str, wanted: ListenSocket) -> int:
    try:
        if wanted.is_at_address and wanted.address is not None:
            family = socket.AF_INET6 if ":" in wanted.address else socket.AF_INET
            return _listen(wanted, family, wanted.address, only_ipv6=True)
        try:
            return _listen(wanted, socket.AF_INET6, "::")
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
        return _listen(wanted, socket.AF_INET, "0.0.0.0")
    except OSError as error:
        raise LaunchError(f'app "{app}": cannot listen on {wanted.describe()}: {describe(error)}') from error


def _listen(wanted: ListenSocket, family: int, address: str, *, only_ipv6: bool = False) -> int:
    kind = socket.SOCK_STREAM if wanted.protocol == TCP else socket.SOCK_DGRAM
    sock = socket.socket(family, kind | socket.SOCK_CLOEXEC)
    if family == socket.AF_INET6:
        # By any default of the machine, :: is for IPv4 as well unless the port is one of IPv6.
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(only_ipv6))
    if wanted.protocol == TCP:
        # Connections of an earlier pod may linger. For a UDP port the option would allow two owners.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, wanted.port))
    if wanted.protocol == TCP:
        sock.listen(socket.SOMAXCONN)
    return sock.detach()
