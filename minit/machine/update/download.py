"""
An update from a server, by HTTP/1.1 in the words of h11.

There is no TLS: an update is signed, and no secret. Who is on the way can keep one back, or count them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import h11

from minit.errors import UpdateError, describe
from minit.manifest.httpurl import Url

_TIMEOUT_SECONDS = 60.0
_READ_BYTES = 1 << 16
_OK = 200


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
        self._protocol = h11.Connection(h11.CLIENT)
        self._rest = b""

    def begin(self, url: Url) -> None:
        """Ask, and wait for the beginning of the answer."""
        headers = [("Host", url.authority), ("User-Agent", "minit"), ("Connection", "close")]
        request = self._protocol.send(h11.Request(method="GET", target=url.target, headers=headers))
        end = self._protocol.send(h11.EndOfMessage())
        try:
            self._socket.sendall((request or b"") + (end or b""))
        except OSError as error:
            raise self._failure(describe(error)) from error
        answer = self._next()
        while isinstance(answer, h11.InformationalResponse):
            answer = self._next()
        if not isinstance(answer, h11.Response) or answer.status_code != _OK:
            raise self._failure(f"the server answers {getattr(answer, 'status_code', 'nothing')}, not {_OK}")

    def read(self, size_bytes: int) -> bytes:
        """Return some of the file, nothing at its end."""
        while not self._rest:
            event = self._next()
            if not isinstance(event, h11.Data):
                return b""
            self._rest = bytes(event.data)
        data, self._rest = self._rest[:size_bytes], self._rest[size_bytes:]
        return data

    def _next(self) -> object:
        try:
            while (event := self._protocol.next_event()) is h11.NEED_DATA:
                data = self._socket.recv(_READ_BYTES)
                if not data and self._protocol.their_state is h11.SEND_RESPONSE:
                    raise self._failure("the server has closed the connection without an answer")
                self._protocol.receive_data(data)
        except OSError as error:
            raise self._failure(describe(error)) from error
        except h11.RemoteProtocolError as error:
            raise self._failure(str(error)) from error
        return event

    def _failure(self, reason: str) -> UpdateError:
        return UpdateError(f"{self._source}: {reason}")
