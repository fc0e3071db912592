"""
Kubernetes' protocols of forwarded ports: pairs of streams, one for the data of a connection and one for its error.

Over SPDY a client makes a pair for each connection. Over a WebSocket each port of the call has one pair, both of which
begin with the number of the port, and one connection.
Connections are made in the pod's network namespace, to its loopback interface.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

import trio

from minit.base.errors import MinitError, describe
from minit.base.harmless import harmless
from minit.base.value import Value
from minit.cri.streaming.channels import Channel, ChannelReset
from minit.linux import syscalls

PROTOCOLS = {"portforward.k8s.io": 1}
"""The protocol over SPDY, and its version."""

WEBSOCKET_PROTOCOLS = ("v4.channel.k8s.io", "v4.base64.channel.k8s.io")

MOST_PORTS = 32
"""How many ports a client may have over a WebSocket: with base64 a channel is one character."""

MOST_STREAMS = 512
"""How many streams a client may have at a time, two for each connection."""

_PAIR_SECONDS = 30.0
LARGEST_PORT = 0xFFFF
_PORT_BYTES = 2
_READ_BYTES = 1 << 15
_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class PortForward(Value):
    """What a client may connect to; `open_process` returns a pidfd of a process in the network namespace."""

    ports: tuple[int, ...]
    """Those of the call; over SPDY the client names them itself."""
    open_process: Callable[[], int]

    def channels(self) -> dict[int, dict[str, str]]:
        """Return the headers of the channels of a WebSocket by their numbers."""
        kinds = [(kind, port) for port in self.ports for kind in ("data", "error")]
        return {number: {"streamtype": kind, "port": str(port)} for number, (kind, port) in enumerate(kinds)}

    async def serve_ports(self, channels: Mapping[int, Channel]) -> None:
        """Forward one connection to each port, to their ends."""
        async with trio.open_nursery() as nursery:
            for number, port in enumerate(self.ports):
                data, error = channels[2 * number], channels[2 * number + 1]
                nursery.start_soon(self._forward_first, port, data, error)

    async def serve(self, opened: trio.MemoryReceiveChannel[Channel]) -> None:
        """Forward connections as long as the client is there."""
        halves: dict[str, tuple[float, Channel]] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expire, halves)
            async for channel in opened:
                kind, name = channel.headers.get("streamtype"), channel.headers.get("requestid", "")
                if kind not in ("data", "error"):
                    channel.give_up()
                    continue
                # Old clients have no names for connections: the stream of the data follows that of the error.
                name = name or str(channel.number - (2 if kind == "data" else 0))
                _, other = halves.pop(name, (0.0, None))
                if other is None or other.headers["streamtype"] == kind:
                    halves[name] = trio.current_time() + _PAIR_SECONDS, channel
                    # A client may have reset them, and made others.
                    surplus = [*halves][:-MOST_STREAMS]
                    for given_up in (other, *(halves.pop(first)[1] for first in surplus)):
                        if given_up is not None:
                            given_up.give_up()
                    continue
                data, error = (channel, other) if kind == "data" else (other, channel)
                nursery.start_soon(self._forward, data, error)

    async def _forward_first(self, port: int, data: Channel, error: Channel) -> None:
        for channel in (data, error):
            await channel.send_all(port.to_bytes(_PORT_BYTES, "little"))
        await self._forward(data, error)

    async def _forward(self, data: Channel, error: Channel) -> None:
        """Forward one connection to its end."""
        text = data.headers.get("port", "")
        connection: trio.socket.SocketType | None = None
        try:
            port = int(text) if text.isascii() and text.isdecimal() else 0
            if not 0 < port <= LARGEST_PORT:
                raise MinitError("expected a number up to 65535")
            with data.until_reset():
                connection = await self._connect(port)
        except (MinitError, OSError) as failure:
            with suppress(ChannelReset):
                await error.send_all(f"failed to forward port {harmless(text)[:20]}: {describe(failure)}".encode())
        if connection is not None:
            with connection:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_send, data, connection, nursery.cancel_scope)
                    nursery.start_soon(_receive, connection, data, error, nursery.cancel_scope)
        data.give_up()
        error.give_up()

    async def _connect(self, port: int) -> trio.socket.SocketType:
        failures: list[OSError] = []
        for family, address in _LOOPBACK:
            connection = trio.socket.from_stdlib_socket(self._socket(family))
            try:
                await connection.connect((address, port))
                return connection
            except OSError as failure:
                connection.close()
                failures.append(failure)
        raise failures[0]

    def _socket(self, family: int) -> socket.socket:
        """
        Return a new socket of the pod's network namespace.

        A thread of its own, that ends with it, makes it: this process stays in its namespace, whatever happens.
        """
        made: list[socket.socket] = []
        failures: list[BaseException] = []

        def make(process: int) -> None:
            try:
                syscalls.setns(process, syscalls.CLONE_NEWNET)
                made.append(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC))
            except OSError as failure:
                failures.append(failure)

        process = self.open_process()
        try:
            thread = threading.Thread(target=make, args=(process,))
            thread.start()
            thread.join()
        finally:
            os.close(process)
        if failures:
            raise failures[0]
        return made[0]


async def _send(data: Channel, connection: trio.socket.SocketType, scope: trio.CancelScope) -> None:
    """Pass on what the client sends, and its end."""
    try:
        while piece := await data.receive_some():
            rest = memoryview(piece)
            while rest:
                rest = rest[await connection.send(rest) :]
        connection.shutdown(socket.SHUT_WR)
    except ChannelReset:
        scope.cancel()
    except OSError:
        data.discard()  # nobody is there to take it


async def _receive(connection: trio.socket.SocketType, data: Channel, error: Channel, scope: trio.CancelScope) -> None:
    """Pass on what comes from the pod, and its end; the client may go on after that."""
    try:
        while piece := await connection.recv(_READ_BYTES):
            await data.send_all(piece)
        data.finish()
        error.finish()  # kubectl ends the data no sooner
    except (ChannelReset, OSError):
        scope.cancel()


async def _expire(halves: dict[str, tuple[float, Channel]]) -> None:
    """Give up streams whose other halves do not come in time."""
    while True:
        now = trio.current_time()
        for name, (until, channel) in [*halves.items()]:
            if until <= now:
                del halves[name]
                channel.give_up()
        await trio.sleep_until(min((until for until, _ in halves.values()), default=now + _PAIR_SECONDS))
