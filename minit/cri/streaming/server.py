"""
The streaming server: requests of HTTP/1.1 with a token in the path. A request becomes a connection with channels.

A token holds the content of a call of gRPC until the client comes for the streams. Nothing but tokens protects the
server, so it listens at the loopback interface alone by default. A client without a token has no more than a request:
few requests at a time, each for a short time, and a new request displaces the oldest, so that silent clients keep
nobody out.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from typing import Generic, TypeVar

import h11
import trio

from minit.base.errors import MinitError, describe
from minit.cri.grpc.framing import CallError, Code
from minit.cri.streaming import portforward, remotecommand, websocket
from minit.cri.streaming.channels import ConnectionFailed
from minit.cri.streaming.portforward import PortForward
from minit.cri.streaming.remotecommand import Ready, RemoteCommand, take_streams
from minit.cri.streaming.spdy import SpdyConnection
from minit.cri.streaming.websocket import WebSocketConnection

_MOST_REQUESTS = 128
_REQUEST_SECONDS = 10.0
_READY_SECONDS = 30.0
_STREAMS_SECONDS = 30.0
_RECEIVE_BYTES = 1 << 14
_SPDY = "spdy/3.1"
_WEBSOCKET = "websocket"
_VERSION_HEADER = "x-stream-protocol-version"
_ACCEPTED_HEADER = "X-Accepted-Stream-Protocol-Versions"

Wanted = RemoteCommand | PortForward
"""What a token is for."""

_T = TypeVar("_T")

_TOKEN_BYTES = 16
_SECONDS = 60.0
_MOST = 1000


class _Refused(Exception):
    """A request that is answered with a status and a line."""

    def __init__(self, status: int, reason: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


class _Request:
    """A request for a connection: path, headers by name, and the bytes behind the request."""

    def __init__(self, request: h11.Request, rest: bytes) -> None:
        self.method = request.method.decode()
        self.path = request.target.decode("ascii")
        self.raw = [(bytes(name), bytes(value)) for name, value in request.headers]
        self.rest = rest
        self._headers: dict[str, list[str]] = {}
        for name, value in self.raw:
            self._headers.setdefault(name.decode().lower(), []).extend(
                word.strip() for word in value.decode("latin-1").split(",")
            )

    def words(self, name: str) -> list[str]:
        """Return the words of a header, which stand in one or in several."""
        return [word for word in self._headers.get(name, []) if word]

    def upgrade(self) -> str:
        """Return the protocol that the connection should have, in lower case; empty for none."""
        has_upgrade = "upgrade" in map(str.lower, self.words("connection"))
        return next(map(str.lower, self.words("upgrade")), "") if has_upgrade else ""


class StreamingServer:
    """Serves all clients with a token of `tokens`; `report` is told of errors in minit itself."""

    def __init__(self, tokens: Tokens[Wanted], report: Callable[[BaseException], None]) -> None:
        self._tokens = tokens
        self._report = report
        self._requests: dict[trio.SocketStream, trio.CancelScope] = {}

    async def serve(self, listener: trio.SocketListener) -> None:
        """Serve all that connect."""
        await trio.serve_listeners(self._serve_one, [listener])

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        async with stream:
            try:
                await self._serve_client(stream)
            except (trio.BrokenResourceError, ConnectionFailed):
                pass  # it has gone, or does not deserve more
            except Exception as error:  # an error in minit itself ends no other connection
                self._report(error)

    async def _serve_client(self, stream: trio.SocketStream) -> None:
        http = h11.Connection(h11.SERVER)
        scope = self._requests[stream] = trio.CancelScope(deadline=trio.current_time() + _REQUEST_SECONDS)
        if len(self._requests) > _MOST_REQUESTS:
            self._requests.pop(next(iter(self._requests))).cancel()
        async with AsyncExitStack() as stack:
            try:
                with scope:
                    try:
                        request = await _receive_request(http, stream)
                        wanted = self._wanted(request)
                        self._requests.pop(stream, None)  # it is no stranger any more
                        scope.deadline = trio.current_time() + _READY_SECONDS
                        ready = await _get_ready(wanted, stack)
                        version, connection = await _connect(http, stream, request, wanted)
                    except _Refused as refused:
                        await _refuse(http, stream, refused)
                        return
            finally:
                self._requests.pop(stream, None)
            if not scope.cancelled_caught:
                await _serve_wanted(connection, wanted, ready, version, request.rest)

    def _wanted(self, request: _Request) -> Wanted:
        if request.method not in ("GET", "POST"):
            raise _Refused(405, "expected GET or POST", [("Allow", "GET, POST")])
        _, _, token = request.path.partition("?")[0].rpartition("/")
        wanted = self._tokens.take(token)
        if wanted is None:
            raise _Refused(404, "there is no such stream, or not any more")
        return wanted


async def _receive_request(http: h11.Connection, stream: trio.SocketStream) -> _Request:
    """Return the only request of a connection. BrokenResourceError if the client leaves before."""
    request: h11.Request | None = None
    while True:
        try:
            event = http.next_event()
        except h11.RemoteProtocolError as error:
            raise _Refused(error.error_status_hint, str(error)) from error
        if event is h11.NEED_DATA:
            data = await stream.receive_some(_RECEIVE_BYTES)
            if not data:
                raise trio.BrokenResourceError
            http.receive_data(data)
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.EndOfMessage):
            assert request is not None
            return _Request(request, http.trailing_data[0])
        else:
            raise _Refused(400, "expected a request without a body")


async def _get_ready(wanted: Wanted, stack: AsyncExitStack) -> Ready | None:
    """Have what a client wants to be connected to be ready until `stack` is left; None for ports."""
    if isinstance(wanted, PortForward):
        return None
    try:
        return await stack.enter_async_context(wanted.get_ready())
    except (MinitError, OSError) as error:
        raise _Refused(500, describe(error)) from error


async def _connect(
    http: h11.Connection, stream: trio.SocketStream, request: _Request, wanted: Wanted
) -> tuple[int, SpdyConnection | WebSocketConnection]:
    """Agree on a protocol, and return its version and the connection of it."""
    kind = request.upgrade()
    if kind == _SPDY:
        is_command = isinstance(wanted, RemoteCommand)
        known = remotecommand.PROTOCOLS if is_command else portforward.PROTOCOLS
        chosen = _choose(request.words(_VERSION_HEADER), known)
        answer = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", chosen)]
        switching = http.send(h11.InformationalResponse(status_code=101, headers=answer))
        await stream.send_all(switching or b"")
        most = remotecommand.MOST_STREAMS if is_command else portforward.MOST_STREAMS
        return known[chosen], SpdyConnection(stream, most)
    if kind == _WEBSOCKET:
        is_command = isinstance(wanted, RemoteCommand)
        offered = request.words("sec-websocket-protocol")
        chosen = _choose(offered, websocket.PROTOCOLS if is_command else portforward.WEBSOCKET_PROTOCOLS)
        version = websocket.PROTOCOLS[chosen]
        connection = WebSocketConnection(stream, _websocket_channels(wanted, version))
        connection.accept(request.raw, request.path, chosen)
        return version, connection
    raise _Refused(400, "expected an upgrade to SPDY/3.1 or to a WebSocket")


def _websocket_channels(wanted: Wanted, version: int) -> dict[int, dict[str, str]]:
    if isinstance(wanted, RemoteCommand):
        return {websocket.NAMES.index(name): {"streamtype": name} for name in wanted.channels(version)}
    if not 0 < len(wanted.ports) <= portforward.MOST_PORTS:
        raise _Refused(400, f"expected a call for up to {portforward.MOST_PORTS} ports: a WebSocket names none")
    return wanted.channels()


def _choose(offered: Sequence[str], known: Collection[str]) -> str:
    """Return the first protocol that is known of those that a client offers."""
    if not offered:
        raise _Refused(400, "expected the protocols of streams that the client knows")
    chosen = next((name for name in offered if name in known), None)
    if chosen is None:
        accepted = ", ".join(known)
        raise _Refused(403, f"none of the protocols is known, but {accepted}", [(_ACCEPTED_HEADER, accepted)])
    return chosen


async def _serve_wanted(
    connection: SpdyConnection | WebSocketConnection, wanted: Wanted, ready: Ready | None, version: int, rest: bytes
) -> None:
    async def work() -> None:
        if isinstance(wanted, PortForward):
            if isinstance(connection, WebSocketConnection):
                await wanted.serve_ports(connection.channels)
            else:
                await wanted.serve(connection.opened)
            return
        assert ready is not None
        if isinstance(connection, WebSocketConnection):
            channels = {channel.headers["streamtype"]: channel for channel in connection.channels.values()}
            await wanted.serve(ready, channels, version)
        else:
            channels = {}
            with trio.move_on_after(_STREAMS_SECONDS):
                channels = await take_streams(connection.opened, wanted.channels(version))
            if channels:
                await wanted.serve(ready, channels, version)

    await connection.run(rest, work)


async def _refuse(http: h11.Connection, stream: trio.SocketStream, refused: _Refused) -> None:
    body = f"{refused}\n".encode()
    headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(body))), ("Connection", "close")]
    response = h11.Response(status_code=refused.status, headers=[*headers, *refused.headers])
    parts = [http.send(event) for event in (response, h11.Data(data=body), h11.EndOfMessage())]
    await stream.send_all(b"".join(part for part in parts if part))


class Tokens(Generic[_T]):
    """
    Values by tokens that nobody guesses, each for one use within a minute.

    Tokens are looked up by digest: the time of a look-up tells nothing about a token.
    """

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[float, _T]] = {}

    def put(self, value: _T) -> str:
        """Keep a value and return the token; CallError if too many are kept already."""
        now = trio.current_time()
        self._kept = {digest: one for digest, one in self._kept.items() if one[0] > now}
        if len(self._kept) >= _MOST:
            raise CallError(Code.RESOURCE_EXHAUSTED, f"{_MOST} streams were asked for that nobody has come for yet")
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._kept[_digest(token)] = (now + _SECONDS, value)
        return token

    def take(self, token: str) -> _T | None:
        """Return the value of a token, None for a token that is unknown, taken, or expired."""
        until, value = self._kept.pop(_digest(token), (0.0, None))
        return value if until > trio.current_time() else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
