"""
The events of the pod, for its users: numbered, the last ones in memory, all in a file that outlives the pod.

A reader gets all events from that file, or sees by their numbers how many are missing: nobody can hold PID 1 up.
docs/events.md has their meaning.
"""

from __future__ import annotations

import os
import stat
import time

from minit.base import jsontext
from minit.base.carried import Carried
from minit.base.errors import ManifestError
from minit.base.utctime import utc_text_ns
from minit.podfiles import paths
from minit.podfiles.boundedfile import BoundedLog

KEPT_EVENTS = 1000
# Of each of the two files.
FILE_BYTES = 1 << 19
_WRITE_BYTES = 1 << 16
_ALL_BYTES = 1 << 30
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Number, nanoseconds since 1970, name, fields.
_Event = tuple[int, int, str, dict[str, object]]


class Events(Carried):
    """
    The last KEPT_EVENTS events of the pod, each a line of JSON.

    They are numbered from 1 on. `flush` writes those that are not in the file yet, as long as they are kept. An event
    becomes its line when that is first asked for: the line is a third as large, and nothing is to be encoded while a
    pod starts.
    """

    _written: int
    _unwritten: list[bytes]
    """Lines that the file has not taken, for another program, which has the others from the file."""

    def __init__(self) -> None:
        self._unwritten = []
        self._written = 0
        # By one append, which is done or not: an error in between must not leave a number without an event.
        self._kept: list[bytes | _Event] = []
        # The number of the last line.
        self._encoded = 0
        self._file = BoundedLog(paths.STAGE1_EVENTS, FILE_BYTES)

    @property
    def last(self) -> int:
        """The number of the last event, 0 before the first."""
        last = self._kept[-1] if self._kept else b""
        return self._encoded if isinstance(last, bytes) else last[0]

    def leave(self) -> None:
        """Write all events, or keep those for another program that cannot be written now."""
        self.flush()
        self._unwritten, _ = self.since(self._written, _ALL_BYTES)

    def resume(self) -> None:
        """Have the events of the program before, which the file has but for the last ones."""
        lines = _read_lines(paths.STAGE1_EVENTS, KEPT_EVENTS)
        if len(lines) < KEPT_EVENTS:
            lines = _read_lines(f"{paths.STAGE1_EVENTS}.1", KEPT_EVENTS - len(lines)) + lines
        if _last_number(b"\n".join(lines[-1:])) != self._written:
            lines = []
        kept = [*lines, *self._unwritten][-KEPT_EVENTS:]
        self._encoded = self._written + len(self._unwritten)
        self._kept = [*kept]
        self._unwritten = []

    def add(self, event: str, fields: dict[str, object]) -> None:
        """Number an event and keep it."""
        self._kept.append((self.last + 1, time.time_ns(), event, fields))
        del self._kept[:-KEPT_EVENTS]

    def since(self, number: int, limit_bytes: int) -> tuple[list[bytes], int]:
        """Return the lines of kept events after `number`, as many as fit, and the number of the last one of them."""
        last = self.last
        before = last - len(self._kept)
        number = min(max(number, before), last)
        lines: list[bytes] = []
        while number < last:
            line = self._encode(number - before)
            limit_bytes -= len(line)
            if lines and limit_bytes < 0:
                break
            lines.append(line)
            number += 1
        return lines, number

    def flush(self) -> bool:
        """Append to the file what is not in it yet; returns whether a disk has taken it all, or not yet."""
        try:
            while self._written < self.last:
                lines, last = self.since(self._written, _WRITE_BYTES)
                self._file.append(b"".join(line + b"\n" for line in lines))
                self._written = last
        except OSError:
            return False  # a full disk, say; there is no other place to say so
        return True

    def _encode(self, index: int) -> bytes:
        kept = self._kept[index]
        if isinstance(kept, bytes):
            return kept
        line = _line(*kept)
        # In this order: until the event is its line, the event has the number.
        self._encoded = max(self._encoded, kept[0])
        self._kept[index] = line
        return line


def append_event(path: str, event: str, fields: dict[str, object]) -> None:
    """Append an event to the file `path` of a PID 1 that is dead; OSError if that could not be done."""
    text = _read_end(path)
    numbers = [number for data in (text, _read_end(f"{path}.1")) if (number := _last_number(data)) is not None]
    line = _line(max(numbers, default=0) + 1, time.time_ns(), event, fields) + b"\n"
    # Death may have come between two parts of a line.
    BoundedLog(path, FILE_BYTES).append(line if text.endswith(b"\n") or not text else b"\n" + line)


def _line(number: int, time_ns: int, event: str, fields: dict[str, object]) -> bytes:
    return jsontext.dump({"seq": number, "time": utc_text_ns(time_ns), "event": event, **fields})


def _read_end(path: str) -> bytes:
    """Return the end of a file of events, empty if there is none."""
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError:
        return b""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return b""
        return os.pread(fd, _WRITE_BYTES, max(0, status.st_size - _WRITE_BYTES))
    finally:
        os.close(fd)


def _read_lines(path: str, most: int) -> list[bytes]:
    """Return the last lines of a file of events, at most so many, without line ends."""
    try:
        fd = os.open(path, _FLAGS)
    except OSError:
        return []
    try:
        begin, data = os.fstat(fd).st_size, b""
        # A line more, of which the beginning may be missing.
        while begin and data.count(b"\n") <= most:
            end, begin = begin, max(0, begin - _WRITE_BYTES)
            data = os.pread(fd, end - begin, begin) + data
        return data.splitlines()[-most:]
    except OSError:
        return []
    finally:
        os.close(fd)


def _last_number(data: bytes) -> int | None:
    for line in reversed(data.splitlines()):
        try:
            event = jsontext.parse(line, "event")
        except ManifestError:
            continue
        if isinstance(event, dict) and isinstance(event.get("seq"), int):
            return int(event["seq"])
    return None
