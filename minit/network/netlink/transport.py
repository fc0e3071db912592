"""
Netlink(7) to the kernel's routing and nf_tables, a request at a time; attributes as bytes; events of the kernel.

pyroute2 encodes and decodes the messages. pyroute2's own sockets run on asyncio, which takes longer to load than the
setup of a pod's whole network, and is not in the stage1 image. Attributes as bytes are for messages written so often
that pyroute2's classes take too long; numbers there are in network byte order, as nfnetlink has them.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

from pyroute2.netlink import NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR
from pyroute2.netlink.rtnl import RTMGRP_LINK

NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12

_SOL_NETLINK = 270
_NETLINK_CAP_ACK = 10
_NETLINK_EXT_ACK = 11
_NLM_F_DUMP_INTR = 0x10
_NLM_F_ACK_TLVS = 0x200
_NLMSGERR_ATTR_MSG = 1
_SO_SNDBUFFORCE = 32
_RECEIVE_BYTES = 1 << 18
_USUAL_SEND_BYTES = 1 << 17
_HEADER_BYTES = 16
_HEADER = struct.Struct("=IHHII")
_DUMP_ATTEMPTS = 10

_NESTED = 0x8000
_ATTRIBUTE_HEADER_BYTES = 4

_EVENT_BYTES = 1 << 16


class NetlinkError(OSError):
    """
    The kernel refused a request.

    `explanation` is the kernel's own text about the reason, or empty; `message` is the refused message.
    """

    explanation: str = ""
    message: Any = None


class WrittenMessage:
    """A message that is already encoded behind the header; `flags` are those of `header["flags"]`."""

    def __init__(self, kind: int, flags: int, body: bytes) -> None:
        self.kind = kind
        self.flags = flags
        self.body = body


class Netlink:
    """
    A netlink socket of a protocol, in the network namespace of the process at the construction.

    Messages are pyroute2's (`ifinfmsg`, `nfgen_msg`, …) with `header["type"]` and, for flags beyond an acknowledged
    request, `header["flags"]` set; or a WrittenMessage, whose only answer is an acknowledgement.
    """

    def __init__(self, protocol: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
        self._sequence = 0

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def request(self, message: Any) -> None:
        """Send a request and wait for its acknowledgement; NetlinkError on a refusal."""
        self.batch([message])

    def batch(self, messages: Sequence[Any], acknowledged: Sequence[Any] | None = None) -> None:
        """
        Send messages as a single datagram and wait for the acknowledgements of all, or of `acknowledged`.

        NetlinkError with the first refusal. nf_tables applies a batch as a whole or not at all.
        """
        sent = {}
        waiting = set()
        encoded = []
        for message in messages:
            wants_answer = acknowledged is None or any(message is one for one in acknowledged)
            encoded.append(self._encode(message, NLM_F_ACK if wants_answer else 0))
            sent[self._sequence] = message
            if wants_answer:
                waiting.add(self._sequence)
        self._send(b"".join(encoded))
        failure: NetlinkError | None = None
        while waiting:
            for answer in self._receive():
                if answer.kind != NLMSG_ERROR or answer.sequence not in sent:
                    continue
                error = _refusal(answer, sent[answer.sequence])
                failure = failure or error
                if error is not None and answer.sequence not in waiting:
                    # Of the batch itself; whether acknowledgements come all the same depends on the reason.
                    raise error
                waiting.discard(answer.sequence)
        if failure is not None:
            raise failure

    def ask(self, message: Any) -> Any:
        """Return the only answer to a request that is no dump, decoded as a message of the same class."""
        self._send(self._encode(message, NLM_F_ACK))
        decoded = None
        while True:
            for answer in self._receive():
                if answer.sequence != self._sequence:
                    continue
                if answer.kind != NLMSG_ERROR:
                    decoded = _decode(answer, message)
                    continue
                error = _refusal(answer, message)
                if error is not None:
                    raise error
                return decoded

    def dump(self, message: Any) -> list[Any]:
        """Return the answers to a dump request, decoded as messages of the same class."""
        answers, is_consistent = self._dump(message)
        for _ in range(_DUMP_ATTEMPTS):
            if is_consistent:
                break
            answers, is_consistent = self._dump(message)
        return answers

    def _dump(self, message: Any) -> tuple[list[Any], bool]:
        """Return the answers to a dump request, and whether nothing changed meanwhile."""
        self._send(self._encode(message, NLM_F_DUMP))
        answers: list[Any] = []
        is_consistent = True
        while True:
            for answer in self._receive():
                if answer.sequence != self._sequence:
                    continue
                is_consistent = is_consistent and not answer.flags & _NLM_F_DUMP_INTR
                if answer.kind not in (NLMSG_DONE, NLMSG_ERROR):
                    answers.append(_decode(answer, message))
                    continue
                error = _refusal(answer, message)
                if error is not None:
                    raise error
                return answers, is_consistent

    def _encode(self, message: Any, flags: int) -> bytes:
        self._sequence += 1
        if isinstance(message, WrittenMessage):
            header = (_HEADER_BYTES + len(message.body), message.kind, message.flags | NLM_F_REQUEST | flags)
            return _HEADER.pack(*header, self._sequence, 0) + message.body
        message["header"]["sequence_number"] = self._sequence
        message["header"]["pid"] = 0
        message["header"]["flags"] = message["header"].get("flags", 0) | NLM_F_REQUEST | flags
        message.reset()
        message.encode()
        return bytes(message.data)

    def _send(self, data: bytes) -> None:
        if len(data) > _USUAL_SEND_BYTES:
            # The kernel refuses a datagram that exceeds the buffer.
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 2 * len(data))
        self._socket.send(data)

    def _receive(self) -> list[_Answer]:
        """Return the messages of the next datagram."""
        data = self._socket.recv(_RECEIVE_BYTES)
        answers = []
        while len(data) >= _HEADER_BYTES:
            size = int.from_bytes(data[0:4], "little")
            answers.append(_Answer(data[:size]))
            data = data[(size + 3) & ~3 :]
        return answers


class _Answer:
    """A received message: all bytes, and the fields of its header."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.kind = int.from_bytes(data[4:6], "little")
        self.flags = int.from_bytes(data[6:8], "little")
        self.sequence = int.from_bytes(data[8:12], "little")


def _decode(answer: _Answer, message: Any) -> Any:
    decoded = type(message)(answer.data)
    decoded.decode()
    return decoded


def _refusal(answer: _Answer, message: Any) -> NetlinkError | None:
    """Return the error at the end of an answer, None for success."""
    body = answer.data[_HEADER_BYTES:]
    number = -int.from_bytes(body[0:4], "little", signed=True)
    if number <= 0:
        return None
    error = NetlinkError(number, os.strerror(number))
    error.explanation = _explanation(answer, body)
    error.message = message
    return error


def _explanation(answer: _Answer, body: bytes) -> str:
    """Return the kernel's text about an error, linux/netlink.h: `struct nlmsgerr` and its attributes."""
    if not answer.flags & _NLM_F_ACK_TLVS:
        return ""
    # After the errno comes the header of the refused message, and without NETLINK_CAP_ACK also the rest of the message.
    attributes = body[4 + _HEADER_BYTES :] if answer.kind == NLMSG_ERROR else body[4:]
    while len(attributes) >= 4:
        size = int.from_bytes(attributes[0:2], "little")
        if int.from_bytes(attributes[2:4], "little") == _NLMSGERR_ATTR_MSG:
            return attributes[4:size].rstrip(b"\0").decode("utf-8", "replace")
        attributes = attributes[max(4, (size + 3) & ~3) :]
    return ""


def attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute, padded to the beginning of the next."""
    return _header(kind, value) + value + bytes(-len(value) % 4)


def number(kind: int, value: int) -> bytes:
    """Return an attribute of 32 bits, signed or not."""
    return attribute(kind, (value & 0xFFFFFFFF).to_bytes(4, "big"))


def text(kind: int, value: str) -> bytes:
    """Return a string attribute; a surrogate of invalid UTF-8 stands for its byte."""
    return attribute(kind, value.encode("utf-8", "surrogateescape") + b"\0")


def nested(kind: int, *attributes: bytes) -> bytes:
    """Return an attribute made of others."""
    value = b"".join(attributes)
    return _header(kind | _NESTED, value) + value


def read_attributes(data: bytes) -> dict[int, bytes]:
    """Return the values of consecutive attributes by their kinds."""
    found = {}
    while len(data) >= _ATTRIBUTE_HEADER_BYTES:
        size = int.from_bytes(data[0:2], "little")
        found[int.from_bytes(data[2:4], "little") & ~_NESTED] = data[_ATTRIBUTE_HEADER_BYTES:size]
        data = data[max(_ATTRIBUTE_HEADER_BYTES, size + 3 & ~3) :]
    return found


def _header(kind: int, value: bytes) -> bytes:
    return (4 + len(value)).to_bytes(2, "little") + kind.to_bytes(2, "little")


class KernelEvents:
    """
    The kernel's events of `groups`, RTMGRP_…, about links and addresses of the network namespace of the process at the
    construction: an event only says to look again.
    """

    def __init__(self, groups: int = RTMGRP_LINK) -> None:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, 0)
        self._socket.bind((0, groups))

    def __enter__(self) -> KernelEvents:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor, which is readable after an event."""
        return self._socket.fileno()

    def drop(self) -> None:
        """Forget all events until now."""
        try:
            while self._socket.recv(_EVENT_BYTES):
                pass
        except OSError:
            pass  # nothing left, or more than the socket holds: what there is now is looked at
