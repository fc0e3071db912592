"""
The server's side of gRPC: connections of a listener, calls on connections, and answers.

A call is a task. It is cancelled when its client resets the stream, closes the connection or has set a time that is
over. Whoever sends more than a call may have, or does not read, holds up only its own connection.

Calls are not counted, since most calls only wait. The bound is memory: the requests that clients have
sent for unfinished calls, given up or not, and the answers that clients have not taken. Connections and
the time that a client may take for a request are limited here too, headers and frames by h2.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

import h2.errors
import h2.events
import h2.settings
import trio
from google.protobuf.message import DecodeError, Message
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import H2Error, ProtocolError, StreamClosedError

from minit.base.errors import MinitError, describe, kind_of
from minit.base.value import Value
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

MOST_CONNECTIONS = 512
MOST_ENDED_CALLS = 500
"""Of a connection, that h2 knows the end of: what its client has sent before it heard of that is no error."""
MOST_BYTES = 128 << 20
"""Of all calls from their first byte until they are done; beyond it each connection may have its share of as much."""
CALL_BYTES = 12 << 10
"""What a call takes of that beside what its client sends: its task, its stream, and what it waits for."""
MOST_UNSENT_BYTES = 1 << 20
"""Of answers that a client has not taken, beyond which no further call of its connection is begun."""
REQUEST_SECONDS = 30.0
"""In which a client has to greet, and to send a request to its end."""
STALL_SECONDS = 20.0
"""In which a client has to take something of what it gets."""

_RECEIVE_BYTES = 1 << 16
_TURN_BYTES = 1 << 12  # of what was received, which may be a hundred calls: then others have their turn
_PAUSE_SECONDS = 0.0005  # of the connection for each of its calls that came to nothing, which costs as much
_MOST_CLOSED = 64
_PREFIX_BYTES = 5
_CONTENT_TYPE = "application/grpc"
_BEGIN = [(":status", "200"), ("content-type", _CONTENT_TYPE)]


class Method(Value):
    """
    A method of a service: the request's class, and a function that has one answer, or several.

    The items in an answer's field `items` are sent in separate messages.
    """

    request: type[Message]
    answer: Callable[[Any], Awaitable[Message]] | None = None
    items: str | None = None
    stream: Callable[[Any], AsyncGenerator[Message, None]] | None = None


Methods = Mapping[str, Method]
"""Methods by their paths, `/PACKAGE.SERVICE/METHOD`."""

Report = Callable[[BaseException], None]
"""Tells somebody of an error in minit itself, which ends one call and nothing else."""


class Server:
    """Serves connections, and keeps all connections together within limits."""

    def __init__(self, methods: Methods, report: Report) -> None:
        self.methods = methods
        self.report = report
        self.taken_bytes = 0
        """What all calls have of MOST_BYTES."""
        self._connections: set[_Connection] = set()

    @property
    def share_bytes(self) -> int:
        """What the calls of a connection may have in any case."""
        return MOST_BYTES // max(1, len(self._connections))

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
                connection.forget_calls()

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
    """A call whose request is on the way, or that is being answered; it takes so many bytes until the end."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self.body = bytearray()
        self.taken_bytes = 0
        self.is_whole = trio.Event()
        self.is_begun = False
        self.scope = trio.CancelScope()


class _ManyCalls(H2Connection):
    """A connection of thousands of calls, which tells its client of no number that it may have."""

    MAX_CLOSED_STREAMS = MOST_ENDED_CALLS  # its own 65,536 are 11 MB of each connection after some hours

    def __init__(self) -> None:
        super().__init__(H2Configuration(client_side=False, header_encoding="utf-8"))
        del self.local_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS]
        self._known = 0

    @property
    def open_inbound_streams(self) -> int:
        """The number as of some calls ago: h2 goes through all calls to count them, and to forget those that ended."""
        if len(self.streams) >= 2 * self._known + _MOST_CLOSED:
            self._known = super().open_inbound_streams
        return self._known


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
        self.taken_bytes = 0
        self._h2 = _ManyCalls()
        self._calls: dict[int, _Call] = {}
        self._writing = trio.Lock()
        self._room = trio.Event()
        self._beginning = trio.Lock()
        self._unsent_bytes = 0
        self._is_taken = trio.Event()
        self._came_to_nothing = 0

    def end(self) -> None:
        """Close the connection."""
        self._scope.cancel()

    def forget_calls(self) -> None:
        """Give back what its calls take, which will not be answered."""
        self._server.taken_bytes -= self.taken_bytes

    async def serve(self) -> None:
        with self._scope:
            self._h2.initiate_connection()
            await self._flush()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._await_greeting)
                try:
                    while data := await self._stream.receive_some(_RECEIVE_BYTES):
                        self.use = (self.use[0], trio.current_time())
                        for at in range(0, len(data), _TURN_BYTES):
                            for event in self._h2.receive_data(data[at : at + _TURN_BYTES]):
                                self._on_event(event, nursery)
                            await trio.sleep(self._came_to_nothing * _PAUSE_SECONDS)
                            self._came_to_nothing = 0
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
            size = sum(len(name) + len(value) for name, value in event.headers)
            if self._take(event.stream_id, call, CALL_BYTES + size):
                nursery.start_soon(self._await_request, event.stream_id, call)
        elif isinstance(event, h2.events.DataReceived):
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self._on_data(event.stream_id, event.data)
        elif isinstance(event, h2.events.StreamEnded):
            self._on_request(event.stream_id, nursery)
        elif isinstance(event, h2.events.StreamReset):
            given_up = self._drop(event.stream_id)
            if given_up is not None:
                self._came_to_nothing += 1
                given_up.scope.cancel()
        elif isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            self._is_greeted.set()
            self._room.set()
            self._room = trio.Event()

    def _on_request(self, stream_id: int, nursery: trio.Nursery) -> None:
        call = self._calls.get(stream_id)
        if call is None:
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
        if len(call.body) > LARGEST_MESSAGE_BYTES + _PREFIX_BYTES:
            reason = f"a message has at most {LARGEST_MESSAGE_BYTES} bytes"
            self._refuse(stream_id, Code.RESOURCE_EXHAUSTED, reason)
        else:
            self._take(stream_id, call, len(data))

    def _take(self, stream_id: int, call: _Call, more_bytes: int) -> bool:
        """Let a call take more memory, or refuse it; return whether it has that now."""
        for one in (call, self, self._server):
            one.taken_bytes += more_bytes
        if self._server.taken_bytes <= MOST_BYTES or self.taken_bytes <= self._server.share_bytes:
            return True
        self._refuse(stream_id, Code.RESOURCE_EXHAUSTED, "too much is being asked for: try again later")
        return False

    def _give_back(self, call: _Call) -> None:
        """Give back the memory of a call, the first time."""
        for one in (self._server, self, call):
            one.taken_bytes -= call.taken_bytes

    def _drop(self, stream_id: int) -> _Call | None:
        """Forget a call, which takes its memory until it is done if its request was whole; None if it is forgotten."""
        call = self._calls.pop(stream_id, None)
        if call is not None and not call.is_whole.is_set():
            call.is_whole.set()
            self._give_back(call)
        return call

    def _refuse(self, stream_id: int, code: Code, reason: str) -> None:
        """End a call whose request is not read to the end."""
        self._drop(stream_id)
        self._came_to_nothing += 1
        with suppress(StreamClosedError):  # its client has just given it up
            self._h2.send_headers(stream_id, [*_BEGIN, *status_headers(code, reason)], True)
            self._h2.reset_stream(stream_id, h2.errors.ErrorCodes.NO_ERROR)

    async def _answer(self, stream_id: int, call: _Call) -> None:
        """Do what a call asks for, and tell its client the outcome."""
        try:
            code, message = await self._outcome(stream_id, call)
        finally:
            # Before its client hears of the end: it may make the next call then.
            self.answering -= 1
            self._give_back(call)
        if self._drop(stream_id) is not None:
            await self._end(stream_id, code, message, call.is_begun)

    async def _outcome(self, stream_id: int, call: _Call) -> tuple[Code, str]:
        """Do what a call asks for and send its answers; return its status."""
        with call.scope:
            try:
                method = self._method(call.headers)
                timeout = call.headers.get("grpc-timeout")
                if timeout is not None:
                    call.scope.deadline = trio.current_time() + parse_timeout(timeout)
                await self._await_reader()
                request = _parse(method.request, unframe(bytes(call.body)))
                call.body.clear()
                await self._work(stream_id, method, request)
                return Code.OK, ""
            except CallError as error:
                return error.code, str(error)
            except (MinitError, OSError) as error:
                return code_of(kind_of(error)), describe(error)
            except (H2Error, trio.BrokenResourceError):
                raise
            except Exception as error:  # an error in minit itself ends no other call
                self._server.report(error)
                return Code.INTERNAL, f"an error in minit itself: {type(error).__name__}"
        return Code.DEADLINE_EXCEEDED, "the time that the caller set is over"

    async def _await_reader(self) -> None:
        """Wait, first come, first served, until the client has taken enough of its answers."""
        async with self._beginning:
            while self._unsent_bytes > MOST_UNSENT_BYTES:
                self._is_taken = trio.Event()
                await self._is_taken.wait()

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
            await self._send(stream_id, *_messages(answer, method.items))
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

    async def _send(self, stream_id: int, *messages: Message) -> None:
        """Send messages as fast as the client reads; the end of them is left to the next flush."""
        data = b"".join(frame(message.SerializeToString()) for message in messages)
        self._unsent_bytes += len(data)
        try:
            await self._send_all(stream_id, memoryview(data))
        finally:
            self._unsent_bytes -= len(data)
            self._is_taken.set()

    async def _send_all(self, stream_id: int, rest: memoryview) -> None:
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


def _messages(answer: Message, items: str | None) -> Sequence[Message]:
    """Return an answer, or the items in a field of the answer, each in a separate message."""
    return [answer] if items is None else [type(answer)(**{items: [item]}) for item in getattr(answer, items)]


def _parse(kind: type[Message], data: bytes) -> Message:
    request = kind()
    try:
        request.ParseFromString(data)
    except DecodeError as error:
        raise CallError(Code.INTERNAL, f"the request is no {kind.DESCRIPTOR.name}: {error}") from error
    return request
