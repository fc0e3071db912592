"""
What gRPC writes into headers and bodies of HTTP/2 (the "gRPC over HTTP2" document of its protocol).

A message is preceded by a byte that says whether it is compressed, and by its length in four.
"""

from __future__ import annotations

import re
import struct
import urllib.parse
from enum import IntEnum

from minit.base.errors import FailureKind, MinitError

LARGEST_MESSAGE_BYTES = 16 << 20  # of a kubelet's client

_PREFIX = struct.Struct(">?I")
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNIT_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MOST_LETTERS = 1000  # of a message: clients limit headers
_AS_IT_IS = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class Code(IntEnum):
    """The outcome of a call, by gRPC's number."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


_CODES = {
    FailureKind.INVALID: Code.INVALID_ARGUMENT,
    FailureKind.STATE: Code.FAILED_PRECONDITION,
    FailureKind.EXHAUSTED: Code.RESOURCE_EXHAUSTED,
    FailureKind.TIME_OVER: Code.DEADLINE_EXCEEDED,
}


def code_of(kind: FailureKind | None) -> Code:
    """Return the code of a kind of failure."""
    return Code.UNKNOWN if kind is None else _CODES[kind]


class CallError(MinitError):
    """A call that fails with a code of its own; other errors of minit have that of their kind."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def frame(message: bytes) -> bytes:
    """Return a message as it stands in a body."""
    return _PREFIX.pack(False, len(message)) + message


def unframe(body: bytes) -> bytes:
    """Return the only message of a body; CallError if it is none, or compressed."""
    if len(body) < _PREFIX.size:
        raise CallError(Code.INTERNAL, "the call has no message")
    is_compressed, size_bytes = _PREFIX.unpack_from(body)
    if is_compressed:
        raise CallError(Code.UNIMPLEMENTED, "messages are not compressed here")
    if size_bytes != len(body) - _PREFIX.size:
        raise CallError(Code.INTERNAL, "the message is not as long as it says, or not the only one")
    return body[_PREFIX.size :]


def parse_timeout(text: str) -> float:
    """Return the seconds of a `grpc-timeout`; CallError if there are none in it."""
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        raise CallError(Code.INTERNAL, f"grpc-timeout: {text!r} is no time")
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def status_headers(code: Code, message: str) -> list[tuple[str, str]]:
    """Return the trailers that end a call; the message is percent-encoded, so that it can be any text."""
    encoded = urllib.parse.quote(message[:_MOST_LETTERS], safe=_AS_IT_IS)
    return [("grpc-status", str(int(code))), *([("grpc-message", encoded)] if encoded else [])]
