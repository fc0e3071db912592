"""
The sources of an update: a file, a block device, standard input, or a server of HTTP.

The question to a server has the words of HTTP/1.0, and the end of the connection is the end of the answer. More of the
protocol is useless here: an update knows its own size and digests. There is no TLS, since an update is signed, and no
secret. An attacker on the way can keep an update back, or see its existence.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from minit.base.errors import UpdateError, describe
from minit.base.harmless import harmless
from minit.manifest.machinefields import Url, is_url, parse_url

Read = Callable[[int], bytes]
"""Returns at most so many bytes, and none at the end."""

_STANDARD_INPUT = "-"
_TIMEOUT_SECONDS = 60.0
_READ_BYTES = 1 << 16
_MAXIMUM_HEAD_BYTES = 1 << 16
_HEAD_END = b"\r\n\r\n"
_OK = "200"
_MAXIMUM_SHOWN = 60


@contextmanager
def open_source(source: str) -> Iterator[Read]:
    """Open a source; UpdateError on a failure."""
    if is_url(source):
        try:
            url = parse_url(source)
        except ValueError as error:
            raise UpdateError(f"{source}: {error}") from error
        with _open_download(url, source) as read:
            yield read
        return
    try:
        fd = os.dup(0) if source == _STANDARD_INPUT else os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UpdateError(f"cannot read the update: {describe(error)}") from error
    try:
        yield lambda size_bytes: _read(fd, size_bytes, source)
    finally:
        os.close(fd)


def read_fully(read: Read, size_bytes: int) -> bytes:
    """Return so many bytes, or less at the end."""
    pieces, missing = [], size_bytes
    while missing and (piece := read(missing)):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _read(fd: int, size_bytes: int, source: str) -> bytes:
    try:
        return os.read(fd, size_bytes)
    except OSError as error:
        raise UpdateError(f"cannot read the update: {source}: {describe(error)}") from error


@contextmanager
def _open_download(url: Url, source: str) -> Iterator[Callable[[int], bytes]]:
    """Ask for a URL and yield a reader of the answer; UpdateError without an answer, or without a file."""
    try:
        connection = _connect(url)
    except OSError as error:
        raise UpdateError(f"{source}: {describe(error)}") from error
    with connection:
        download = _Download(connection, source)
        download.begin(url)
        yield download.read


def _connect(url: Url) -> socket.socket:
    """Return a connection to the first address of a host that accepts; OSError of the last refusal."""
    failure = OSError(f"{url.host} has no address")
    # As bytes: the interpreter of an image has no codec for international names.
    for family, kind, protocol, _, address in socket.getaddrinfo(
        url.host.encode("ascii"), url.port, type=socket.SOCK_STREAM
    ):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(_TIMEOUT_SECONDS)
            connection.connect(address)
        except OSError as error:
            connection.close()
            failure = error
        else:
            return connection
    raise failure


class _Download:
    def __init__(self, link: socket.socket, source: str) -> None:
        self._socket = link
        self._source = source
        self._rest = b""

    def begin(self, url: Url) -> None:
        """Ask, and read the beginning of the answer."""
        question = f"GET {url.target} HTTP/1.0\r\nHost: {url.authority}\r\nUser-Agent: minit\r\n\r\n"
        try:
            self._socket.sendall(question.encode("ascii"))
        except OSError as error:
            raise self._failure(describe(error)) from error
        answer = b""
        while _HEAD_END not in answer:
            data = self._receive(_READ_BYTES)
            answer += data
            if not data or len(answer) > _MAXIMUM_HEAD_BYTES + _READ_BYTES:
                raise self._failure("the server has no answer of HTTP")
        head, _, self._rest = answer.partition(_HEAD_END)
        status, *fields = head.decode("latin-1").split("\r\n")
        version, _, code = status.partition(" ")
        if not version.startswith("HTTP/1."):
            raise self._failure("the server has no answer of HTTP")
        if code.split(" ")[0] != _OK:
            raise self._failure(f"the server answers {harmless(code[:_MAXIMUM_SHOWN])}, not {_OK}")
        # No server may answer a question of HTTP/1.0 in chunks, and the chunks are not the file.
        if any(field.lower().startswith("transfer-encoding:") for field in fields):
            raise self._failure("the server answers in pieces (Transfer-Encoding)")

    def read(self, size_bytes: int) -> bytes:
        """Return some bytes of the file, none at its end."""
        data, self._rest = self._rest[:size_bytes], self._rest[size_bytes:]
        return data or self._receive(size_bytes)

    def _receive(self, size_bytes: int) -> bytes:
        try:
            return self._socket.recv(size_bytes)
        except OSError as error:
            raise self._failure(describe(error)) from error

    def _failure(self, reason: str) -> UpdateError:
        return UpdateError(f"{self._source}: {reason}")
