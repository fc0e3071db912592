"""
An update from a server of HTTP: a question in the words of HTTP/1.0, and an answer whose end is that of the connection.

More of the protocol is of no use here: an update knows its own size and digests. There is no TLS, since an update is
signed, and no secret. Who is on the way can keep one back, or see that there is one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from minit.errors import UpdateError, describe
from minit.harmless import harmless
from minit.manifest.httpurl import Url

_TIMEOUT_SECONDS = 60.0
_READ_BYTES = 1 << 16
_MAXIMUM_HEAD_BYTES = 1 << 16
_HEAD_END = b"\r\n\r\n"
_OK = "200"
_MAXIMUM_SHOWN = 60


@contextmanager
def open_download(url: Url, source: str) -> Iterator[Callable[[int], bytes]]:
    """Ask for a URL and yield what reads the answer; UpdateError if there is none, or none with a file."""
    try:
        connection = _connect(url)
    except OSError as error:
        raise UpdateError(f"{source}: {describe(error)}") from error
    with connection:
        download = _Download(connection, source)
        download.begin(url)
        yield download.read


def _connect(url: Url) -> socket.socket:
    """Return a connection to the first address of a host that takes one; OSError of the last that does not."""
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
        # No server may answer a question of HTTP/1.0 so, and its pieces are not the file.
        if any(field.lower().startswith("transfer-encoding:") for field in fields):
            raise self._failure("the server answers in pieces (Transfer-Encoding)")

    def read(self, size_bytes: int) -> bytes:
        """Return some of the file, nothing at its end."""
        data, self._rest = self._rest[:size_bytes], self._rest[size_bytes:]
        return data or self._receive(size_bytes)

    def _receive(self, size_bytes: int) -> bytes:
        try:
            return self._socket.recv(size_bytes)
        except OSError as error:
            raise self._failure(describe(error)) from error

    def _failure(self, reason: str) -> UpdateError:
        return UpdateError(f"{self._source}: {reason}")
