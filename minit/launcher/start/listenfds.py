"""
Sockets that the caller, a service manager, has opened for the pod: sd_listen_fds(3).

Each goes to the app with a socket-activated port of its protocol and number. Anything else is closed, with a
warning.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from minit.base.errors import LaunchError, describe
from minit.base.value import Value
from minit.manifest.hostports import parse_host_address
from minit.plan.appplan import AppPlan
from minit.plan.life.sockets import TCP, UDP, ListenSocket

_FIRST = 3  # SD_LISTEN_FDS_START
_MAXIMUM = 1024
_MPTCP = 262  # IPPROTO_MPTCP: systemd's SocketProtocol=mptcp, and what programs in Go listen with
_PROTOCOLS = {socket.IPPROTO_TCP: TCP, _MPTCP: TCP, socket.IPPROTO_UDP: UDP}

# Of each socket of each app its descriptor, None for one that is not open yet.
AppSockets: TypeAlias = tuple[tuple[int | None, ...], ...]


class InheritedSocket(Value):
    """
    A socket of the caller, bound to an `address`, be it that of all.

    `protocol` is tcp or udp, and `name`, which may be empty, what the caller calls it.
    """

    fd: int
    name: str
    protocol: str
    port: int
    address: str


def find_sockets(environment: Mapping[str, str], pid: int) -> tuple[list[InheritedSocket], list[str]]:
    """
    Return the sockets that the caller passed to process `pid`, and warnings about what it passed else.

    To be called before anything else is opened: a descriptor that is announced and missing would be another's. What
    was passed to another process is not looked at. LaunchError if the number of descriptors makes no sense.
    """
    if environment.get("LISTEN_PID") != str(pid):
        return [], []
    text = environment.get("LISTEN_FDS", "0")
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(_MAXIMUM)) and int(text) <= _MAXIMUM):
        raise LaunchError(f"LISTEN_FDS={text}: expected a number up to {_MAXIMUM}")
    count = int(text)
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    if len(names) != count or not all(name.isascii() and name.isprintable() for name in names):
        names = [""] * count
    sockets = []
    warnings = []
    for fd, name in enumerate(names, _FIRST):
        try:
            sockets.append(_identify(fd, name))
        except (OSError, LaunchError) as error:
            warnings.append(_ignored(fd, name, describe(error)))
    return sockets, warnings


def match_sockets(apps: Sequence[AppPlan], inherited: Sequence[InheritedSocket]) -> tuple[AppSockets, list[str]]:
    """
    Return for each socket of each app the descriptor of an inherited one, None without one, and the warnings to show.

    Of several for one port an app gets that of its address. A socket that no app wants is closed.
    """
    free = list(inherited)
    exact = [[_take(free, wanted, of_address=True) for wanted in app.process.sockets] for app in apps]
    # The first that is left for one without, as rkt goes by the port alone.
    matched = tuple(
        tuple(_take(free, wanted) if fd is None else fd for wanted, fd in zip(app.process.sockets, fds, strict=True))
        for app, fds in zip(apps, exact, strict=True)
    )
    warnings = []
    for left in free:
        os.close(left.fd)
        what = f"no app has a socket-activated port for {left.protocol} port {left.port}"
        warnings.append(_ignored(left.fd, left.name, what))
    return matched, warnings


def _identify(fd: int, name: str) -> InheritedSocket:
    sock = socket.socket(fileno=fd)
    try:
        protocol = _PROTOCOLS.get(sock.proto)
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or protocol is None:
            raise LaunchError("expected a TCP or UDP socket")
        if protocol == TCP and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise LaunchError("expected a listening socket")
        address, port = sock.getsockname()[:2]
        # Of an address of a link the zone is left out, for which `--port` has no place.
        at = str(parse_host_address(address.partition("%")[0]))
        return InheritedSocket(fd=fd, name=name, protocol=protocol, port=port, address=at)
    finally:
        sock.detach()


def _take(free: list[InheritedSocket], wanted: ListenSocket, *, of_address: bool = False) -> int | None:
    for index, inherited in enumerate(free):
        fits = (inherited.protocol, inherited.port) == (wanted.protocol, wanted.port)
        if fits and (inherited.address == wanted.address or not of_address):
            return free.pop(index).fd
    return None


def _ignored(fd: int, name: str, reason: str) -> str:
    called = f' ("{name}")' if name else ""
    return f"warning: ignoring descriptor {fd}{called} of LISTEN_FDS: {reason}"
