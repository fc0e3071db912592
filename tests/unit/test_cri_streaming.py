"""minit.cri.streaming: frames of SPDY, windows, tokens and channels, with peers that do what they should not."""

from __future__ import annotations

import gc
import os
import socket
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from minit.cri.grpc.framing import CallError, Code
from minit.cri.streaming.channels import WAITING_BYTES, Channel, ChannelReset, ConnectionFailed
from minit.cri.streaming.portforward import MOST_STREAMS, PortForward
from minit.cri.streaming.server import Tokens
from minit.cri.streaming.spdy import SpdyConnection
from minit.cri.streaming.spdyframes import (
    CANCEL,
    DEFAULT_WINDOW_BYTES,
    DICTIONARY,
    INITIAL_WINDOW_SIZE,
    LARGEST_HEADERS_BYTES,
    Data,
    Decoder,
    Encoder,
    Frame,
    GoAway,
    HeadersFrame,
    Ping,
    RstStream,
    Settings,
    SpdyError,
    SynReply,
    SynStream,
    WindowUpdate,
)
from minit.cri.streaming.websocket import WebSocketConnection
from tests.support.spdyclient import SpdyClient, Stream

PATIENCE_SECONDS = 60
LARGE = 10 * DEFAULT_WINDOW_BYTES
PAIR = ("error", "data")

numbers = st.integers(1, (1 << 31) - 1)
words = st.integers(0, (1 << 32) - 1)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
names = texts.filter(lambda text: text == text.lower())
headers = st.dictionaries(names, texts, max_size=5).map(lambda found: tuple(found.items()))
frames: st.SearchStrategy[Frame] = st.one_of(
    st.builds(SynStream, stream=numbers, headers=headers, fin=st.booleans()),
    st.builds(SynReply, stream=numbers, headers=headers, fin=st.booleans()),
    st.builds(HeadersFrame, stream=numbers, headers=headers, fin=st.booleans()),
    st.builds(RstStream, stream=numbers, status=words),
    st.builds(Settings, values=st.lists(st.tuples(st.integers(0, 0xFFFFFF), words), max_size=4).map(tuple)),
    st.builds(Ping, number=words),
    st.builds(GoAway, last=numbers, status=words),
    st.builds(WindowUpdate, stream=numbers, size_bytes=numbers),
    st.builds(Data, stream=numbers, data=st.binary(), fin=st.booleans()),
)


def joined(found: list[Frame]) -> list[Frame]:
    """Return frames with what came of one frame of data in pieces as one, if its end says that it is one."""
    whole: list[Frame] = []
    for frame in found:
        last = whole[-1] if whole else None
        if isinstance(frame, Data) and isinstance(last, Data) and last.stream == frame.stream and not last.fin:
            whole[-1] = Data(stream=frame.stream, data=last.data + frame.data, fin=frame.fin)
        else:
            whole.append(frame)
    return whole


def test_the_dictionary() -> None:
    """It is the one of the protocol, by the checksum that stands at the beginning of every compressed stream of it."""
    assert len(DICTIONARY) == 1423
    assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2


@given(st.lists(frames, max_size=8), st.integers(1, 40))
def test_frames_come_back(sent: list[Frame], size_bytes: int) -> None:
    """What is encoded is decoded as it was, in pieces of whatever size it comes."""
    encoder, decoder = Encoder(), Decoder()
    data = b"".join(map(encoder.encode, sent))
    found = [frame for at in range(0, len(data), size_bytes) for frame in decoder.feed(data[at : at + size_bytes])]
    assert joined(found) == joined(sent)


@given(st.lists(frames, max_size=3), st.binary(max_size=200), st.integers(0, 100))
def test_garbage_is_an_error_or_frames(sent: list[Frame], garbage: bytes, place: int) -> None:
    """Nothing else comes of any bytes, and not much of them is kept."""
    data = bytearray(b"".join(map(Encoder().encode, sent)))
    data[place : place + len(garbage) // 2] = garbage
    decoder = Decoder()
    try:
        for frame in decoder.feed(bytes(data)):
            assert isinstance(frame, Frame)
    except SpdyError as error:
        assert str(error)


def test_headers_are_bounded() -> None:
    """A few bytes that are many uncompressed are refused."""
    data = Encoder().encode(SynStream(stream=1, headers=(("a", "x" * (LARGEST_HEADERS_BYTES + 1)),)))
    assert len(data) < 1000
    with pytest.raises(SpdyError, match="at most"):
        list(Decoder().feed(data))


@pytest.mark.parametrize("head", [b"\x80\x02\0\6\0\0\0\4", b"\x80\3\0\1\0\xff\xff\xff", b"\0\0\0\0\0\0\0\1"])
def test_heads_of_no_frame(head: bytes) -> None:
    """Another version, a control frame of any length, and data of no stream are refused before anything follows."""
    with pytest.raises(SpdyError):
        list(Decoder().feed(head))


class Served:
    """A connection with a client at its other end, and work that a test does with the channels."""

    def __init__(self, connection: SpdyConnection, client: SpdyClient) -> None:
        self.connection = connection
        self.client = client
        self.ended = trio.Event()

    async def channel(self) -> tuple[Channel, Stream]:
        """Return both ends of a new channel."""
        stream = await self.client.open("data")
        channel = await self.connection.opened.receive()
        assert channel.headers == {"streamtype": "data"}
        return channel, stream


@asynccontextmanager
async def served(work: Callable[[], Awaitable[None]] = trio.sleep_forever, most: int = 8) -> AsyncIterator[Served]:
    """Serve a client that receives what comes; `work` ends the connection."""
    near, far = trio.socket.socketpair()
    connection, client = SpdyConnection(trio.SocketStream(near), most), SpdyClient(trio.SocketStream(far))
    found = Served(connection, client)

    async def run() -> None:
        async with trio.SocketStream(near):
            await connection.run(b"", work)
        found.ended.set()

    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.SocketStream(far), trio.open_nursery() as nursery:
            nursery.start_soon(run)
            nursery.start_soon(client.receive)
            yield found
            nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_channel_carries_bytes_both_ways() -> None:
    """They arrive as they were sent, each way has its own end, and then the client may have another stream."""
    async with served(most=1) as pair:
        channel, stream = await pair.channel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.client.write, stream, b"a" * LARGE)
            got = b""
            while len(got) < LARGE:
                got += await channel.receive_some()
        await pair.client.write(stream, b"", fin=True)
        assert await channel.receive_some() == b""
        await channel.send_all(b"b" * LARGE)
        channel.finish()
        assert await stream.whole() == b"b" * LARGE
        assert pair.client.rooms[stream.number] >= LARGE - DEFAULT_WINDOW_BYTES
        assert pair.client.rooms[0] >= LARGE - DEFAULT_WINDOW_BYTES
        await pair.channel()


@pytest.mark.trio
async def test_windows_of_a_client_are_kept() -> None:
    """A client that tells its windows gets no more than fits into them, of one stream or of all."""
    async with served() as pair:
        await pair.client.send(Settings(values=((INITIAL_WINDOW_SIZE, 1000),)))
        channel, stream = await pair.channel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.send_all, b"x" * LARGE)
            await stream.until(b"x" * 1000)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert len(stream.data) == 1000
            await pair.client.send(WindowUpdate(stream=stream.number, size_bytes=LARGE))
            await stream.until(b"x" * DEFAULT_WINDOW_BYTES)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert len(stream.data) == DEFAULT_WINDOW_BYTES
            await pair.client.send(WindowUpdate(stream=0, size_bytes=LARGE))
        await stream.until(b"x" * LARGE)


@pytest.mark.trio
async def test_what_nobody_takes_stays_with_its_client() -> None:
    """A channel without a taker holds up its connection after some of it, until somebody takes that."""
    async with served() as pair:
        channel, stream = await pair.channel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.client.write, stream, b"x" * (20 * LARGE))
            while channel.waiting_bytes <= WAITING_BYTES:
                await trio.sleep(0)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert channel.waiting_bytes <= 2 * WAITING_BYTES
            channel.discard()
        await pair.client.send(Ping(number=7))
        while pair.client.pings != [7]:
            await trio.sleep(0)


@pytest.mark.trio
async def test_a_client_that_goes_while_nobody_takes(autojump_clock: trio.testing.MockClock) -> None:
    """Its end is noticed, though it is behind what was sent before."""
    async with served() as pair:
        channel, stream = await pair.channel()
        await pair.client.write(stream, b"x" * (WAITING_BYTES + 1))
        while channel.waiting_bytes <= WAITING_BYTES:
            await trio.sleep(0)
        await pair.client.stream.aclose()
        await pair.ended.wait()


@pytest.mark.trio
async def test_small_pieces_take_no_more_room() -> None:
    """What waits for its taker is as large as its bytes, in however many pieces they come."""
    async with served() as pair:
        channel, _ = await pair.channel()
        tracemalloc.start()
        try:
            for _ in range(WAITING_BYTES):
                channel.put(b"x")
            assert tracemalloc.get_traced_memory()[0] < 4 * WAITING_BYTES
        finally:
            tracemalloc.stop()
        assert await channel.receive_some() == b"x" * WAITING_BYTES


def tasks() -> int:
    """Return how many tasks there are."""
    waiting, count = [trio.lowlevel.current_root_task()], 0
    while waiting:
        task = waiting.pop()
        assert task is not None
        count += 1
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return count


def of_port(stream: int, name: str, kind: str = "data") -> SynStream:
    """Return one half of a forwarded connection to a port."""
    return SynStream(stream=stream, headers=(("streamtype", kind), ("requestid", name), ("port", "9")))


@pytest.mark.trio
async def test_halves_of_connections_that_are_given_up() -> None:
    """A client that makes streams and resets them has no more of them, and of what waits for them, than it may have."""
    forward = PortForward(ports=(), open_process=os.getpid)
    async with served(lambda: forward.serve(pair.connection.opened), most=MOST_STREAMS) as pair:
        await pair.client.send(Ping(number=1))
        while not pair.client.pings:
            await trio.sleep(0)
        before = tasks()
        for number in range(1, 8 * MOST_STREAMS, 2):
            pair.client.streams[number] = Stream(number)
            await pair.client.send(of_port(number, str(number)), RstStream(stream=number, status=CANCEL))
        await pair.client.send(Ping(number=3))
        while len(pair.client.pings) < 2:
            await trio.sleep(0)
        gc.collect()
        assert tasks() == before
        assert sum(isinstance(each, Channel) for each in gc.get_objects()) <= 2 * MOST_STREAMS


@pytest.mark.trio
@pytest.mark.skipif(os.geteuid() != 0, reason="joins a network namespace, which needs root")
async def test_connecting_ends_with_its_stream() -> None:
    """A connection that nobody accepts is given up when its client resets the stream of it."""
    forward = PortForward(ports=(), open_process=lambda: os.pidfd_open(os.getpid()))
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening, socket.socket() as first:
        port = str(listening.getsockname()[1])
        first.connect(listening.getsockname())  # there is room for one
        async with served(lambda: forward.serve(pair.connection.opened)) as pair:
            before = len(os.listdir("/proc/self/fd"))
            for number in (1, 5, 9, 13):
                headers = [(("streamtype", kind), ("port", port), ("requestid", str(number))) for kind in PAIR]
                for offset, of_half in zip((0, 2), headers):
                    pair.client.streams[number + offset] = Stream(number + offset)
                    await pair.client.send(SynStream(stream=number + offset, headers=of_half))
                while len(os.listdir("/proc/self/fd")) == before:
                    await trio.sleep(0)
                await pair.client.send(*(RstStream(stream=number + offset, status=CANCEL) for offset in (0, 2)))
                while len(os.listdir("/proc/self/fd")) != before:
                    await trio.sleep(0)


@pytest.mark.trio
async def test_a_stream_that_is_reset() -> None:
    """Nothing more comes of it, and nothing more goes; others go on."""
    async with served() as pair:
        channel, stream = await pair.channel()
        other, _ = await pair.channel()
        await pair.client.send(RstStream(stream=stream.number, status=5))
        with pytest.raises(ChannelReset):
            await channel.receive_some()
        with pytest.raises(ChannelReset):
            await channel.send_all(b"x")
        await other.send_all(b"x")


@pytest.mark.trio
async def test_too_many_streams_are_refused() -> None:
    """A client with as many streams as it may have gets no more."""
    async with served(most=1) as pair:
        await pair.channel()
        refused = await pair.client.open("data")
        await refused.whole()
        assert refused.was_reset


@pytest.mark.trio
@pytest.mark.parametrize(
    "frames",
    [
        (SynStream(stream=2, headers=()),),
        (SynStream(stream=3, headers=()), SynStream(stream=1, headers=())),
        (Data(stream=1, data=b"x"),),
        (Settings(values=((INITIAL_WINDOW_SIZE, 1 << 31),)),),
        (SynStream(stream=1, headers=()), *[WindowUpdate(stream=1, size_bytes=(1 << 31) - 1)] * 2),
    ],
)
async def test_frames_that_end_the_connection(frames: tuple[Frame, ...]) -> None:
    """A client that breaks the protocol is disconnected."""
    async with served() as pair:
        await pair.client.send(*frames)
        await pair.ended.wait()


@pytest.mark.trio
async def test_a_client_that_asks_and_never_reads() -> None:
    """One that provokes answers without end is disconnected."""
    near, far = trio.socket.socketpair()
    connection = SpdyConnection(trio.SocketStream(near), 8)
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.SocketStream(far) as client, trio.open_nursery() as nursery:

            async def run() -> None:
                async with trio.SocketStream(near):
                    await connection.run(b"", trio.sleep_forever)

            nursery.start_soon(run)
            pings = Encoder().encode(Ping(number=1)) * 10_000
            with pytest.raises(trio.BrokenResourceError):
                while True:
                    await client.send_all(pings)


@pytest.mark.trio
async def test_the_end_of_the_work_ends_the_connection() -> None:
    """The client is told to go, gets all that was sent before, and the connection ends with it."""
    begun = trio.Event()
    async with served(begun.wait) as pair:
        channel, stream = await pair.channel()
        await channel.send_all(b"x" * 100_000)
        channel.finish()
        begun.set()
        await pair.client.is_over.wait()
        assert pair.client.was_told_to_go
        assert bytes(stream.data) == b"x" * 100_000
        await pair.client.stream.aclose()
        await pair.ended.wait()


@pytest.mark.trio
async def test_an_idle_connection_ends(autojump_clock: trio.testing.MockClock) -> None:
    """Nothing for four hours is enough."""
    near, far = trio.socket.socketpair()
    async with trio.SocketStream(near) as stream, trio.SocketStream(far):
        await SpdyConnection(stream, 8).run(b"", trio.sleep_forever)
    assert trio.current_time() >= 4 * 3600


@pytest.mark.trio
async def test_tokens_are_for_one_use_within_a_minute(autojump_clock: trio.testing.MockClock) -> None:
    """A token is taken once, not after its time, and no more are kept than some."""
    tokens = Tokens[int]()
    first, second = tokens.put(1), tokens.put(2)
    assert tokens.take(first) == 1
    assert tokens.take(first) is None
    assert tokens.take(first[:-1]) is None
    await trio.sleep(61)
    assert tokens.take(second) is None
    for number in range(1000):
        tokens.put(number)
    with pytest.raises(CallError) as caught:
        tokens.put(0)
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    await trio.sleep(61)
    assert len({tokens.put(number) for number in range(1000)}) == 1000


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_a_websocket_takes_any_bytes(pieces: list[bytes]) -> None:
    """Bytes are messages, or the end of the connection."""

    async def feed() -> None:
        near, far = trio.socket.socketpair()
        async with trio.SocketStream(near) as stream, trio.SocketStream(far):
            connection = WebSocketConnection(stream, {0: {}, 3: {}, 4: {}})
            request = [(b"Host", b"a"), (b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
            request += [(b"Sec-WebSocket-Version", b"13"), (b"Sec-WebSocket-Key", b"AAAAAAAAAAAAAAAAAAAAAA==")]
            request += [(b"Sec-WebSocket-Protocol", b"v5.channel.k8s.io")]
            connection.accept(request, "/exec/x", "v5.channel.k8s.io")
            try:
                for piece in pieces:
                    connection.receive(piece)
            except ConnectionFailed:
                pass

    trio.run(feed)
