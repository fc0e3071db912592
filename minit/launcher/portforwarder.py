"""
Ports of the machine that lead to a pod of a user without root.

The machine's own rules are root's, and the uplink takes no connections. So the launcher listens in the network of the
machine before anything of the pod is made, and a process in the user's network connects each client to the pod, which
sees the address of the bridge as the peer.
"""

from __future__ import annotations

import fcntl
import os
import socket
import traceback
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address

import trio

from minit.base.errors import MinitError, NetworkError, describe
from minit.base.value import Value
from minit.launcher.podhelper import PodHelper
from minit.linux.forks import PORT_FORWARDER
from minit.linux.stdio import complain
from minit.network.namespace import enter_user_network
from minit.plan.networks.networkplan import ForwardedPort
from minit.plan.networks.ports import host_text

_KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
_EVERYWHERE = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
_BACKLOG = 4096
_PIPE_BYTES = 1 << 20
_NOW = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
_DATAGRAM_BYTES = 1 << 16
_DATAGRAM_SECONDS = 60.0
_CLIENTS = 1024  # of datagrams, for each port
_NO_ROOM_SECONDS = 0.1

_Address = tuple[object, ...]


class Listening(Value):
    """An open socket of the machine, and the port of the pod behind the socket."""

    socket: socket.socket
    port: int


def listen(ports: Sequence[ForwardedPort]) -> list[Listening]:
    """Listen at ports of the machine; NetworkError names the first port that cannot be had."""
    opened: list[Listening] = []
    try:
        for port in ports:
            for family in _families(port):
                for index in range(port.count):
                    opened.append(_listen(port, family, index))
    except BaseException:
        for each in opened:
            each.socket.close()
        raise
    return opened


def _families(port: ForwardedPort) -> list[socket.AddressFamily]:
    if port.host_ip is not None:
        return [socket.AF_INET if port.host_ip.version == 4 else socket.AF_INET6]
    return [socket.AF_INET, *([socket.AF_INET6] if os.path.exists("/proc/net/if_inet6") else [])]


def _listen(port: ForwardedPort, family: socket.AddressFamily, index: int) -> Listening:
    address = _EVERYWHERE[family] if port.host_ip is None else str(port.host_ip)
    number = port.host_port + index
    if port.protocol not in _KINDS:
        raise NetworkError(f"{port.protocol} port {number}: only ports of tcp and udp lead to pods of a user")
    sock = socket.socket(family, _KINDS[port.protocol] | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if port.protocol == "tcp":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, number))
        if port.protocol == "tcp":
            sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        place = f"{port.protocol} port {number} of {host_text(ip_address(address))}"
        raise NetworkError(f"{place} cannot be forwarded: {describe(error)}") from error
    return Listening(socket=sock, port=port.pod_port + index)


class PortForwarder(PodHelper):
    """The launcher's side of the process; `addresses` are the pod's, the first of each family counts."""

    kind = "ports"
    loss = "no port of the machine leads to the pod"

    def __init__(self, listening: Sequence[Listening], addresses: Sequence[str]) -> None:
        super().__init__(
            PORT_FORWARDER,
            lambda _: _forward(listening, addresses),
            lambda _, error: _fail(error),
            listening=[each.socket.fileno() for each in listening],
        )
        for each in listening:
            each.socket.close()


def _fail(error: BaseException) -> None:
    if isinstance(error, (MinitError, OSError)):
        complain(f"networking: ports are not forwarded: {describe(error)}")
    else:
        traceback.print_exception(error)


def _forward(listening: Sequence[Listening], addresses: Sequence[str]) -> None:
    enter_user_network()
    trio.run(_serve_all, listening, addresses)


async def _serve_all(listening: Sequence[Listening], addresses: Sequence[str]) -> None:
    async with trio.open_nursery() as nursery:
        for each in listening:
            sock = trio.socket.from_stdlib_socket(each.socket)
            target = _target(sock.family, addresses), each.port
            serve = _serve_connections if sock.type == socket.SOCK_STREAM else _serve_datagrams
            nursery.start_soon(serve, sock, target, nursery)


def _target(family: int, addresses: Sequence[str]) -> str:
    """Return the pod's address of a family, or else the first one."""
    of_family = (address for address in addresses if (":" in address) == (family == socket.AF_INET6))
    return next(of_family, addresses[0])


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


async def _serve_connections(listening: trio.socket.SocketType, target: tuple[str, int], nursery: trio.Nursery) -> None:
    while True:
        try:
            client, _ = await listening.accept()
        except OSError:
            # The client has gone, or there are no descriptors left.
            await trio.sleep(_NO_ROOM_SECONDS)
            continue
        nursery.start_soon(_serve_client, client, target)


async def _serve_client(client: trio.socket.SocketType, target: tuple[str, int]) -> None:
    with client, suppress(OSError), trio.socket.socket(_family(target[0]), socket.SOCK_STREAM) as server:
        await server.connect(target)
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pump, client, server, nursery.cancel_scope)
            nursery.start_soon(_pump, server, client, nursery.cancel_scope)


async def _pump(source: trio.socket.SocketType, sink: trio.socket.SocketType, both: trio.CancelScope) -> None:
    """Bring bytes from one connection to the other, and the end; an error ends `both` directions."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            # The limit of a user's pipes, pipe(7): a smaller pipe is only slower.
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        while count := await _splice(source.fileno(), writer, _PIPE_BYTES, source.fileno(), is_reading=True):
            while count:
                count -= await _splice(reader, sink.fileno(), count, sink.fileno(), is_reading=False)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        both.cancel()
    finally:
        os.close(reader)
        os.close(writer)


async def _splice(source: int, sink: int, count: int, waited: int, *, is_reading: bool) -> int:
    """Move bytes, splice(2), waiting for the socket among the two; 0 at the end of the source."""
    while True:
        try:
            return os.splice(source, sink, count, flags=_NOW)
        except BlockingIOError:
            await (trio.lowlevel.wait_readable if is_reading else trio.lowlevel.wait_writable)(waited)


async def _serve_datagrams(listening: trio.socket.SocketType, target: tuple[str, int], nursery: trio.Nursery) -> None:
    clients: dict[_Address, _Client] = {}
    while True:
        try:
            data, address = await listening.recvfrom(_DATAGRAM_BYTES)
        except OSError:
            continue  # an answer of ICMP to what was sent before
        client = clients.get(address)
        if client is None:
            if len(clients) >= _CLIENTS:
                continue
            client = clients[address] = _Client(_family(target[0]))
            try:
                await client.socket.connect(target)
            except OSError:
                client.socket.close()
                del clients[address]
                continue
            nursery.start_soon(_answer, listening, address, client, clients)
        client.deadline.deadline = trio.current_time() + _DATAGRAM_SECONDS
        with suppress(OSError):
            await client.socket.send(data)


class _Client:
    """A client of datagrams: the socket for the client, and how long a silence may last."""

    def __init__(self, family: socket.AddressFamily) -> None:
        self.socket = trio.socket.socket(family, socket.SOCK_DGRAM)
        self.deadline = trio.CancelScope()


async def _answer(
    listening: trio.socket.SocketType, address: _Address, client: _Client, clients: dict[_Address, _Client]
) -> None:
    with client.socket, client.deadline:
        while True:
            with suppress(OSError):
                data = await client.socket.recv(_DATAGRAM_BYTES)
                client.deadline.deadline = trio.current_time() + _DATAGRAM_SECONDS
                await listening.sendto(data, address)
    del clients[address]
