"""Clients of an app's attachable streams, on rkt's plain sockets and on minit's sessions."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.waiting import TIMEOUT_SECONDS


def connect(directory: Path, name: str) -> socket.socket:
    """Return a connection to one of an app's sockets, by a path that fits into an address."""
    kind = socket.SOCK_SEQPACKET if name == "sock-minit" else socket.SOCK_STREAM
    client = socket.socket(socket.AF_UNIX, kind)
    limit_time(client)
    fd = os.open(directory, os.O_PATH)
    try:
        client.connect(f"/proc/self/fd/{fd}/{name}")
    finally:
        os.close(fd)
    return client


def limit_time(client: socket.socket) -> None:
    """Have no call on a socket wait for ever."""
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        client.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(TIMEOUT_SECONDS), 0))


def read_until(client: socket.socket, *wanted: bytes) -> bytes:
    """Return all that comes until it has each of `wanted`."""
    data = b""
    until = time.monotonic() + TIMEOUT_SECONDS
    while not all(each in data for each in wanted):
        assert time.monotonic() < until, data
        piece = client.recv(1 << 16)
        assert piece, f"ended after {data!r}"
        data += piece
    return data


def read_all(client: socket.socket) -> bytes:
    """Return all that comes until the end."""
    parts = []
    while piece := client.recv(1 << 20):
        parts.append(piece)
    return b"".join(parts)


class Session:
    """
    A session of minit's own protocol.

    `streams` are this side's ends of the attached streams, by name; `reply` is the answer to the attachment.
    """

    def __init__(self, directory: Path, streams: Sequence[str] = (), **options: Any) -> None:
        self.socket = connect(directory, "sock-minit")
        self.streams: dict[str, socket.socket] = {}
        self.reply: dict[str, Any] = {}
        if streams:
            self.reply = self.attach(streams, **options)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def attach(self, streams: Sequence[str], **options: Any) -> dict[str, Any]:
        """Ask for streams and return the answer."""
        self.send_attach(streams, **options)
        return self.receive()

    def send_attach(self, streams: Sequence[str], **options: Any) -> None:
        """Ask for streams."""
        theirs = []
        for name in streams:
            ours, other = socket.socketpair()
            limit_time(ours)
            self.streams[name] = ours
            theirs.append(other)
        message = json.dumps({"op": "attach", "streams": list(streams), **options}).encode()
        socket.send_fds(self.socket, [message], [other.fileno() for other in theirs])
        for other in theirs:
            other.close()

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send a message and return the next one that comes."""
        self.socket.send(json.dumps(message).encode())
        return self.receive()

    def receive(self) -> dict[str, Any]:
        """Return the next message; empty at the end of the session."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            return {}
        return json.loads(data) if data else {}

    def wait_ended(self) -> None:
        """Wait until the sidecar says that all output has ended; it may say before that no input is read any more."""
        message = self.receive()
        while message == {"event": "stdin-ended"}:
            message = self.receive()
        assert message == {"event": "ended"}, message

    def close(self) -> None:
        """Detach."""
        self.socket.close()
        for stream in self.streams.values():
            stream.close()
