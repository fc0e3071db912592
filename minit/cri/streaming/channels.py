"""
Channels: streams of bytes, in both directions, that share one connection.

Data of a client waits for the taker of the channel, at most some 64 KiB: then nothing more is read of the whole
connection. Data for a client that does not read waits with the sender. So no memory but the client's grows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from minit.base.errors import MinitError

WAITING_BYTES = 1 << 16
"""How much of one channel waits for its taker before nothing more is read."""

_RECEIVE_BYTES = 1 << 16
_PIECE_BYTES = 1 << 15
_OUTBOX_BYTES = 1 << 17
# Answers that nobody asked to wait for: of a client that provokes more of them without reading any, it is enough.
_LARGEST_OUTBOX_BYTES = 1 << 20
_BEAT_SECONDS = 2.0
_IDLE_SECONDS = 4 * 3600.0
_LINGER_SECONDS = 10.0


class ChannelReset(Exception):
    """The client has given up this channel alone."""


class ConnectionFailed(MinitError):
    """The client has made an error that ends the connection."""


class Channel:
    """One stream of bytes of a connection; `headers` tell the purpose."""

    def __init__(self, connection: Connection, number: int, headers: dict[str, str]) -> None:
        self.number = number
        self.headers = headers
        self.has_finished = self.is_reset = False
        self.has_ended = False
        self._connection = connection
        # Not pieces as they come: many small ones would be many times as large.
        self._waiting = bytearray()
        self._arrived = trio.lowlevel.ParkingLot()
        self._is_discarded = False
        self._until_reset = trio.CancelScope()

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes that wait for the taker."""
        return len(self._waiting)

    async def receive_some(self) -> bytes:
        """Return what has come, as soon as there is something; empty at its end. ChannelReset if it was given up."""
        while not self._waiting:
            if self.is_reset:
                raise ChannelReset
            if self.has_ended:
                return b""
            await self._arrived.park()
        data = bytes(self._waiting)
        self._waiting.clear()
        self._connection.on_taken(self, len(data))
        return data

    async def send_all(self, data: bytes) -> None:
        """Send bytes as fast as the client takes them. ChannelReset if it wants none."""
        await self._connection.send(self, data)

    def finish(self) -> None:
        """Send the end of the data; again is no error."""
        if not self.has_finished and not self.is_reset:
            self.has_finished = True
            self._connection.end(self)

    def discard(self) -> None:
        """Take nothing any more: later data is dropped."""
        self._is_discarded = True
        size_bytes = self.waiting_bytes
        self._waiting.clear()
        self._connection.on_taken(self, size_bytes)

    def give_up(self) -> None:
        """Take nothing, and send nothing."""
        self.discard()
        self.finish()

    def put(self, data: bytes, *, end: bool = False) -> None:
        """Have bytes of the client wait for the taker."""
        if data and self._is_discarded:
            self._connection.on_taken(self, len(data))
        elif data and not self.has_ended:
            self._waiting += data
        self.has_ended = self.has_ended or end
        self._arrived.unpark_all()

    @contextmanager
    def until_reset(self) -> Iterator[None]:
        """Cancel what is done within when the client gives up this channel."""
        with trio.CancelScope() as self._until_reset:
            if self.is_reset:
                self._until_reset.cancel()
            yield

    def put_reset(self) -> None:
        """Have nothing more come, and nothing more go."""
        self.is_reset = True
        self._until_reset.cancel()
        self.discard()
        self._arrived.unpark_all()


class Connection(ABC):
    """A connection with channels; `channels` are the open channels by number."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.channels: dict[int, Channel] = {}
        self._stream = stream
        self._outbox = bytearray()
        self._has_said_all = False
        self._written = trio.lowlevel.ParkingLot()
        self._work = trio.lowlevel.ParkingLot()
        self._taken = trio.lowlevel.ParkingLot()
        self._idle = trio.CancelScope()

    async def run(self, first: bytes, work: Callable[[], Awaitable[None]]) -> None:
        """
        Do some work with the channels and close the connection; the work is cancelled when the client is gone.

        `first` are bytes that came behind the request for this connection.
        """
        try:
            with self._idle:
                self._touch()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._finish, work, nursery.cancel_scope)
                    await self._read(first)
                    nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError, ConnectionFailed):
            pass

    async def send(self, channel: Channel, data: bytes) -> None:
        """Send bytes of a channel, in pieces for which the client has room."""
        rest = memoryview(data)
        while rest:
            if channel.is_reset:
                raise ChannelReset
            size_bytes = min(len(rest), _PIECE_BYTES, self.window_bytes(channel))
            if size_bytes <= 0 or len(self._outbox) >= _OUTBOX_BYTES:
                await self._written.park()
                continue
            self.queue(self.frame(channel, bytes(rest[:size_bytes])))
            rest = rest[size_bytes:]

    def queue(self, data: bytes) -> None:
        """Queue bytes, without waiting. ConnectionFailed if far too many wait already."""
        if self._has_said_all:
            return
        if len(self._outbox) > _LARGEST_OUTBOX_BYTES:
            raise ConnectionFailed("the client does not read the answers to what it sends")
        self._outbox += data
        self._work.unpark_all()

    def on_room(self) -> None:
        """Have senders look again for room."""
        self._written.unpark_all()

    def on_taken(self, channel: Channel, size_bytes: int) -> None:
        """Note that somebody has taken bytes of a channel."""
        self._taken.unpark_all()

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Give received bytes to the channels. ConnectionFailed for bytes that cannot be understood."""

    @abstractmethod
    def frame(self, channel: Channel, data: bytes) -> bytes:
        """Return bytes of a channel in the form for sending."""

    @abstractmethod
    def end(self, channel: Channel) -> None:
        """Send the end of a channel."""

    @abstractmethod
    def beat(self) -> None:
        """Send a message without meaning, which is not answered."""

    @abstractmethod
    def close(self) -> None:
        """Send that nothing follows."""

    def window_bytes(self, channel: Channel) -> int:
        """Return for how many bytes of a channel the client has room."""
        return _PIECE_BYTES

    async def _finish(self, work: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
        await work()
        for channel in self.channels.values():
            channel.discard()
        self.close()
        self._has_said_all = True  # or an answer to what still comes would meet the end
        # A socket that is closed before all was read resets the connection, and what was sent is lost with it.
        with trio.move_on_after(_LINGER_SECONDS):
            while self._outbox:
                await self._written.park()
            await self._stream.send_eof()
            await trio.sleep_forever()
        scope.cancel()

    async def _write(self) -> None:
        while True:
            if not self._outbox:
                await self._work.park()
            data = bytes(self._outbox)
            await self._stream.send_all(data)
            del self._outbox[: len(data)]
            self._written.unpark_all()
            self._touch()

    async def _read(self, data: bytes | bytearray) -> None:
        while True:
            self.receive(bytes(data))
            while any(channel.waiting_bytes > WAITING_BYTES for channel in self.channels.values()):
                await self._wait_for_taker()
            data = await self._stream.receive_some(_RECEIVE_BYTES)
            if not data:
                return
            self._touch()

    async def _wait_for_taker(self) -> None:
        """
        Return when somebody has taken something, or after some time.

        The end of a client that is gone may be behind all that it has sent, where TCP has no room for either. Its host
        answers whatever comes from here with a reset, so that sending fails the next time.
        """
        with trio.move_on_after(_BEAT_SECONDS):
            await self._taken.park()
            return
        if not self._outbox:
            self.beat()

    def _touch(self) -> None:
        self._idle.deadline = trio.current_time() + _IDLE_SECONDS
