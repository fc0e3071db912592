"""
Talking to the kernel's routing and nf_tables over netlink(7), one request at a time.

pyroute2 encodes and decodes the messages. Its own sockets run on asyncio, which costs more to load than a pod's whole
network takes to set up and which the stage1 image does not carry, so the few lines of transport are here.
"""

from __future__ import annotations

import _socket
import os

from pyroute2.netlink import NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR

from minit.errors import MinitError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12

_SOL_NETLINK = 270
_NETLINK_EXT_ACK = 11
_RECEIVE_BYTES = 1 << 18
_HEADER_BYTES = 16


class NetlinkError(OSError):
    """The kernel refused a request; `strerror` holds its own explanation if it gave one."""


class Netlink:
    """
    A netlink socket of one protocol in the network namespace that the process is in when it is made.

    Messages are pyroute2's (`ifinfmsg`, `nfgen_msg`, …) with `header["type"]` and, for flags beyond a request that is
    acknowledged, `header["flags"]` set.
    """

    def __init__(self, protocol: int) -> None:
        self._socket = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, protocol)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
        self._sequence = 0

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def request(self, message: Any) -> None:
        """Send one request and wait for its acknowledgement; NetlinkError if it is refused."""
        self.batch([message])

    def batch(self, messages: Sequence[Any], acknowledged: Sequence[Any] | None = None) -> None:
        """
        Send messages as one datagram and wait for the acknowledgements of all, or of `acknowledged`.

        NetlinkError with the first refusal. nf_tables applies a batch as a whole or not at all.
        """
        waiting = set()
        data = b""
        for message in messages:
            wants_answer = acknowledged is None or any(message is one for one in acknowledged)
            data += self._encode(message, NLM_F_ACK if wants_answer else 0)
            if wants_answer:
                waiting.add(self._sequence)
        self._socket.send(data)
        failure: OSError | None = None
        while waiting:
            for kind, _, sequence, body in self._receive():
                if kind != NLMSG_ERROR:
                    continue
                error = _refusal(body)
                if error is not None:
                    failure = failure or error
                waiting.discard(sequence)
        if failure is not None:
            raise failure

    def dump(self, message: Any) -> list[Any]:
        """Return the answers to a dump request, decoded as messages of the same class."""
        data = self._encode(message, NLM_F_DUMP)
        self._socket.send(data)
        answers = []
        while True:
            for kind, raw, sequence, body in self._receive():
                if sequence != self._sequence:
                    continue
                if kind == NLMSG_DONE:
                    return answers
                if kind == NLMSG_ERROR:
                    raise _refusal(body) or MinitError("netlink: a dump was acknowledged instead of answered")
                answer = type(message)(raw)
                answer.decode()
                answers.append(answer)

    def _encode(self, message: Any, flags: int) -> bytes:
        self._sequence += 1
        message["header"]["sequence_number"] = self._sequence
        message["header"]["pid"] = 0
        message["header"]["flags"] = message["header"].get("flags", 0) | NLM_F_REQUEST | flags
        message.reset()
        message.encode()
        return bytes(message.data)

    def _receive(self) -> list[tuple[int, bytes, int, bytes]]:
        """Return the messages of the next datagram: type, whole message, sequence number, content."""
        data = self._socket.recv(_RECEIVE_BYTES)
        messages = []
        while len(data) >= _HEADER_BYTES:
            size = int.from_bytes(data[0:4], "little")
            kind = int.from_bytes(data[4:6], "little")
            sequence = int.from_bytes(data[8:12], "little")
            messages.append((kind, data[:size], sequence, data[_HEADER_BYTES:size]))
            data = data[(size + 3) & ~3 :]
        return messages


def _refusal(body: bytes) -> NetlinkError | None:
    number = -int.from_bytes(body[0:4], "little", signed=True)
    return NetlinkError(number, os.strerror(number)) if number else None
