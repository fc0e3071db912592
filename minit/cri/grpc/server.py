"""
The server's side of gRPC: connections of a listener, the calls on each, and their answers.

A call is a task. It is cancelled when its client resets the stream, closes the connection or has set a time that is
over. Whoever sends more than a call may have, or does not read, holds up only its own connection. Connections, calls,
the bytes of requests that are on their way, and the time that a client may take are limited here, headers and frames
by h2.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

import h2.errors
import h2.events
import trio
from google.protobuf.message import DecodeError, Message
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import H2Error, ProtocolError, StreamClosedError

from minit.cri.grpc.framing import (
    LARGEST_MESSAGE_BYTES,
    CallError,
    Code,
    code_of,
    frame,
    parse_timeout,
    status_headers,
    unframe,
)
from minit.errors import MinitError, describe, kind_of
from minit.value import Value

MOST_CONNECTIONS = 64
MOST_CALLS = 100  # of a connection, as h2 tells its clients
MOST_ENDED_CALLS = 4 * MOST_CALLS
"""Of a connection, that h2 knows the end of: what its client has sent before it heard of that is no error."""
MOST_LARGE_BYTES = 64 << 20
"""Of all requests that are on their way, but for what each connection may always send."""
REQUEST_SECONDS = 30.0
"""In which a client has to greet, and to send a request to its end."""
STALL_SECONDS = 20.0
"""In which a client has to take something of what it gets."""

_ALWAYS_BYTES = 1 << 16  # a kubelet's requests have a few thousand
_RECEIVE_BYTES = 1 << 16
_PREFIX_BYTES = 5
_CONTENT_TYPE = "application/grpc"
_BEGIN = [(":status", "200"), ("content-type", _CONTENT_TYPE)]


class Method(Value):
    """A method of a service: its request's class, and a function that has one answer, or one that has many."""

    request: type[Message]
    answer: Callable[[Any], Awaitable[Message]] | None = None
    stream: Callable[[Any], AsyncGenerator[Message, None]] | None = None


Methods = Mapping[str, Method]
"""Methods by their paths, `/PACKAGE.SERVICE/METHOD`."""

Report = Callable[[BaseException], None]
"""Tells somebody of an error in minit itself, which ends one call and nothing else."""


class Server:
    """Serves connections, and keeps all of them together within limits."""

    def __init__(self, methods: Methods, report: Report) -> None:
        self.methods = methods
        self.report = report
        self.large_bytes = 0
        self._connections: set[_Connection] = set()

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one client until it leaves, says something that is no HTTP/2, or others need its place."""
        async with stream:
            if not self._make_room():
                return
            connection = _Connection(stream, self)
            self._connections.add(connection)
            try:
                await connection.serve()
            except* (trio.BrokenResourceError, H2Error, UnicodeDecodeError):
                pass  # the client is gone, has been told why not, or has headers that are no text
            except* Exception as group:  # an error in minit itself ends no other connection
                self.report(group)
            finally:
                self._connections.remove(connection)
                connection.forget_requests()

    def _make_room(self) -> bool:
        """End the connection that nobody misses if there are too many; return whether there is a place now."""
        if len(self._connections) < MOST_CONNECTIONS:
            return True
        idle = [connection for connection in self._connections if not connection.answering]
        if not idle:
            return False
        min(idle, key=lambda connection: connection.use).end()
        return True


class _Call:
    """A call whose request is on its way, or that is being answered."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self.body = bytearray()
        self.is_whole = trio.Event()
        self.is_begun = False
        self.scope = trio.CancelScope()


class _FewEndedCalls(H2Connection):
    MAX_CLOSED_STREAMS = MOST_ENDED_CALLS  # its own 65,536 are 11 MB of each connection after some hours


class _Connection:
    def __init__(self, stream: trio.abc.Stream, server: Server) -> None:
        self.answering = 0
        """How many calls are being answered, of those that were given up too."""
        self.use = (False, trio.current_time())
        """Whether it has ever made a call, and when it was last heard of."""
        self._stream = stream
        self._server = server
        self._scope = trio.CancelScope()
        self._is_greeted = trio.Event()
        self._request_bytes = 0
        self._h2 = _FewEndedCalls(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._calls: dict[int, _Call] = {}
        self._writing = trio.Lock()
        self._room = trio.Event()

    def end(self) -> None:
        """Close the connection."""
        self._scope.cancel()

    def forget_requests(self) -> None:
        """Give back what is counted for requests that will not be answered."""
        self._count(-self._request_bytes)

    async def serve(self) -> None:
        with self._scope:
            self._h2.initiate_connection()
            await self._flush()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._await_greeting)
                try:
                    while data := await self._stream.receive_some(_RECEIVE_BYTES):
                        self.use = (self.use[0], trio.current_time())
                        for event in self._h2.receive_data(data):
                            self._on_event(event, nursery)
                        await self._flush()
                except ProtocolError:
                    await self._flush()  # the reason, for the client
                    raise
                finally:
                    nursery.cancel_scope.cancel()

    async def _await_greeting(self) -> None:
        with trio.move_on_after(REQUEST_SECONDS):
            await self._is_greeted.wait()
            return
        self.end()

    async def _await_request(self, stream_id: int, call: _Call) -> None:
        with trio.move_on_after(REQUEST_SECONDS):
            await call.is_whole.wait()
            return
        if self._calls.get(stream_id) is call:
            self._refuse(stream_id, Code.DEADLINE_EXCEEDED, f"a request is sent within {REQUEST_SECONDS:g} s")
            await self._flush()

    def _on_event(self, event: h2.events.Event, nursery: trio.Nursery) -> None:
        if isinstance(event, h2.events.RequestReceived):
            call = _Call({str(name): str(value) for name, value in event.headers})
            self._calls[event.stream_id] = call
            nursery.start_soon(self._await_request, event.stream_id, call)
        elif isinstance(event, h2.events.DataReceived):
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self._on_data(event.stream_id, event.data)
        elif isinstance(event, h2.events.StreamEnded):
            self._on_request(event.stream_id, nursery)
        elif isinstance(event, h2.events.StreamReset):
            given_up = self._drop(event.stream_id)
            if given_up is not None:
                given_up.scope.cancel()
        elif isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            self._is_greeted.set()
            self._room.set()
            self._room = trio.Event()

    def _on_request(self, stream_id: int, nursery: trio.Nursery) -> None:
        call = self._calls.get(stream_id)
        if call is None:
            return
        if self.answering >= MOST_CALLS:  # of which some were given up
            self._refuse(stream_id, Code.RESOURCE_EXHAUSTED, f"a connection has at most {MOST_CALLS} calls at a time")
            return
        call.is_whole.set()
        self.use = (True, trio.current_time())
        self.answering += 1
        nursery.start_soon(self._answer, stream_id, call)

    def _on_data(self, stream_id: int, data: bytes) -> None:
        call = self._calls.get(stream_id)
        if call is None:
            return
        call.body += data
        self._count(len(data))
        if len(call.body) > LARGEST_MESSAGE_BYTES + _PREFIX_BYTES:
            reason = f"a message has at most {LARGEST_MESSAGE_BYTES} bytes"
            self._refuse(stream_id, Code.RESOURCE_EXHAUSTED, reason)
        elif self._request_bytes > _ALWAYS_BYTES and self._server.large_bytes > MOST_LARGE_BYTES:
            self._refuse(stream_id, Code.RESOURCE_EXHAUSTED, "too much is being sent: try again later")

    def _count(self, more_bytes: int) -> None:
        """Count what there is of requests, for all connections as far as it is more than each may send."""
        before = max(0, self._request_bytes - _ALWAYS_BYTES)
        self._request_bytes += more_bytes
        self._server.large_bytes += max(0, self._request_bytes - _ALWAYS_BYTES) - before

    def _drop(self, stream_id: int) -> _Call | None:
        """Forget a call; None if it is forgotten."""
        call = self._calls.pop(stream_id, None)
        if call is not None:
            call.is_whole.set()
            self._take_body(call)
        return call

    def _take_body(self, call: _Call) -> bytes:
        body = bytes(call.body)
        call.body.clear()
        self._count(-len(body))
        return body

    def _refuse(self, stream_id: int, code: Code, reason: str) -> None:
        """End a call whose request is not read to its end."""
        self._drop(stream_id)
        with suppress(StreamClosedError):  # its client has just given it up
            self._h2.send_headers(stream_id, [*_BEGIN, *status_headers(code, reason)], True)
            self._h2.reset_stream(stream_id, h2.errors.ErrorCodes.NO_ERROR)

    async def _answer(self, stream_id: int, call: _Call) -> None:
        """Do what a call asks for, and tell its client the outcome."""
        try:
            await self._try_answer(stream_id, call)
        finally:
            self.answering -= 1

    async def _try_answer(self, stream_id: int, call: _Call) -> None:
        code, message = Code.DEADLINE_EXCEEDED, "the time that the caller set is over"
        with call.scope:
            try:
                method = self._method(call.headers)
                timeout = call.headers.get("grpc-timeout")
                if timeout is not None:
                    call.scope.deadline = trio.current_time() + parse_timeout(timeout)
                await self._work(stream_id, method, _parse(method.request, unframe(self._take_body(call))))
                code, message = Code.OK, ""
            except CallError as error:
                code, message = error.code, str(error)
            except (MinitError, OSError) as error:
                code, message = code_of(kind_of(error)), describe(error)
            except (H2Error, trio.BrokenResourceError):
                raise
            except Exception as error:  # an error in minit itself ends no other call
                self._server.report(error)
                code, message = Code.INTERNAL, f"an error in minit itself: {type(error).__name__}"
        if self._drop(stream_id) is not None:
            await self._end(stream_id, code, message, call.is_begun)

    def _method(self, headers: Mapping[str, str]) -> Method:
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith(_CONTENT_TYPE):
            raise CallError(Code.INTERNAL, "this is a server of gRPC: it takes POST of application/grpc")
        path = headers.get(":path", "")
        try:
            return self._server.methods[path]
        except KeyError:
            raise CallError(Code.UNIMPLEMENTED, f"there is no method {path}") from None

    async def _work(self, stream_id: int, method: Method, request: Message) -> None:
        if method.answer is not None:
            answer = await method.answer(request)
            self._begin(stream_id)
            await self._send(stream_id, answer)
        if method.stream is not None:
            self._begin(stream_id)
            await self._flush()
            async with aclosing(method.stream(request)) as answers:
                async for answer in answers:
                    await self._send(stream_id, answer)
                    await self._flush()

    def _begin(self, stream_id: int) -> None:
        if stream_id in self._calls:
            self._calls[stream_id].is_begun = True
            self._h2.send_headers(stream_id, _BEGIN)

    async def _send(self, stream_id: int, message: Message) -> None:
        """Send a message as fast as the client reads; the end of it is left to the next flush."""
        rest = memoryview(frame(message.SerializeToString()))
        deadline = trio.current_time() + STALL_SECONDS
        while rest and stream_id in self._calls:
            room = self._room
            size = min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size, len(rest))
            if size <= 0:
                await self._flush()
                with trio.move_on_at(deadline):
                    await room.wait()
                if trio.current_time() >= deadline:
                    raise CallError(Code.CANCELLED, "the caller does not read the answer")
                continue
            deadline = trio.current_time() + STALL_SECONDS
            self._h2.send_data(stream_id, bytes(rest[:size]))
            rest = rest[size:]
            if rest:
                await self._flush()

    async def _end(self, stream_id: int, code: Code, message: str, is_begun: bool) -> None:
        headers = status_headers(code, message)
        self._h2.send_headers(stream_id, headers if is_begun else [*_BEGIN, *headers], end_stream=True)
        await self._flush()

    async def _flush(self) -> None:
        async with self._writing:
            while data := self._h2.data_to_send():
                # A call that is given up does not leave half of a frame behind.
                with trio.move_on_after(STALL_SECONDS, shield=True) as scope:
                    await self._stream.send_all(data)
                if scope.cancelled_caught:
                    raise trio.BrokenResourceError("the client does not read")


def _parse(kind: type[Message], data: bytes) -> Message:
    request = kind()
    try:
        request.ParseFromString(data)
    except DecodeError as error:
        raise CallError(Code.INTERNAL, f"the request is no {kind.DESCRIPTOR.name}: {error}") from error
    return request
