"""The lines of an app's log, put together from records of the CRI log format, `TIME STREAM F|P TEXT`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# As minit writes them: times of one width, so that their order is that of their bytes, and so are the heads of records.
_TIME = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z"
_HEAD = re.compile(rb"(%s) (stdout|stderr) ([FP]) " % _TIME)
_HEAD_BYTES = len("2026-11-21T18:00:00.123456789Z stdout F ")
_RECORD_START = re.compile(rb"^(%s) (?:stdout|stderr) [FP] " % _TIME, re.MULTILINE)
_LAST_RECORD_START = re.compile(rb"^%s (stdout|stderr) F " % _TIME, re.MULTILINE)
# A line that an app never ends must not fill the memory of who reads it.
_LONGEST_LINE = 1 << 20


class LogLine(NamedTuple):
    """A line of output without its line feed; `ended` tells that there was one. `time` is that of its first part."""

    time: bytes
    stream: bytes
    text: bytes
    ended: bool


class LineAssembler:
    """Makes lines of the records of one app, whose parts may come one by one; `skipped` counts what was no record."""

    def __init__(self) -> None:
        self.skipped = 0
        self._begun: dict[bytes, tuple[bytes, bytearray]] = {}

    def add(self, data: bytes) -> Iterator[LogLine]:
        """Yield the lines that end in `data`, which is made of whole records."""
        begun = self._begun
        heads: dict[bytes, tuple[bytes, bytes, bool] | None] = {}
        for record in data.split(b"\n")[:-1]:
            head = record[:_HEAD_BYTES]
            # Records that were written at once have the same head, so few are looked at.
            if head not in heads:
                heads[head] = _parse_head(head)
            parsed = heads[head]
            if parsed is None:
                self.skipped += 1
                continue
            time, stream, ended = parsed
            if ended and not begun:
                yield LogLine(time, stream, record[_HEAD_BYTES:], True)
                continue
            first, text = begun.pop(stream) if stream in begun else (time, bytearray())
            text += record[_HEAD_BYTES:]
            if ended or len(text) > _LONGEST_LINE:
                yield LogLine(first, stream, bytes(text), ended)
            else:
                begun[stream] = first, text

    def plain_text(self, data: bytes) -> bytes:
        """Return the same lines as what the app wrote, faster if none of them has parts."""
        if not self._begun:
            records = data.split(b"\n")[:-1]
            heads = [_parse_head(head) for head in {record[:_HEAD_BYTES] for record in records}]
            if all(head is not None and head[2] for head in heads):
                return b"\n".join([record[_HEAD_BYTES:] for record in records] + [b""])
        return b"".join(line.text + b"\n" if line.ended else line.text for line in self.add(data))

    def rest(self) -> Iterator[LogLine]:
        """Yield the lines that have no end, now that nothing comes any more."""
        begun, self._begun = self._begun, {}
        for stream, (time, text) in begun.items():
            yield LogLine(time, stream, bytes(text), False)


def torn_record(data: bytes) -> bytes:
    """Return what is left of a record that was not written to its end, as one of a line without end."""
    match = _HEAD.match(data)
    return match[1] + b" " + match[2] + b" P " + data[_HEAD_BYTES:] + b"\n" if match else b""


def find_time(data: bytes, at: int = 0) -> tuple[int, bytes] | None:
    """Return where the first record from `at` on begins, and its time; None if there is none."""
    match = _RECORD_START.search(data, at)
    return (match.start(), match[1]) if match else None


def count_lines(data: bytes, streams: frozenset[bytes]) -> int:
    """Return how many lines of these streams end in `data`, which is made of whole records."""
    return sum(1 for stream in _LAST_RECORD_START.findall(data) if stream in streams)


def _parse_head(head: bytes) -> tuple[bytes, bytes, bool] | None:
    """Return time, stream and whether the line ends with the record; None if it is no record."""
    match = _HEAD.fullmatch(head)
    return (match[1], match[2], match[3] == b"F") if match else None
