"""A client of streams over a WebSocket, whose channels are numbers."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Pong,
    RejectConnection,
    Request,
    TextMessage,
)


class WebSocketClient:
    """A connection; `data` is what has come, by channels, `protocol` the chosen one, None if it was refused."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.data: dict[int, bytes] = defaultdict(bytes)
        self.protocol: str | None = None
        self.pongs = 0
        self.stream = stream
        self.is_answered = trio.Event()
        self.is_over = trio.Event()
        self._socket = WSConnection(ConnectionType.CLIENT)

    async def send(self, event: Event) -> None:
        """Send an event."""
        await self.stream.send_all(self._socket.send(event))

    async def write(self, number: int, data: bytes) -> None:
        """Send bytes of a channel."""
        if self.protocol is not None and "base64" in self.protocol:
            await self.send(TextMessage(data=str(number) + base64.b64encode(data).decode()))
        else:
            await self.send(BytesMessage(data=bytes([number]) + data))

    async def receive(self) -> None:
        """Take what comes until the server closes the connection."""
        while data := await self.stream.receive_some(1 << 16):
            self._socket.receive_data(bytes(data))
            for event in self._socket.events():
                self._on_event(event)
        self.is_over.set()
        self.is_answered.set()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, AcceptConnection):
            self.protocol = event.subprotocol
            self.is_answered.set()
        elif isinstance(event, RejectConnection | CloseConnection):
            self.is_answered.set()
        elif isinstance(event, Pong):
            self.pongs += 1
        elif isinstance(event, TextMessage):
            self.data[int(event.data[0])] += base64.b64decode(event.data[1:])
        elif isinstance(event, BytesMessage):
            self.data[event.data[0]] += event.data[1:]


@asynccontextmanager
async def websocket_client(url: str, protocols: Sequence[str]) -> AsyncIterator[WebSocketClient]:
    """Connect to a streaming server, and take what comes."""
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    async with await trio.open_tcp_stream(parts.hostname, parts.port) as stream, trio.open_nursery() as nursery:
        client = WebSocketClient(stream)
        await client.send(Request(host=parts.netloc, target=parts.path, subprotocols=list(protocols)))
        nursery.start_soon(client.receive)
        await client.is_answered.wait()
        yield client
        nursery.cancel_scope.cancel()
