"""
The messages of NTP for a client (RFC 5905, RFC 4330), and the offset on which several servers agree.

Pure. A message from the network is the answer to the only open question, or nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from minit.base.value import Value

PORT = 123
NONCE_BYTES = 8

# Leap indicator, version and mode; stratum, poll, precision; root delay and dispersion, identifier; four timestamps.
_MESSAGE = struct.Struct(">BBbbII4sQ8sQQ")
_VERSION, _CLIENT, _SERVER = 4, 3, 4
_NOT_SYNCHRONIZED = 3
_HIGHEST_STRATUM = 15
_SHORT = 1 << 16  # of a root delay, one second
_SECOND = 1 << 32  # of a timestamp
_ERA = 1 << 64
_ERA_SECONDS = 1 << 32
_SECONDS_TO_1970 = 2208988800
# MAXDIST of RFC 5905: a server further away from a true clock has no time.
_MAXIMUM_ROOT_DISTANCE_SECONDS = 1.5
_PRECISION_SECONDS = 0.001


class Answer(Value):
    """
    A server's answer: its clock at the arrival of the question and at the departure of the answer, in seconds since
    1970.

    Its clock is `root_distance_seconds` from the true time at most. An answer with a `kiss`, a word of four letters,
    has no time, but the reason why (RFC 5905, 7.4).
    """

    received: float = 0.0
    sent: float = 0.0
    root_distance_seconds: float = 0.0
    kiss: str | None = None


class Sample(Value):
    """The result of an exchange: the clock is behind by `offset`, with an error of at most `distance`; seconds."""

    server: str
    offset: float
    distance: float


def encode_question(nonce: bytes) -> bytes:
    """Return a question; the answer repeats the `nonce`, which is in the place of the client's time."""
    return _MESSAGE.pack(_VERSION << 3 | _CLIENT, 0, 0, 0, 0, 0, b"", 0, b"", 0, int.from_bytes(nonce, "big"))


def parse_answer(data: bytes, nonce: bytes, near: float) -> Answer | None:
    """
    Return a server's answer to the question with this `nonce`; None for any other message, or from a wrong clock.

    Its times are within 68 years of the time `near`: timestamps of NTP begin anew after 136.
    """
    if len(data) < _MESSAGE.size:
        return None
    first, stratum, _, _, delay, dispersion, identifier, reference, origin, received, sent = _MESSAGE.unpack_from(data)
    leap, version, mode = first >> 6, first >> 3 & 7, first & 7
    if (version, mode, origin) != (_VERSION, _SERVER, nonce):
        return None
    if stratum == 0:
        return Answer(kiss=identifier.decode("ascii", "replace"))
    distance = (delay / 2 + dispersion) / _SHORT
    if leap == _NOT_SYNCHRONIZED or stratum > _HIGHEST_STRATUM or distance > _MAXIMUM_ROOT_DISTANCE_SECONDS:
        return None
    if not received or not sent or _is_before(sent, received) or _is_before(sent, reference):
        return None
    return Answer(
        received=_unix_seconds(received, near),
        sent=_unix_seconds(sent, near),
        root_distance_seconds=distance,
    )


def measure(server: str, answer: Answer, asked: float, took_seconds: float) -> Sample | None:
    """
    Return the result for a question sent at `asked` by this clock; None if the server claims to have held the question
    longer than the exchange took.
    """
    delay = took_seconds - (answer.sent - answer.received)
    if delay < -_PRECISION_SECONDS:
        return None
    offset = ((answer.received - asked) + (answer.sent - (asked + took_seconds))) / 2
    distance = max(delay, 0.0) / 2 + answer.root_distance_seconds + _PRECISION_SECONDS
    return Sample(server=server, offset=offset, distance=distance)


def agreed(samples: Sequence[Sample]) -> Sample | None:
    """Return the best of the samples that can all be true (Marzullo's algorithm), if these are more than half."""
    best: list[Sample] = []
    for edge in (one.offset - one.distance for one in samples):
        together = [one for one in samples if one.offset - one.distance <= edge <= one.offset + one.distance]
        best = max(best, together, key=len)
    if 2 * len(best) <= len(samples):
        return None
    return min(best, key=lambda one: one.distance)


def _is_before(one: int, other: int) -> bool:
    return (one - other) % _ERA >= _ERA // 2


def _unix_seconds(timestamp: int, near: float) -> float:
    seconds = timestamp // _SECOND - _SECONDS_TO_1970
    first = int(near) - _ERA_SECONDS // 2
    return first + (seconds - first) % _ERA_SECONDS + timestamp % _SECOND / _SECOND
