"""
The log of an output that clients attach to.

How much of the output is logged is among the counters, which outlive the sidecar, and so is the time of a write that
may not have come to its end: the records of that time are what came of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from minit.iottymux.logfile import LINE_BYTES
from minit.iottymux.streams.counters import Counters
from minit.iottymux.streams.ring import Ring


class LineLog(Protocol):
    """A log that takes output of a stream in whole lines; `kind` names it among the counters."""

    kind: str

    def write(self, stream: str, data: bytes, note_time: Callable[[int], object]) -> None:
        """Append output, and tell its time, in nanoseconds since 1970, before any of it is there."""

    def written_bytes(self, stream: str, now_ns: int) -> int:
        """Return how much of the output of `now_ns` is there, if anybody can tell."""

    def note_lost(self, size_bytes: int) -> None:
        """Say that so much is missing, before the next output."""

    def reopen(self) -> None:
        """Let go of a file that somebody moved."""


class OutputLog:
    """
    The whole lines of an output in `log`, as `stream`, and parts of those that are too long to be kept.

    The output goes to `ring` too, after it is logged; the beginning of a line is only there.
    """

    def __init__(self, stream: str, log: LineLog, ring: Ring, counters: Counters) -> None:
        self._stream = stream
        self._log = log
        self._ring = ring
        self._counters = counters
        position, tried_ns = counters.logged(ring.name, log.kind)
        if tried_ns:
            position += log.written_bytes(stream, tried_ns)
            counters.set_logged(ring.name, log.kind, position)
        self._position = position
        self._skip = max(0, position - ring.position)
        kept = ring.read()
        missing = ring.position - len(kept) - position
        if missing > 0:
            log.note_lost(missing)
        self._unfinished = kept[max(0, -missing) :]

    def put(self, data: bytes, *, ended: bool = False) -> None:
        """Log what goes into the ring next, up to the last line feed, or with `ended` all of it."""
        end = self._ring.position + len(data)
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        lines, line_feed, rest = (self._unfinished + data[skipped:]).rpartition(b"\n")
        if len(rest) >= LINE_BYTES or ended:
            lines, line_feed, rest = lines + line_feed + rest, b"", b""
        self._unfinished = rest
        if lines or line_feed:
            note_time = partial(self._counters.set_logged, self._ring.name, self._log.kind, self._position)
            self._log.write(self._stream, lines + line_feed, note_time)
            self._position = end - len(rest)
            self._counters.set_logged(self._ring.name, self._log.kind, self._position)
