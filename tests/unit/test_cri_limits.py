"""minit.cri.grpc.server: clients that send what they should not, or nothing, and what others notice of it."""

from __future__ import annotations

import gc
import struct
import sys
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from google.protobuf.message import Message
from h2.config import H2Configuration
from h2.connection import H2Connection
from hpack import Encoder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minit.cri.api.cri_pb2 import ExecSyncRequest, ExecSyncResponse, VersionRequest, VersionResponse
from minit.cri.grpc import server
from minit.cri.grpc.framing import Code, frame
from minit.cri.grpc.server import Method, Server
from tests.support.campaign import campaign
from tests.support.grpcclient import GrpcClient, grpc_client

PATIENCE_SECONDS = 60
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
LARGE = 3 << 20
FRAME_BYTES = 16384
HEADERS = [
    *((":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", "/t.T/Version")),
    ("content-type", "application/grpc"),
]


class Served:
    """A server, and the errors in itself that it has met."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.begun = 0
        self.go_on = trio.Event()
        methods = {
            "/t.T/Version": Method(request=VersionRequest, answer=self.version),
            "/t.T/Exec": Method(request=ExecSyncRequest, answer=self.version),
            "/t.T/Large": Method(request=VersionRequest, answer=self.large),
            "/t.T/Stay": Method(request=VersionRequest, answer=self.stay),
            "/t.T/Wait": Method(request=VersionRequest, answer=self.wait),
        }
        self.server = Server(methods, self.failures.append)

    async def version(self, request: Message) -> Message:
        """Answer at once."""
        return VersionResponse(version="1")

    async def large(self, request: Message) -> Message:
        """Answer with more than a window holds."""
        return ExecSyncResponse(stdout=b"x" * LARGE)

    async def stay(self, request: Message) -> Message:
        """Go on when the caller gives up, as calls do that change something."""
        self.begun += 1
        with trio.CancelScope(shield=True):
            await self.go_on.wait()
        return VersionResponse()

    async def wait(self, request: Message) -> Message:
        """Wait, as calls do that stop something."""
        self.begun += 1
        await self.go_on.wait()
        return VersionResponse()

    @asynccontextmanager
    async def connections(self) -> AsyncIterator[_Connect]:
        """Take connections, all of which end with the block."""
        async with trio.open_nursery() as nursery:
            try:
                yield _Connect(self.server, nursery)
            finally:
                self.go_on.set()
                nursery.cancel_scope.cancel()

    async def check(self, nursery_of: _Connect) -> None:
        """Check that another client is served."""
        async with grpc_client(nursery_of.stream()) as client:
            assert (await client.call("/t.T/Version", VersionRequest())).code == Code.OK


class _Connect:
    def __init__(self, served: Server, nursery: trio.Nursery) -> None:
        self._server = served
        self._nursery = nursery

    def stream(self) -> trio.abc.Stream:
        """Return the client's end of a new connection."""
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._server.serve, theirs)
        return ours


@pytest.fixture
def served() -> Served:
    """A server that somebody can connect to."""
    return Served()


async def is_closed(stream: trio.abc.Stream) -> bool:
    """Tell whether a connection is closed by the server, after what there is to read."""
    try:
        with trio.move_on_after(0.001):
            while await stream.receive_some(1 << 16):
                pass
            return True
    except trio.BrokenResourceError:
        return True
    return False


@pytest.mark.trio
async def test_silent_clients(served: Served, autojump_clock: trio.testing.MockClock) -> None:
    """They have half a minute to greet; more of them than may be make room for each other, and for no kubelet."""
    async with served.connections() as connect, grpc_client(connect.stream()) as kubelet:
        assert (await kubelet.call("/t.T/Version", VersionRequest())).code == Code.OK
        streams = [connect.stream()]
        for _ in range(999):
            await trio.testing.wait_all_tasks_blocked()
            streams.append(connect.stream())
        await trio.testing.wait_all_tasks_blocked()
        assert sum([not await is_closed(stream) for stream in streams]) == server.MOST_CONNECTIONS - 1
        assert (await kubelet.call("/t.T/Version", VersionRequest())).code == Code.OK
        await served.check(connect)
        await trio.sleep(server.REQUEST_SECONDS + 1)
        assert all([await is_closed(stream) for stream in streams])
        assert (await kubelet.call("/t.T/Version", VersionRequest())).code == Code.OK
    assert served.failures == []


@pytest.mark.trio
async def test_calls_that_take_all_places(served: Served, autojump_clock: trio.testing.MockClock) -> None:
    """Nobody who waits for an answer is sent away for a new client; a place is given back with its connection."""
    async with served.connections() as connect, trio.open_nursery() as nursery:
        streams = [connect.stream() for _ in range(server.MOST_CONNECTIONS)]
        for stream in streams:
            client = GrpcClient(stream)
            client.h2.initiate_connection()
            await client.start("/t.T/Stay", frame(b""))
            nursery.start_soon(client.receive)
        await trio.testing.wait_all_tasks_blocked()
        assert await is_closed(connect.stream())
        served.go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        await served.check(connect)
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_half_of_a_request(served: Served, autojump_clock: trio.testing.MockClock) -> None:
    """A request that does not come to its end is refused, and the connection goes on."""
    async with served.connections() as connect, grpc_client(connect.stream()) as client:
        _, answer = await client.start("/t.T/Version", b"\0\0\0", end=False)
        await answer.ended.wait()
        assert (answer.code, trio.current_time()) == (Code.DEADLINE_EXCEEDED, server.REQUEST_SECONDS)
        assert answer.message == "a request is sent within 30 s"
        assert (await client.call("/t.T/Version", VersionRequest())).code == Code.OK


@pytest.mark.trio
async def test_many_large_requests(
    served: Served, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that want too much have no more than their shares; small requests are answered meanwhile."""
    monkeypatch.setattr(server, "MOST_BYTES", 16 << 20)
    tracemalloc.start()
    async with served.connections() as connect, trio.open_nursery() as nursery:
        answers = []
        for _ in range(10):
            client = GrpcClient(connect.stream())
            client.h2.initiate_connection()
            nursery.start_soon(client.receive)
            for _ in range(3):
                _, answer = await client.start("/t.T/Exec", frame(b"x" * LARGE)[:-1], end=False)
                answers.append(answer)
        await trio.testing.wait_all_tasks_blocked()
        assert served.server.taken_bytes <= 2 * server.MOST_BYTES
        assert tracemalloc.get_traced_memory()[1] < 4 * server.MOST_BYTES
        refused = [answer for answer in answers if answer.ended.is_set()]
        assert {(answer.code, answer.message) for answer in refused} == {
            (Code.RESOURCE_EXHAUSTED, "too much is being asked for: try again later")
        }
        await served.check(connect)
        await trio.sleep(server.REQUEST_SECONDS + 1)
        assert served.server.taken_bytes == 0
        async with grpc_client(connect.stream()) as client:
            large = ExecSyncRequest(cmd=["x" * LARGE])
            assert (await client.call("/t.T/Exec", large)).code == Code.OK
        nursery.cancel_scope.cancel()
    tracemalloc.stop()


@pytest.mark.trio
async def test_a_connection_of_many_calls(served: Served) -> None:
    """It takes no more memory for having made them: a kubelet's has some every second for as long as its node is up."""

    async def call(client: GrpcClient, count: int) -> int:
        for _ in range(count):
            await client.call("/t.T/Version", VersionRequest())
            client.answers.clear()
        gc.collect()
        return sys.getallocatedblocks()

    more = 2 * server.MOST_ENDED_CALLS
    async with served.connections() as connect, grpc_client(connect.stream()) as client:
        before = await call(client, 2 * more)  # so many are there at most before those that ended are forgotten
        assert await call(client, more) - before < more


@pytest.mark.trio
async def test_thousands_of_calls_that_wait(served: Served) -> None:
    """None of them is refused, on one connection or several, and others are answered meanwhile, on each of these."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with served.connections() as connect, trio.open_nursery() as nursery:
            clients = [GrpcClient(connect.stream()) for _ in range(3)]
            waiting = []
            for client, count in zip(clients, (2000, 200, 200), strict=True):
                client.h2.initiate_connection()
                nursery.start_soon(client.receive)
                waiting += [(await client.start("/t.T/Wait", frame(b"")))[1] for _ in range(count)]
            for client in clients:
                lists = [(await client.start("/t.T/Version", frame(b"")))[1] for _ in range(150)]
                for answer in lists:
                    await answer.ended.wait()
                assert {answer.code for answer in lists} == {Code.OK}
            assert served.begun == len(waiting)
            assert not any(answer.ended.is_set() for answer in waiting)
            served.go_on.set()
            for answer in waiting:
                await answer.ended.wait()
            assert {answer.code for answer in waiting} == {Code.OK}
            nursery.cancel_scope.cancel()
    assert served.server.taken_bytes == 0


@pytest.mark.trio
async def test_calls_within_the_limit(
    served: Served, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever hears of the end of a call may make the next one at once, though there is no room for two."""
    monkeypatch.setattr(server, "MOST_BYTES", server.CALL_BYTES + 1000)
    ours, theirs = trio.testing.memory_stream_pair()
    deliver = theirs.send_stream.send_all_hook
    assert deliver is not None

    async def deliver_and_go_on_later() -> None:
        await deliver()
        await trio.sleep(1)

    theirs.send_stream.send_all_hook = deliver_and_go_on_later
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.server.serve, theirs)
        async with grpc_client(ours) as client:
            codes = {(await client.call("/t.T/Version", VersionRequest())).code for _ in range(10)}
            assert codes == {Code.OK}
            await client.start("/t.T/Wait", frame(b""))
            assert (await client.call("/t.T/Version", VersionRequest())).code == Code.RESOURCE_EXHAUSTED


@pytest.mark.trio
async def test_calls_that_are_made_to_be_given_up(
    served: Served, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that go on take their memory: resets begin no more of them than there is room for."""
    monkeypatch.setattr(server, "MOST_BYTES", 100 * server.CALL_BYTES)
    async with served.connections() as connect, grpc_client(connect.stream()) as client:
        for _ in range(300):
            stream, answer = await client.start("/t.T/Stay", frame(b""))
            await trio.sleep(1)
            if not answer.ended.is_set():
                client.h2.reset_stream(stream)
                await client.flush()
        assert 90 < served.begun < 100
        await served.check(connect)
        served.go_on.set()
        await trio.sleep(1)
        assert served.server.taken_bytes == 0
        assert (await client.call("/t.T/Version", VersionRequest())).code == Code.OK


@pytest.mark.trio
async def test_resets_one_after_the_other(served: Served, autojump_clock: trio.testing.MockClock) -> None:
    """Whoever makes calls only to give them up is read from slowly."""
    async with served.connections() as connect, grpc_client(connect.stream()) as client:
        for _ in range(4000):
            stream = client.h2.get_next_available_stream_id()
            client.h2.send_headers(stream, HEADERS)
            client.h2.reset_stream(stream)
        await client.flush()
        await served.check(connect)
        assert (await client.call("/t.T/Version", VersionRequest())).code == Code.OK
        assert trio.current_time() > 1
    assert served.server.taken_bytes == 0


@pytest.mark.trio
async def test_streams_that_are_only_opened(
    served: Served, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are as many as there is room for, half a minute long, and a share of it is there for others."""
    monkeypatch.setattr(server, "MOST_BYTES", 200 * server.CALL_BYTES)
    async with served.connections() as connect, grpc_client(connect.stream()) as client:
        opened = [(await client.start("/t.T/Version", b"", end=False))[1] for _ in range(1000)]
        await trio.sleep(1)
        assert 190 < sum(not answer.ended.is_set() for answer in opened) < 200
        async with grpc_client(connect.stream()) as other:
            waiting = [(await other.start("/t.T/Wait", frame(b"")))[1] for _ in range(90)]
            assert (await other.call("/t.T/Version", VersionRequest())).code == Code.OK
            assert not any(answer.ended.is_set() for answer in waiting)
        await trio.sleep(server.REQUEST_SECONDS + 1)
        assert {answer.code for answer in opened} == {Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED}
        assert served.server.taken_bytes == 0


@pytest.mark.trio
async def test_answers_that_nobody_takes(served: Served, autojump_clock: trio.testing.MockClock) -> None:
    """They take the memory of a few, however many are asked for, and those of other connections come."""
    tracemalloc.start()
    async with served.connections() as connect, grpc_client(connect.stream()) as client:
        client.reads_answers = False
        for _ in range(500):
            await client.start("/t.T/Large", frame(b""))
        await trio.testing.wait_all_tasks_blocked()
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
        await served.check(connect)
    tracemalloc.stop()


@pytest.mark.trio
async def test_a_client_that_reads_no_answer(served: Served, autojump_clock: trio.testing.MockClock) -> None:
    """An answer that nobody takes ends its call, and bytes that nobody takes end the connection."""
    async with served.connections() as connect:
        async with grpc_client(connect.stream()) as client:
            client.reads_answers = False
            answer = await client.call("/t.T/Large", VersionRequest())
            assert (answer.code, answer.message) == (Code.CANCELLED, "the caller does not read the answer")
        left, right = trio.testing.lockstep_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.server.serve, right)
            with trio.fail_after(server.STALL_SECONDS + 1):
                with pytest.raises(trio.BrokenResourceError):
                    await left.send_all(PREFACE + NO_SETTINGS)
                    await trio.sleep(server.STALL_SECONDS)
                    await left.send_all(NO_SETTINGS)
    assert served.failures == []


def client_bytes(*, bomb: bytes = b"") -> bytes:
    """Return what a client sends that makes a call."""
    client = H2Connection(H2Configuration(header_encoding="utf-8"))
    client.initiate_connection()
    client.send_headers(1, HEADERS)
    return client.data_to_send() + bomb


def h2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2."""
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


def header_frames(headers: list[tuple[str, str]]) -> bytes:
    """Return headers of a call in frames of the default size, without Huffman's code, which takes seconds to make."""
    block = Encoder().encode(headers, huffman=False)
    pieces = [block[place : place + FRAME_BYTES] for place in range(0, len(block), FRAME_BYTES)]
    last = len(pieces) - 1
    return b"".join(h2_frame(9 if n else 1, 4 if n == last else 0, 1, piece) for n, piece in enumerate(pieces))


HEADERS_BEGIN = h2_frame(1, 0, 3, b"\x82")
BOMBS = {
    "header list": PREFACE + NO_SETTINGS + header_frames([*HEADERS, ("x", "y" * 100_000)]),
    "continuations": client_bytes(bomb=HEADERS_BEGIN + h2_frame(9, 0, 3, b"\x82" * 16000) * 200),
    "empty continuations": client_bytes(bomb=HEADERS_BEGIN + h2_frame(9, 0, 3, b"") * 100_000),
    # A name in the table, of 4,000 letters, named by one byte each.
    "references": client_bytes(bomb=h2_frame(1, 4, 3, b"\x40\x01x\x7f\xa1\x1e" + b"y" * 4000 + b"\xbe" * 10_000)),
    "not UTF-8": client_bytes(bomb=h2_frame(1, 4, 3, b"\0\1\xff\1\xff")),
    "a path not UTF-8": client_bytes(bomb=h2_frame(1, 4, 3, b"\x83\x86\x04\2/\xff\1\1x")),
    "large frame": client_bytes(bomb=b"\xff\xff\xff\0\0\0\0\0\1" + b"x" * 100_000),
    "window": client_bytes(bomb=h2_frame(8, 0, 0, b"\x7f\xff\xff\xff") * 2),
    "pings": client_bytes(bomb=h2_frame(6, 0, 0, b"12345678") * 1000),
    "settings": client_bytes(bomb=NO_SETTINGS * 1000),
    "resets": client_bytes(bomb=h2_frame(3, 0, 1, b"\0\0\0\1") * 1000),
    "half": client_bytes()[:-3],
}


async def attack(served: Served, data: bytes) -> None:
    """Send bytes while others are served, and leave."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with served.connections() as connect:
            stream = connect.stream()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(is_closed, stream)
                await stream.send_all(data)
            await served.check(connect)
            await stream.aclose()
            await trio.testing.wait_all_tasks_blocked()
    assert served.failures == []


@pytest.mark.trio
@pytest.mark.parametrize("name", BOMBS)
async def test_bombs(served: Served, name: str) -> None:
    """They are held up by limits: no error in minit itself, no memory to speak of, and others are served."""
    tracemalloc.start()
    await attack(served, BOMBS[name])
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 30 << 20


FRAMES = st.builds(
    h2_frame,
    st.integers(0, 12),
    st.integers(0, 255),
    st.sampled_from([0, 1, 1, 2, 3, 0x7FFFFFFF]),
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([frame(b""), frame(b"x" * 10), b"\x82\x86\x84", client_bytes()[len(PREFACE) :]]),
    ),
)


@given(st.lists(FRAMES, max_size=12), st.booleans(), st.integers(0, 200))
@settings(max_examples=campaign(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_frames(frames: list[bytes], is_call: bool, cut: int) -> None:
    """Whatever frames come, whole or cut off, end their own connection at most."""
    data = b"".join(frames)
    begin = client_bytes() if is_call else PREFACE + NO_SETTINGS
    trio.run(attack, Served(), begin + data[: len(data) - cut])


@given(st.binary(max_size=200))
@settings(max_examples=campaign(200), deadline=None)
def test_any_message(message: bytes) -> None:
    """Whatever a request has for a message, it is answered or refused."""

    async def ask() -> None:
        served = Served()
        with trio.fail_after(PATIENCE_SECONDS):
            async with served.connections() as connect, grpc_client(connect.stream()) as client:
                _, answer = await client.start("/t.T/Exec", frame(message))
                await answer.ended.wait()
                assert answer.code in (Code.OK, Code.INTERNAL)
        assert served.failures == []

    trio.run(ask)


@pytest.mark.trio
async def test_long_names(served: Served) -> None:
    """What is said of a name has a bounded length, so that clients can read it."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with served.connections() as connect, grpc_client(connect.stream()) as client:
            _, answer = await client.start("/t.T/" + "x" * 10_000, frame(b""))
            await answer.ended.wait()
            assert answer.code == Code.UNIMPLEMENTED
            assert len(answer.message) == 1000
