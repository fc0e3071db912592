"""A client of gRPC on a stream of trio, which can also do what clients should not."""

from __future__ import annotations

import urllib.parse
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import h2.events
import trio
from google.protobuf.message import Message
from h2.config import H2Configuration
from h2.connection import H2Connection

from minit.cri.grpc.framing import frame


class Answer:
    """What came back of a call: bodies as they were framed, the status and its message."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""
        self.was_reset = False
        self.ended = trio.Event()
        self.grew = trio.Event()

    @property
    def code(self) -> int:
        """The number of the status; -1 as long as there is none."""
        return int(self.headers.get("grpc-status", "-1"))

    @property
    def message(self) -> str:
        """The message that goes with the status."""
        return urllib.parse.unquote(self.headers.get("grpc-message", ""))

    def messages(self) -> list[bytes]:
        """Return the messages that have come as a whole."""
        rest, found = self.body, []
        while len(rest) >= 5 and len(rest) >= 5 + (size := int.from_bytes(rest[1:5], "big")):
            found.append(rest[5 : 5 + size])
            rest = rest[5 + size :]
        return found


class _ForgetfulConnection(H2Connection):
    MAX_CLOSED_STREAMS = 10  # a test that measures the server's memory shares it


class GrpcClient:
    """A connection with any number of calls at a time."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.h2 = _ForgetfulConnection(H2Configuration(header_encoding="utf-8"))
        self.answers: dict[int, Answer] = {}
        self.reads_answers = True
        self._writing = trio.Lock()
        self._room = trio.Event()

    async def start(
        self, path: str, body: bytes, headers: Sequence[tuple[str, str]] = (), end: bool = True
    ) -> tuple[int, Answer]:
        """Begin a call, and return its stream and what will come of it."""
        stream_id = self.h2.get_next_available_stream_id()
        answer = self.answers[stream_id] = Answer()
        usual = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
        usual |= {"content-type": "application/grpc", "te": "trailers"} | dict(headers)
        self.h2.send_headers(stream_id, list(usual.items()))
        rest = memoryview(body)
        while rest and not answer.ended.is_set():
            room = self._room
            size = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size, len(rest))
            if size <= 0:
                await self.flush()
                await room.wait()
                continue
            self.h2.send_data(stream_id, bytes(rest[:size]))
            rest = rest[size:]
        if end and not answer.ended.is_set():
            self.h2.end_stream(stream_id)
        await self.flush()
        return stream_id, answer

    async def call(self, path: str, request: Message, headers: Sequence[tuple[str, str]] = ()) -> Answer:
        """Make a call and return its whole answer."""
        _, answer = await self.start(path, frame(request.SerializeToString()), headers)
        await answer.ended.wait()
        return answer

    async def flush(self) -> None:
        """Send what is to be sent."""
        async with self._writing:
            while data := self.h2.data_to_send():
                await self.stream.send_all(data)

    async def receive(self) -> None:
        """Take what comes until the server closes the connection, or is no more."""
        with suppress(trio.BrokenResourceError):
            while data := await self.stream.receive_some(1 << 16):
                for event in self.h2.receive_data(data):
                    self._on_event(event)
                await self.flush()
        for answer in self.answers.values():
            answer.ended.set()

    def _on_event(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            self.answers[event.stream_id].headers |= {str(name): str(value) for name, value in event.headers}
        elif isinstance(event, h2.events.DataReceived):
            answer = self.answers[event.stream_id]
            answer.body += event.data
            answer.grew.set()
            answer.grew = trio.Event()
            if self.reads_answers:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.answers[event.stream_id].ended.set()
        elif isinstance(event, h2.events.StreamReset):
            self.answers[event.stream_id].was_reset = True
            self.answers[event.stream_id].ended.set()
        elif isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            self._room.set()
            self._room = trio.Event()


@asynccontextmanager
async def grpc_client(stream: trio.abc.Stream) -> AsyncIterator[GrpcClient]:
    """Connect to a server of gRPC at the other end of a stream."""
    client = GrpcClient(stream)
    client.h2.initiate_connection()
    async with stream, trio.open_nursery() as nursery:
        await client.flush()
        nursery.start_soon(client.receive)
        yield client
        nursery.cancel_scope.cancel()
