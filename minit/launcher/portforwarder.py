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
from typing import NoReturn

import trio

from minit.base.carried import Carried, CarriedCodec, Descriptor
from minit.base.errors import MinitError, NetworkError, describe
from minit.iottymux.buffers import unread_bytes
from minit.launcher.podhelper import HelperWork, PodHelper
from minit.launcher.upgradable import prove, resume
from minit.linux.forks import PORT_FORWARDER
from minit.linux.messages import Socket
from minit.linux.stdio import complain
from minit.network.namespace import enter_user_network
from minit.plan.networks.networkplan import ForwardedPort
from minit.plan.networks.ports import host_text

_STREAM, _DATAGRAM = (
    kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
)
_KINDS = {"tcp": _STREAM, "udp": _DATAGRAM}
_EVERYWHERE = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
_BACKLOG = 4096
_PIPE_BYTES = 1 << 20
_NOW = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
_DATAGRAM_BYTES = 1 << 16
_DATAGRAM_SECONDS = 60.0
_CLIENTS = 1024  # of datagrams, for each port
_NO_ROOM_SECONDS = 0.1

_Address = tuple[object, ...]


class Connection(Carried):
    """
    A client's connection, and the pod's, None before that is made.

    `pipes` are the ends of a pipe for each direction, which has the bytes on the way, first of that to the pod.
    """

    client: Socket
    server: Socket | None
    pipes: list[tuple[Descriptor, Descriptor]]

    def __init__(self, client: Socket) -> None:
        self.client = client
        self.server = None
        self.pipes = []

    async def connect(self, target: tuple[str, int]) -> None:
        """Make the pod's connection and the pipes; OSError, or neither, at a cancellation too."""
        server = socket.socket(_family(target[0]), _STREAM)
        # Closes the socket at a failure.
        await trio.socket.from_stdlib_socket(server).connect(target)
        self.server = server
        for sock in (self.client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while len(self.pipes) < 2:
            self.pipes.append(os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC))
            with suppress(OSError):
                # The limit of a user's pipes, pipe(7): a smaller pipe is only slower.
                fcntl.fcntl(self.pipes[-1][1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def close(self) -> None:
        """End both connections."""
        self.close_fields("client", "server")
        for end in (end for pipe in self.pipes for end in pipe):
            os.close(end)


class Client(Carried):
    """A client of datagrams, with a socket for the client that is connected to the pod."""

    address: _Address
    socket: Socket

    def __init__(self, address: _Address, target: tuple[str, int]) -> None:
        self.address = address
        self.socket = socket.socket(_family(target[0]), _DATAGRAM)
        try:
            self.socket.connect(target)
        except OSError:
            self.socket.close()
            raise


class Listening(Carried):
    """An open socket of the machine, the port of the pod behind the socket, and who has come by."""

    socket: Socket
    port: int
    connections: list[Connection]
    clients: list[Client]

    def __init__(self, sock: Socket, port: int) -> None:
        self.socket = sock
        self.port = port
        self.connections = []
        self.clients = []


class Forwarding(HelperWork):
    """All that the forwarder knows; of the `addresses` of the pod the first of each family counts."""

    listening: list[Listening]
    addresses: list[str]

    who = "the forwarder of ports"
    name = "minit-ports"
    resume = "from minit.launcher.portforwarder import resume_forwarding; resume_forwarding()"
    prove = "from minit.launcher.portforwarder import prove_forwarding; prove_forwarding()"

    def __init__(self, listening: Sequence[Listening], addresses: Sequence[str]) -> None:
        self.listening = [*listening]
        self.addresses = [*addresses]


_CODEC = CarriedCodec(Forwarding)


def resume_forwarding() -> NoReturn:
    """Be the forwarder in a program that the forwarder has executed."""
    resume(_CODEC, _forward)


def prove_forwarding() -> NoReturn:
    """Show whether this program can be the forwarder with a state."""
    prove(_CODEC)


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
    sock = socket.socket(family, _KINDS[port.protocol])
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
    return Listening(sock, port.pod_port + index)


class PortForwarder(PodHelper):
    """The launcher's side of the process."""

    kind = "ports"
    loss = "no port of the machine leads to the pod"

    def __init__(self, listening: Sequence[Listening], addresses: Sequence[str]) -> None:
        super().__init__(
            PORT_FORWARDER,
            lambda link: _begin(Forwarding(listening, addresses), link),
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


def _begin(forwarding: Forwarding, link: Socket) -> None:
    forwarding.begin(link)
    enter_user_network()
    _forward(forwarding)


def _forward(forwarding: Forwarding) -> None:
    while trio.run(_serve_all, forwarding):
        forwarding.go_on(_CODEC)


async def _serve_all(forwarding: Forwarding) -> bool:
    """Serve all clients until another program is to do so; False at the end of the launcher."""
    is_there = True
    async with trio.open_nursery() as nursery:
        for each in forwarding.listening:
            target = _target(each.socket.family, forwarding.addresses), each.port
            serve = _serve_connections if each.socket.type == socket.SOCK_STREAM else _serve_datagrams
            nursery.start_soon(serve, each, target, nursery)
        while is_there and forwarding.image is None:
            await trio.lowlevel.wait_readable(forwarding.link)
            is_there = forwarding.hear()
        # Nothing is closed, and no byte is on the way but in a pipe.
        nursery.cancel_scope.cancel()
    return is_there


def _target(family: int, addresses: Sequence[str]) -> str:
    """Return the pod's address of a family, or else the first one."""
    of_family = (address for address in addresses if (":" in address) == (family == socket.AF_INET6))
    return next(of_family, addresses[0])


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


async def _serve_connections(listening: Listening, target: tuple[str, int], nursery: trio.Nursery) -> None:
    for connection in listening.connections:
        nursery.start_soon(_serve_client, listening, connection, target)
    while True:
        await trio.lowlevel.wait_readable(listening.socket)
        try:
            client, _ = listening.socket.accept()
        except OSError:
            # The client has gone, or there are no descriptors left.
            await trio.sleep(_NO_ROOM_SECONDS)
            continue
        client.setblocking(False)
        listening.connections.append(Connection(client))
        nursery.start_soon(_serve_client, listening, listening.connections[-1], target)


async def _serve_client(listening: Listening, connection: Connection, target: tuple[str, int]) -> None:
    with suppress(OSError):
        if connection.server is None:
            await connection.connect(target)
        assert connection.server is not None
        to_pod, from_pod = connection.pipes
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pump, connection.client, to_pod, connection.server, nursery.cancel_scope)
            nursery.start_soon(_pump, connection.server, from_pod, connection.client, nursery.cancel_scope)
    # Not at a cancellation.
    listening.connections.remove(connection)
    connection.close()


async def _pump(source: Socket, pipe: tuple[int, int], sink: Socket, both: trio.CancelScope) -> None:
    """Bring bytes from one connection to the other, and the end; an error ends `both` directions."""
    reader, writer = pipe
    # What a program before this one has left.
    count = unread_bytes(reader)
    try:
        while True:
            while count:
                count -= await _splice(reader, sink.fileno(), count, sink.fileno(), is_reading=False)
            count = await _splice(source.fileno(), writer, _PIPE_BYTES, source.fileno(), is_reading=True)
            if not count:
                break
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        both.cancel()


async def _splice(source: int, sink: int, count: int, waited: int, *, is_reading: bool) -> int:
    """Move bytes, splice(2), waiting for the socket among the two; 0 at the end of the source."""
    while True:
        try:
            return os.splice(source, sink, count, flags=_NOW)
        except BlockingIOError:
            await (trio.lowlevel.wait_readable if is_reading else trio.lowlevel.wait_writable)(waited)


async def _serve_datagrams(listening: Listening, target: tuple[str, int], nursery: trio.Nursery) -> None:
    sock = trio.socket.from_stdlib_socket(listening.socket)
    clients: dict[_Address, _Answering] = {}
    for client in listening.clients:
        clients[client.address] = _Answering(client)
        nursery.start_soon(_answer, sock, clients[client.address], clients, listening)
    while True:
        try:
            data, address = await sock.recvfrom(_DATAGRAM_BYTES)
        except OSError:
            continue  # an answer of ICMP to what was sent before
        answering = clients.get(address)
        if answering is None:
            if len(clients) >= _CLIENTS:
                continue
            try:
                client = Client(address, target)
            except OSError:
                continue
            listening.clients.append(client)
            answering = clients[address] = _Answering(client)
            nursery.start_soon(_answer, sock, answering, clients, listening)
        answering.deadline.deadline = trio.current_time() + _DATAGRAM_SECONDS
        with suppress(OSError):
            await answering.socket.send(data)


class _Answering:
    """A client of datagrams under trio, and how long a silence may last."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.socket = trio.socket.from_stdlib_socket(client.socket)
        self.deadline = trio.CancelScope(deadline=trio.current_time() + _DATAGRAM_SECONDS)


async def _answer(
    sock: trio.socket.SocketType, answering: _Answering, clients: dict[_Address, _Answering], listening: Listening
) -> None:
    client = answering.client
    with answering.deadline:
        while True:
            with suppress(OSError):
                data = await answering.socket.recv(_DATAGRAM_BYTES)
                answering.deadline.deadline = trio.current_time() + _DATAGRAM_SECONDS
                await sock.sendto(data, client.address)
    # Not at another cancellation.
    del clients[client.address]
    listening.clients.remove(client)
    client.socket.close()
