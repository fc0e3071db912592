"""Tokens: what was asked for by a call of gRPC, until its client comes for the streams."""

from __future__ import annotations

import hashlib
import secrets
from typing import Generic, TypeVar

import trio

from minit.cri.grpc.framing import CallError, Code

T = TypeVar("T")

_TOKEN_BYTES = 16
_SECONDS = 60.0
_MOST = 1000


class Tokens(Generic[T]):
    """
    Values by tokens that nobody guesses, each for one use within a minute.

    They are looked up by their digests: how long that takes tells nothing about a token.
    """

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[float, T]] = {}

    def put(self, value: T) -> str:
        """Keep a value and return its token; CallError if too many are kept already."""
        now = trio.current_time()
        self._kept = {digest: one for digest, one in self._kept.items() if one[0] > now}
        if len(self._kept) >= _MOST:
            raise CallError(Code.RESOURCE_EXHAUSTED, f"{_MOST} streams were asked for that nobody has come for yet")
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._kept[_digest(token)] = (now + _SECONDS, value)
        return token

    def take(self, token: str) -> T | None:
        """Return the value of a token, None if there is none, or it was taken, or its time is over."""
        until, value = self._kept.pop(_digest(token), (0.0, None))
        return value if until > trio.current_time() else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
