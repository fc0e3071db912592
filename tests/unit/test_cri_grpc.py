"""minit.cri.grpc: calls, statuses and streams, and clients that do what they should not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import PodError
from minit.cri.api.cri_pb2 import ExecSyncRequest, ExecSyncResponse, VersionRequest, VersionResponse
from minit.cri.grpc.framing import CallError, Code, frame, parse_timeout, status_headers, unframe
from minit.cri.grpc.server import Method, Server
from tests.support.grpcclient import GrpcClient, grpc_client

PATIENCE_SECONDS = 60
LARGE = 300_000


class Served:
    """A server with methods for every purpose, and what became of their calls."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.cancelled: list[str] = []
        self.sent = 0
        self.methods = {
            "/t.T/Version": Method(request=VersionRequest, answer=self.version),
            "/t.T/Large": Method(request=VersionRequest, answer=self.large),
            "/t.T/Refuse": Method(request=VersionRequest, answer=self.refuse),
            "/t.T/Fail": Method(request=VersionRequest, answer=self.fail),
            "/t.T/Crash": Method(request=VersionRequest, answer=self.crash),
            "/t.T/Wait": Method(request=VersionRequest, answer=self.wait),
            "/t.T/Exec": Method(request=ExecSyncRequest, answer=self.version),
            "/t.T/Count": Method(request=VersionRequest, stream=self.count),
        }
        self.server = Server(self.methods, self.failures.append)

    async def version(self, request: Message) -> Message:
        """Answer with what was asked."""
        return VersionResponse(version=getattr(request, "version", "none"))

    async def large(self, _: Message) -> Message:
        """Answer with more than a window holds."""
        return ExecSyncResponse(stdout=b"x" * LARGE)

    async def refuse(self, _: Message) -> Message:
        """Fail with a code."""
        raise CallError(Code.NOT_FOUND, "kein Topf 100% da:\ngröße")

    async def fail(self, _: Message) -> Message:
        """Fail as minit's functions do."""
        raise PodError("no matches found")

    async def crash(self, _: Message) -> Message:
        """Fail as only an error in minit does."""
        raise ZeroDivisionError("secret")

    async def wait(self, request: Message) -> Message:
        """Take for ever, and note the end of it."""
        try:
            await trio.sleep_forever()
        finally:
            self.cancelled.append(getattr(request, "version", ""))
        raise AssertionError

    async def count(self, _: Message) -> AsyncGenerator[Message, None]:
        """Count as far as anybody reads."""
        try:
            for number in range(500):
                self.sent = number
                yield ExecSyncResponse(stdout=b"y" * 1000, exit_code=number)
        finally:
            self.cancelled.append("count")

    @asynccontextmanager
    async def client(self) -> AsyncIterator[GrpcClient]:
        """Connect to the server, which ends with the client."""
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.server.serve, theirs)
            async with grpc_client(ours) as client:
                yield client


@pytest.fixture
def served() -> Served:
    """A server that somebody can connect to."""
    return Served()


@given(st.text())
def test_any_message_gets_through(message: str) -> None:
    """A status is told in ASCII, whatever the text is."""
    headers = dict(status_headers(Code.UNKNOWN, message))
    assert all(value.isascii() and value.isprintable() for value in headers.values())


@given(st.binary())
def test_a_message_in_a_body(data: bytes) -> None:
    """A framed message is read back; anything else is an error of the call."""
    assert unframe(frame(data)) == data
    try:
        assert frame(unframe(data)) == data
    except CallError:
        pass


@pytest.mark.parametrize(("text", "seconds"), [("2H", 7200), ("120S", 120), ("5m", 0.005), ("99999999n", 0.099999999)])
def test_times(text: str, seconds: float) -> None:
    """A time has up to eight digits and a unit."""
    assert parse_timeout(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1", "S", "-1S", "1.5S", "123456789S", "1s", "1S "])
def test_no_times(text: str) -> None:
    """Nothing else is a time."""
    with pytest.raises(CallError, match="is no time"):
        parse_timeout(text)


@pytest.mark.trio
async def test_calls_and_their_statuses(served: Served) -> None:
    """Answers, codes and messages get to the client; an error in minit ends one call and tells nobody its text."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with served.client() as client:
            answer = await client.call("/t.T/Version", VersionRequest(version="v1"))
            assert answer.headers["content-type"] == "application/grpc"
            assert answer.code == 0
            assert [VersionResponse.FromString(one).version for one in answer.messages()] == ["v1"]
            told = {}
            for name in ("Refuse", "Fail", "Crash", "Nothing"):
                answer = await client.call(f"/t.T/{name}", VersionRequest())
                told[name] = (answer.code, answer.message, answer.body)
            assert told == {
                "Refuse": (Code.NOT_FOUND, "kein Topf 100% da:\ngröße", b""),
                "Fail": (Code.UNKNOWN, "no matches found", b""),
                "Crash": (Code.INTERNAL, "an error in minit itself: ZeroDivisionError", b""),
                "Nothing": (Code.UNIMPLEMENTED, "there is no method /t.T/Nothing", b""),
            }
    assert [type(failure) for failure in served.failures] == [ZeroDivisionError]


@pytest.mark.trio
async def test_many_calls_at_a_time(served: Served) -> None:
    """Calls of one connection do not wait for each other, and none gets the answer of another one."""
    answers: dict[str, str] = {}

    async def ask(client: GrpcClient, name: str) -> None:
        answer = await client.call("/t.T/Version", VersionRequest(version=name))
        answers[name] = VersionResponse.FromString(answer.messages()[0]).version

    with trio.fail_after(PATIENCE_SECONDS):
        async with served.client() as client, trio.open_nursery() as nursery:
            await client.start("/t.T/Wait", frame(b""))
            for number in range(80):
                nursery.start_soon(ask, client, str(number))
    assert answers == {str(number): str(number) for number in range(80)}


@pytest.mark.trio
async def test_answers_larger_than_a_window(served: Served) -> None:
    """They come as the client makes room; one that reads nothing of a stream holds up no other call."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with served.client() as client:
            answer = await client.call("/t.T/Large", VersionRequest())
            assert len(ExecSyncResponse.FromString(answer.messages()[0]).stdout) == LARGE
        async with served.client() as client:
            client.reads_answers = False
            stream, unread = await client.start("/t.T/Count", frame(b""))
            await trio.testing.wait_all_tasks_blocked()
            assert 0 < served.sent < 100
            assert (await client.call("/t.T/Refuse", VersionRequest())).code == Code.NOT_FOUND
            client.h2.reset_stream(stream)
            await client.flush()
            await trio.testing.wait_all_tasks_blocked()
            assert served.cancelled == ["count"]
            assert not unread.ended.is_set()


@pytest.mark.trio
async def test_a_stream_of_answers(served: Served) -> None:
    """All answers come in order, then the status."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with served.client() as client:
            answer = await client.call("/t.T/Count", VersionRequest())
            assert [ExecSyncResponse.FromString(one).exit_code for one in answer.messages()] == list(range(500))
            assert answer.code == 0


@pytest.mark.trio
async def test_calls_that_are_given_up(served: Served, autojump_clock: trio.testing.MockClock) -> None:
    """A call ends with its time, with its stream and with its connection."""
    async with served.client() as client:
        answer = await client.call("/t.T/Wait", VersionRequest(version="timed"), [("grpc-timeout", "90S")])
        assert (answer.code, trio.current_time()) == (Code.DEADLINE_EXCEEDED, 90)
        stream, _ = await client.start("/t.T/Wait", frame(VersionRequest(version="reset").SerializeToString()))
        await trio.testing.wait_all_tasks_blocked()
        client.h2.reset_stream(stream)
        await client.flush()
        await trio.testing.wait_all_tasks_blocked()
        assert served.cancelled == ["timed", "reset"]
        await client.start("/t.T/Wait", frame(VersionRequest(version="closed").SerializeToString()))
        await trio.testing.wait_all_tasks_blocked()
    assert served.cancelled == ["timed", "reset", "closed"]


@pytest.mark.trio
async def test_requests_that_are_none(served: Served) -> None:
    """Each is refused by itself, and the connection goes on."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with served.client() as client:
            refused = []
            for body in (b"", b"\0\0\0\0\2x", b"\1\0\0\0\0", b"\0\0\0\0\1\xff", frame(b"") + frame(b"")):
                _, answer = await client.start("/t.T/Version", body)
                await answer.ended.wait()
                refused.append(answer.code)
            assert refused == [Code.INTERNAL, Code.INTERNAL, Code.UNIMPLEMENTED, Code.INTERNAL, Code.INTERNAL]
            _, answer = await client.start("/t.T/Version", frame(b""), [("content-type", "text/html")])
            await answer.ended.wait()
            assert answer.code == Code.INTERNAL
            _, answer = await client.start("/t.T/Version", frame(b""), [("grpc-timeout", "soon")])
            await answer.ended.wait()
            assert (answer.code, answer.message) == (Code.INTERNAL, "grpc-timeout: 'soon' is no time")
            _, answer = await client.start("/t.T/Exec", frame(b"x" * (17 << 20)))
            await answer.ended.wait()
            assert (answer.code, answer.message) == (Code.RESOURCE_EXHAUSTED, "a message has at most 16777216 bytes")
            assert (await client.call("/t.T/Version", VersionRequest())).code == 0


@pytest.mark.trio
@pytest.mark.parametrize(
    "data", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 99]
)
async def test_what_is_no_http2(served: Served, data: bytes) -> None:
    """The connection is closed, and nothing is taken for an error of minit."""
    ours, theirs = trio.testing.memory_stream_pair()
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.server.serve, theirs)
            await ours.send_all(data)
            await ours.send_eof()
            while await ours.receive_some(1000):
                pass
    assert served.failures == []
