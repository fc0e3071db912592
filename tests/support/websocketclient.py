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
        self._message = bytearray()
        self._arrived = trio.lowlevel.ParkingLot()

    async def send(self, event: Event) -> None:
        """Send an event."""
        await self.stream.send_all(self._socket.send(event))

    async def write(self, number: int, data: bytes) -> None:
        """Send bytes of a channel."""
        if self.protocol is not None and "base64" in self.protocol:
            await self.send(TextMessage(data=chr(48 + number) + base64.b64encode(data).decode()))
        else:
            await self.send(BytesMessage(data=bytes([number]) + data))

    async def until(self, number: int, wanted: bytes) -> None:
        """Wait for bytes of a channel."""
        while wanted not in self.data[number]:
            await self._arrived.park()

    async def receive(self) -> None:
        """Take what comes until the server closes the connection."""
        while data := await self.stream.receive_some(1 << 16):
            self._socket.receive_data(bytes(data))
            for event in self._socket.events():
                self._on_event(event)
            self._arrived.unpark_all()
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
        elif isinstance(event, TextMessage | BytesMessage):
            self._message += event.data.encode() if isinstance(event, TextMessage) else event.data
            if event.message_finished:
                is_text = isinstance(event, TextMessage)
                number = self._message[0] - (48 if is_text else 0)
                data = bytes(self._message[1:])
                self.data[number] += base64.b64decode(data) if is_text else data
                self._message.clear()


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
