"""
The events of the pod, for its users: numbered, the last ones in memory, all in a file that outlives the pod.

A reader gets all events from that file, or sees by their numbers how many are missing: nobody can hold PID 1 up.
docs/events.md has their meaning.
"""

from __future__ import annotations

import time

from minit import jsontext, paths
from minit.boundedlog import BoundedLog
from minit.utctime import utc_text_ns

KEPT_EVENTS = 1000
# Of each of the two files.
FILE_BYTES = 1 << 19
_WRITE_BYTES = 1 << 16


class Events:
    """
    The last KEPT_EVENTS events of the pod, each a line of JSON.

    They are numbered from 1 on. `flush` writes those that are not in the file yet, as long as they are kept. An event
    becomes its line when that is first asked for: the line is a third as large, and nothing is to be encoded while a
    pod starts.
    """

    def __init__(self) -> None:
        self.last = 0
        self._kept: list[bytes | tuple[int, str, dict[str, object]]] = []
        self._written = 0
        self._file = BoundedLog(paths.STAGE1_EVENTS, FILE_BYTES)

    def add(self, event: str, fields: dict[str, object]) -> None:
        """Number an event and keep it."""
        self.last += 1
        self._kept.append((time.time_ns(), event, fields))
        del self._kept[:-KEPT_EVENTS]

    def since(self, number: int, limit_bytes: int) -> tuple[list[bytes], int]:
        """Return the lines of kept events after `number`, as many as fit, and the number of the last one of them."""
        first = self.last - len(self._kept) + 1
        number = min(max(number, first - 1), self.last)
        lines: list[bytes] = []
        while number < self.last:
            line = self._encode(number + 1)
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

    def _encode(self, number: int) -> bytes:
        index = number - self.last - 1
        kept = self._kept[index]
        if isinstance(kept, bytes):
            return kept
        time_ns, event, fields = kept
        line = jsontext.dump({"seq": number, "time": utc_text_ns(time_ns), "event": event, **fields})
        self._kept[index] = line
        return line
