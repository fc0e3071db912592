"""The streaming server and clients that keep to no protocol, stop in the middle, and leave in any way."""

from __future__ import annotations

import gc
import os
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest
import trio

from minit.base.errors import PodError
from minit.cri.node import Program
from minit.cri.streaming.channels import Channel
from minit.cri.streaming.portforward import PortForward
from minit.cri.streaming.processes import Streams, Terminal, running_process
from minit.cri.streaming.remotecommand import Ready, RemoteCommand
from minit.cri.streaming.server import StreamingServer, Tokens, Wanted
from minit.cri.streaming.spdyframes import (
    INITIAL_WINDOW_SIZE,
    Data,
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
from minit.cri.streaming.websocket import PROTOCOLS
from tests.support.campaign import campaign

PATIENCE_SECONDS = 100
STREAMS = ("stdin", "stdout", "stderr")
COMMANDS = (
    "exec cat",
    "exec cat /dev/zero",
    "exec sleep 1000",
    "cat >&2; exit 7",
    "head -c 100000 /dev/zero; exec cat",
)
KINDS = (*STREAMS, "error", "resize", "data", "", "error")
NUMBERS = (0, 1, 2, 3, 5, 7, 9, 513, (1 << 31) - 1)
SIZES = (0, 1, 100, 1 << 12, 1 << 17)
WINDOWS = (0, 1, 1 << 16, (1 << 31) - 1, (1 << 32) - 1)


def remote_command(chance: random.Random, *, is_terminal: bool) -> RemoteCommand:
    """Return a command that some client may run; it is executed on this machine."""
    names = ("stdin", "stdout") if is_terminal else tuple(name for name in STREAMS if chance.random() < 0.8)
    program = Program(words=["/bin/sh", "-c", chance.choice(COMMANDS)], directory=Path("/"))

    @asynccontextmanager
    async def get_ready() -> AsyncIterator[Ready]:
        with Terminal() if is_terminal else nullcontext() as terminal:

            async def run(streams: Streams) -> int:
                async with running_process(program, names, terminal) as process:
                    return await process.serve(streams)

            yield Ready(run=run, terminal=terminal)

    return RemoteCommand(streams=names, is_terminal=is_terminal, get_ready=get_ready)


def port_forward() -> PortForward:
    """Return ports of a pod that has ended."""

    def open_process() -> int:
        raise PodError("sandbox 2d381b2a does not run")

    return PortForward(ports=(80,), open_process=open_process)


def frame(chance: random.Random, number: int) -> Frame:
    """Return any frame, of a stream that often is the next one."""
    stream = number if chance.random() < 0.5 else chance.choice(NUMBERS)
    headers = (("streamtype", chance.choice(KINDS)), ("port", chance.choice(("9", "0", "x"))))
    windows = ((INITIAL_WINDOW_SIZE, chance.choice(WINDOWS)),)
    return chance.choice(
        (
            SynStream(stream=number, headers=headers, fin=chance.random() < 0.1),
            SynStream(stream=number, headers=headers),
            SynStream(stream=stream, headers=headers),
            Data(stream=stream, data=chance.randbytes(chance.choice(SIZES)), fin=chance.random() < 0.1),
            Data(stream=stream, data=b'{"Width":%d,"Height":3}' % chance.randrange(1 << 17)),
            HeadersFrame(stream=stream, headers=headers),
            SynReply(stream=stream),
            RstStream(stream=stream, status=chance.randrange(12)),
            Settings(values=windows),
            WindowUpdate(stream=stream, size_bytes=chance.choice(WINDOWS) & 0x7FFFFFFF),
            Ping(number=chance.randrange(1 << 32)),
            GoAway(last=stream),
        )
    )


def over_spdy(chance: random.Random, wanted: Wanted) -> list[bytes]:
    """Return what a client sends after its request: all streams, most often, and then anything."""
    encoder = Encoder()
    names = wanted.channels(4) if isinstance(wanted, RemoteCommand) else ("error", "data")
    sent: list[Frame] = []
    if chance.random() < 0.8:
        more = (("port", "80"), ("requestid", "0"))
        sent += [
            SynStream(stream=2 * count + 1, headers=(("streamtype", name), *more)) for count, name in enumerate(names)
        ]
    sent += [frame(chance, 2 * len(sent) + 1) for _ in range(chance.randrange(20))]
    return [encoder.encode(each) for each in sent]


def over_websocket(chance: random.Random) -> list[bytes]:
    """Return frames as RFC 6455 has them, of any kind, masked or not, whole or not."""
    pieces = []
    for _ in range(chance.randrange(20)):
        data = bytes([chance.choice((0, 1, 3, 4, 9, 48, 52, 255))]) + chance.randbytes(chance.choice(SIZES[:3]))
        said = chance.choice((len(data), len(data), len(data), 1 << 40))
        length = struct.pack(">BQ", 0x80 | 127, said) if said > 125 else bytes([0x80 | said])
        kind = chance.choice((0x82, 0x82, 0x82, 0x02, 0x80, 0x81, 0x88, 0x89, 0x8A, 0x83, 0xF2))
        pieces.append(bytes([kind]) + length + bytes(4) + data)
    return pieces


def request(chance: random.Random, token: str, *, is_websocket: bool) -> bytes:
    """Return the request for a connection, with something wrong now and then."""
    upgrade = "websocket" if is_websocket else chance.choice(("SPDY/3.1",) * 9 + ("h2c",))
    lines = [f"POST /exec/{token} HTTP/1.1", "Host: localhost", "Connection: Upgrade", f"Upgrade: {upgrade}"]
    if is_websocket:
        lines[0] = f"GET /exec/{token} HTTP/1.1"
        lines += ["Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13"]
        lines += [f"Sec-WebSocket-Protocol: {chance.choice((*PROTOCOLS, 'none'))}"]
    else:
        lines += [f"X-Stream-Protocol-Version: {chance.choice(('v4.channel.k8s.io', 'portforward.k8s.io'))}"]
    return "\r\n".join([*lines, "", ""]).encode()


async def misbehave(chance: random.Random, tokens: Tokens[Wanted], port: int) -> None:
    """Be one client, from connecting to leaving."""
    kind = chance.randrange(4)
    wanted = port_forward() if kind == 0 else remote_command(chance, is_terminal=kind == 1)
    is_websocket = chance.random() < 0.4
    pieces = [request(chance, tokens.put(wanted), is_websocket=is_websocket)]
    pieces += over_websocket(chance) if is_websocket else over_spdy(chance, wanted)
    sent = b"".join(pieces)
    if chance.random() < 0.3:
        place = chance.randrange(len(sent))
        sent = sent[:place] + chance.randbytes(chance.randrange(20)) + sent[place + chance.randrange(20) :]
    if chance.random() < 0.3:
        sent = sent[: chance.randrange(len(sent))]
    with trio.socket.socket() as client:
        await client.connect(("127.0.0.1", port))
        with trio.move_on_after(chance.choice((0, 0.01, 0.2))):
            async with trio.open_nursery() as nursery:
                if chance.random() < 0.7:
                    nursery.start_soon(read_all, client)
                stream = trio.SocketStream(client)
                try:
                    while sent:
                        size_bytes = chance.choice((1, 100, 1 << 16))
                        await stream.send_all(sent[:size_bytes])
                        sent = sent[size_bytes:]
                    if chance.random() < 0.3:
                        client.shutdown(socket.SHUT_WR)
                except (OSError, trio.BrokenResourceError):
                    pass
                await trio.sleep_forever()
        if chance.random() < 0.5:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def read_all(client: trio.socket.SocketType) -> None:
    """Take what comes."""
    try:
        while await client.recv(1 << 16):
            pass
    except OSError:
        pass


def remains() -> tuple[int, int]:
    """Return how many descriptors there are, and how many children of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return len(os.listdir("/proc/self/fd")), len(children)


@pytest.mark.trio
async def test_nothing_of_hostile_clients_is_left() -> None:
    """Whatever they send, and however they leave: no error of ours, and no process, descriptor, task or channel."""
    chance = random.Random(0)
    errors: list[BaseException] = []
    tokens = Tokens[Wanted]()
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as serving:
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            port = listener.socket.getsockname()[1]
            serving.start_soon(StreamingServer(tokens, errors.append).serve, listener)
            await trio.testing.wait_all_tasks_blocked()
            before = remains()
            for _ in range(campaign(10)):
                async with trio.open_nursery() as clients:
                    for _ in range(20):
                        clients.start_soon(misbehave, random.Random(chance.random()), tokens, port)
            assert not errors, errors
            while remains() != before:
                await trio.sleep(0.05)
            gc.collect()
            assert not [each for each in gc.get_objects() if isinstance(each, Channel)]
            serving.cancel_scope.cancel()
