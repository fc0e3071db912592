"""A client of streams over SPDY/3.1, which can also do what clients should not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import trio

from minit.cri.streaming.spdyframes import (
    Data,
    Decoder,
    Encoder,
    Frame,
    GoAway,
    HeadersFrame,
    Ping,
    RstStream,
    Settings,
    SynReply,
    SynStream,
    WindowUpdate,
)

V4 = ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")


class Stream:
    """What has come on a stream; `changed` is set whenever it is more."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.data = bytearray()
        self.is_accepted = self.has_ended = self.was_reset = False
        self.changed = trio.Event()

    def note(self) -> None:
        """Wake up whoever waits for it."""
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, text: bytes) -> None:
        """Wait until a text has come."""
        while text not in self.data:
            assert not self.has_ended, bytes(self.data)
            await self.changed.wait()

    async def whole(self) -> bytes:
        """Return all of it when it has ended."""
        while not self.has_ended:
            await self.changed.wait()
        return bytes(self.data)


class SpdyClient:
    """A connection that was upgraded; `rooms` are the windows that the server made larger."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.streams: dict[int, Stream] = {}
        self.pings: list[int] = []
        self.rooms: dict[int, int] = {}
        self.is_over = trio.Event()
        self.was_told_to_go = False
        self.encoder = Encoder()
        self._decoder = Decoder()
        self._next = 1

    async def send(self, *frames: Frame) -> None:
        """Send frames."""
        await self.stream.send_all(b"".join(map(self.encoder.encode, frames)))

    async def open(self, kind: str, **headers: str) -> Stream:
        """Make a stream."""
        stream = self.streams[self._next] = Stream(self._next)
        self._next += 2
        await self.send(SynStream(stream=stream.number, headers=(("streamtype", kind), *headers.items())))
        return stream

    async def open_all(self, *kinds: str) -> list[Stream]:
        """Make several streams."""
        return [await self.open(kind) for kind in kinds]

    async def write(self, stream: Stream, data: bytes, *, fin: bool = False) -> None:
        """Send bytes of a stream."""
        await self.send(Data(stream=stream.number, data=data, fin=fin))

    async def receive(self) -> None:
        """Take what comes until the server closes the connection."""
        try:
            while data := await self.stream.receive_some(1 << 16):
                self.feed(bytes(data))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        for stream in self.streams.values():
            stream.has_ended = True
            stream.note()
        self.is_over.set()

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        for frame in self._decoder.feed(data):
            if isinstance(frame, Ping):
                self.pings.append(frame.number)
            elif isinstance(frame, GoAway):
                self.was_told_to_go = True
            elif isinstance(frame, WindowUpdate):
                self.rooms[frame.stream] = self.rooms.get(frame.stream, 0) + frame.size_bytes
            elif not isinstance(frame, Settings | SynStream | HeadersFrame):
                self._on_stream(self.streams[frame.stream], frame)

    def _on_stream(self, stream: Stream, frame: Data | SynReply | RstStream) -> None:
        if isinstance(frame, Data):
            stream.data += frame.data
            stream.has_ended = stream.has_ended or frame.fin
        elif isinstance(frame, SynReply):
            stream.is_accepted = True
        else:
            stream.was_reset = stream.has_ended = True
        stream.note()


async def upgrade(
    url: str, protocols: Sequence[str] = V4, method: str = "POST"
) -> tuple[int, dict[str, str], trio.SocketStream]:
    """Ask for SPDY at a URL; return the status of the answer, its headers, and the connection."""
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    stream = await trio.open_tcp_stream(parts.hostname, parts.port)
    lines = [f"{method} {parts.path} HTTP/1.1", f"Host: {parts.netloc}", "Connection: Upgrade", "Upgrade: SPDY/3.1"]
    lines += [f"X-Stream-Protocol-Version: {protocol}" for protocol in protocols]
    await stream.send_all("\r\n".join([*lines, "", ""]).encode())
    status, headers = await read_head(stream)
    return status, headers, stream


async def read_head(stream: trio.abc.Stream) -> tuple[int, dict[str, str]]:
    """Return the status and the headers of an answer of HTTP, and nothing behind them; 0 if there is none."""
    head = bytearray()
    while not head.endswith(b"\r\n\r\n"):
        byte = await stream.receive_some(1)
        if not byte:
            return 0, {}
        head += byte
    first, *lines = head.decode().strip().split("\r\n")
    return int(first.split()[1]), {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


@asynccontextmanager
async def spdy_client(url: str, protocols: Sequence[str] = V4) -> AsyncIterator[SpdyClient]:
    """Connect to a streaming server, which has to agree, and take what comes."""
    status, headers, stream = await upgrade(url, protocols)
    assert (status, headers.get("x-stream-protocol-version")) == (101, protocols[0]), headers
    client = SpdyClient(stream)
    async with stream, trio.open_nursery() as nursery:
        nursery.start_soon(client.receive)
        yield client
        nursery.cancel_scope.cancel()


def exit_code(status: bytes) -> int:
    """Return the exit code in a Status object of Kubernetes."""
    outcome: dict[str, Any] = json.loads(status)
    if outcome["status"] == "Success":
        return 0
    assert outcome["reason"] == "NonZeroExitCode", outcome
    return int(outcome["details"]["causes"][0]["message"])
