"""
WebSockets with channels, as Kubernetes has them: the first byte of a message is the number of the channel.

Those of a command are 0 for stdin, then stdout, stderr, error and resize. With `base64` in the name of the protocol
messages are text: a character, the digit 0 for the first channel, and the data in base64. With v5, 255 and a number are
the end of that channel.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    Pong,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from minit.cri.streaming.channels import Channel, Connection, ConnectionFailed

PROTOCOLS = {
    "v5.channel.k8s.io": 5,
    "v4.channel.k8s.io": 4,
    "v4.base64.channel.k8s.io": 4,
    "channel.k8s.io": 1,
    "base64.channel.k8s.io": 1,
}
"""The protocols of remote commands, and their versions."""

NAMES = ("stdin", "stdout", "stderr", "error", "resize")

_ENDS_SINCE = 5
_END = 255
_FIRST = ord("0")
_NORMAL_CLOSURE = 1000
# In base64 a message is taken as a whole.
_LARGEST_TEXT = 1 << 20


class WebSocketConnection(Connection):
    """A WebSocket of a client, with channels that have numbers and headers; `accept` comes before anything else."""

    def __init__(self, stream: trio.SocketStream, channels: Mapping[int, dict[str, str]]) -> None:
        super().__init__(stream)
        self._socket = WSConnection(ConnectionType.SERVER)
        self._is_text = self._has_ends = False
        self._message = bytearray()
        self._number: int | None = None
        for number, headers in channels.items():
            self.channels[number] = Channel(self, number, headers)

    def accept(self, headers: list[tuple[bytes, bytes]], path: str, protocol: str) -> None:
        """Answer the request for the connection with an offered protocol. ConnectionFailed if none is known."""
        self._is_text, self._has_ends = "base64" in protocol, PROTOCOLS[protocol] >= _ENDS_SINCE
        try:
            self._socket.initiate_upgrade_connection(headers, path)
            self.queue(self._socket.send(AcceptConnection(subprotocol=protocol)))
        except (RemoteProtocolError, LocalProtocolError) as error:
            raise ConnectionFailed(f"no request for a WebSocket: {error}") from error

    def receive(self, data: bytes) -> None:
        """Give messages to the channels."""
        try:
            self._socket.receive_data(data)
            for event in self._socket.events():
                if isinstance(event, TextMessage | BytesMessage):
                    self._on_message(event)
                elif isinstance(event, Ping):
                    self.queue(self._socket.send(event.response()))
                elif isinstance(event, CloseConnection):
                    raise ConnectionFailed("closed by the client")
        except (RemoteProtocolError, LocalProtocolError) as error:
            raise ConnectionFailed(f"no WebSocket: {error}") from error

    def frame(self, channel: Channel, data: bytes) -> bytes:
        """Return bytes of a channel as a message."""
        if self._is_text:
            return self._socket.send(TextMessage(data=chr(_FIRST + channel.number) + base64.b64encode(data).decode()))
        return self._socket.send(BytesMessage(data=bytes((channel.number,)) + data))

    def end(self, channel: Channel) -> None:
        """Take nothing any more: a channel's end cannot be said to a client, which would send for ever."""
        channel.put(b"", end=True)

    def beat(self) -> None:
        """Send a pong that nobody asked for (RFC 6455, section 5.5.3)."""
        self.queue(self._socket.send(Pong()))

    def close(self) -> None:
        """Send the end of the connection."""
        self.queue(self._socket.send(CloseConnection(code=_NORMAL_CLOSURE)))

    def _on_message(self, event: TextMessage | BytesMessage) -> None:
        if isinstance(event, TextMessage):
            self._on_text(event.data, event.message_finished)
            return
        data = bytes(event.data)
        if self._number is None and data:
            self._number, data = data[0], data[1:]
        if self._number is not None:
            self._put(self._number, data)
        if event.message_finished:
            self._number = None

    def _on_text(self, text: str, is_whole: bool) -> None:
        self._message += text.encode()
        if len(self._message) > _LARGEST_TEXT:
            raise ConnectionFailed(f"a message has at most {_LARGEST_TEXT} characters")
        if is_whole and self._message:
            number, data = self._message[0] - _FIRST, bytes(self._message[1:])
            self._message.clear()
            try:
                self._put(number, base64.b64decode(data, validate=True))
            except binascii.Error as error:
                raise ConnectionFailed(f"a message is not in base64: {error}") from error

    def _put(self, number: int, data: bytes) -> None:
        if number == _END and self._has_ends:
            for ended in data:
                if ended in self.channels:
                    self.channels[ended].put(b"", end=True)
        elif number in self.channels:
            self.channels[number].put(data)
