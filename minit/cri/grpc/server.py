"""
The server's side of gRPC: connections of a listener, the calls on each, and their answers.

A call is a task. It is cancelled when its client resets the stream, closes the connection or has set a time that is
over. Whoever sends more than a call may have, or does not read, holds up only its own connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import h2.errors
import h2.events
import trio
from google.protobuf.message import DecodeError, Message
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import H2Error, ProtocolError

from minit.cri.grpc.framing import (
    LARGEST_MESSAGE_BYTES,
    CallError,
    Code,
    frame,
    parse_timeout,
    status_headers,
    unframe,
)
from minit.errors import MinitError, describe
from minit.value import Value

_RECEIVE_BYTES = 1 << 16
_PREFIX_BYTES = 5
_CONTENT_TYPE = "application/grpc"
_BEGIN = [(":status", "200"), ("content-type", _CONTENT_TYPE)]


class Method(Value):
    """A method of a service: its request's class, and a function that has one answer, or one that has many."""

    request: type[Message]
    answer: Callable[[Any], Awaitable[Message]] | None = None
    stream: Callable[[Any], AsyncIterator[Message]] | None = None


Methods = Mapping[str, Method]
"""Methods by their paths, `/PACKAGE.SERVICE/METHOD`."""

Report = Callable[[BaseException], None]
"""Tells somebody of an error in minit itself, which ends one call and nothing else."""


async def serve_connection(stream: trio.abc.Stream, methods: Methods, report: Report) -> None:
    """Serve one client until it leaves, or says something that is no HTTP/2."""
    async with stream:
        try:
            await _Connection(stream, methods, report).serve()
        except* (trio.BrokenResourceError, H2Error):
            pass  # the client is gone, or has been told why not


class _Call:
    """A call whose request is on its way, or that is being answered."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self.body = bytearray()
        self.is_begun = False
        self.scope = trio.CancelScope()


class _Connection:
    def __init__(self, stream: trio.abc.Stream, methods: Methods, report: Report) -> None:
        self._stream = stream
        self._methods = methods
        self._report = report
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._calls: dict[int, _Call] = {}
        self._writing = trio.Lock()
        self._room = trio.Event()

    async def serve(self) -> None:
        self._h2.initiate_connection()
        await self._flush()
        async with trio.open_nursery() as nursery:
            try:
                while data := await self._stream.receive_some(_RECEIVE_BYTES):
                    for event in self._h2.receive_data(data):
                        self._on_event(event, nursery)
                    await self._flush()
            except ProtocolError:
                await self._flush()  # the reason, for the client
                raise
            finally:
                nursery.cancel_scope.cancel()

    def _on_event(self, event: h2.events.Event, nursery: trio.Nursery) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self._calls[event.stream_id] = _Call({str(name): str(value) for name, value in event.headers})
        elif isinstance(event, h2.events.DataReceived):
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self._on_data(event.stream_id, event.data)
        elif isinstance(event, h2.events.StreamEnded):
            call = self._calls.get(event.stream_id)
            if call is not None:
                nursery.start_soon(self._answer, event.stream_id, call)
        elif isinstance(event, h2.events.StreamReset):
            call = self._calls.pop(event.stream_id, None)
            if call is not None:
                call.scope.cancel()
        elif isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            self._room.set()
            self._room = trio.Event()

    def _on_data(self, stream_id: int, data: bytes) -> None:
        call = self._calls.get(stream_id)
        if call is None:
            return
        call.body += data
        if len(call.body) > LARGEST_MESSAGE_BYTES + _PREFIX_BYTES:
            del self._calls[stream_id]
            reason = f"a message has at most {LARGEST_MESSAGE_BYTES} bytes"
            self._h2.send_headers(stream_id, [*_BEGIN, *status_headers(Code.RESOURCE_EXHAUSTED, reason)], True)
            self._h2.reset_stream(stream_id, h2.errors.ErrorCodes.NO_ERROR)

    async def _answer(self, stream_id: int, call: _Call) -> None:
        """Do what a call asks for, and tell its client the outcome."""
        code, message = Code.DEADLINE_EXCEEDED, "the time that the caller set is over"
        with call.scope:
            try:
                method = self._method(call.headers)
                timeout = call.headers.get("grpc-timeout")
                if timeout is not None:
                    call.scope.deadline = trio.current_time() + parse_timeout(timeout)
                await self._work(stream_id, method, _parse(method.request, unframe(bytes(call.body))))
                code, message = Code.OK, ""
            except CallError as error:
                code, message = error.code, str(error)
            except (MinitError, OSError) as error:
                code, message = Code.UNKNOWN, describe(error)
            except (H2Error, trio.BrokenResourceError):
                raise
            except Exception as error:  # an error in minit itself ends no other call
                self._report(error)
                code, message = Code.INTERNAL, f"an error in minit itself: {type(error).__name__}"
        if self._calls.pop(stream_id, None) is not None:
            await self._end(stream_id, code, message, call.is_begun)

    def _method(self, headers: Mapping[str, str]) -> Method:
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith(_CONTENT_TYPE):
            raise CallError(Code.INTERNAL, "this is a server of gRPC: it takes POST of application/grpc")
        path = headers.get(":path", "")
        try:
            return self._methods[path]
        except KeyError:
            raise CallError(Code.UNIMPLEMENTED, f"there is no method {path}") from None

    async def _work(self, stream_id: int, method: Method, request: Message) -> None:
        if method.answer is not None:
            answer = await method.answer(request)
            await self._begin(stream_id)
            await self._send(stream_id, answer)
        if method.stream is not None:
            await self._begin(stream_id)
            async for answer in method.stream(request):
                await self._send(stream_id, answer)

    async def _begin(self, stream_id: int) -> None:
        if stream_id in self._calls:
            self._calls[stream_id].is_begun = True
            self._h2.send_headers(stream_id, _BEGIN)
            await self._flush()

    async def _send(self, stream_id: int, message: Message) -> None:
        """Send a message as fast as the client reads."""
        rest = memoryview(frame(message.SerializeToString()))
        while rest and stream_id in self._calls:
            room = self._room
            size = min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size, len(rest))
            if size <= 0:
                await room.wait()
                continue
            self._h2.send_data(stream_id, bytes(rest[:size]))
            rest = rest[size:]
            await self._flush()

    async def _end(self, stream_id: int, code: Code, message: str, is_begun: bool) -> None:
        headers = status_headers(code, message)
        self._h2.send_headers(stream_id, headers if is_begun else [*_BEGIN, *headers], end_stream=True)
        await self._flush()

    async def _flush(self) -> None:
        async with self._writing:
            while data := self._h2.data_to_send():
                await self._stream.send_all(data)


def _parse(kind: type[Message], data: bytes) -> Message:
    request = kind()
    try:
        request.ParseFromString(data)
    except DecodeError as error:
        raise CallError(Code.INTERNAL, f"the request is no {kind.DESCRIPTOR.name}: {error}") from error
    return request
