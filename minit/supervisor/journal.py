"""
PID 1's own log, one JSON object a line; the only configuration of structlog.

Events are kept from the first instruction and written once PID 1 has the time for that.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from minit.base.jsontext import dump
from minit.podfiles import paths
from minit.podfiles.boundedfile import BoundedLog
from minit.podfiles.paths import PodEvent
from minit.supervisor.podevents import Events

_KEPT_EVENTS = 1000
_FILE_BYTES = 1 << 19
"""Of each of the two files."""


class Journal:
    """A list of events until `attach` gives it a place to write them to; `events` are those for the pod's users."""

    def __init__(self, debug: bool) -> None:
        self.events = Events()
        self._debug = debug
        self._kept: list[tuple[str, dict[str, object]]] = []
        self._write: Callable[[str, dict[str, object]], None] | None = None

    def event(self, event: PodEvent, **fields: object) -> None:
        """Log what users of the pod are told of as well."""
        self.events.add(event, fields)
        self.info(event, **fields)

    def info(self, event: str, **fields: object) -> None:
        """Log a transition that an operator wants to see."""
        if self._write is not None:
            self._write(event, fields)
        elif len(self._kept) < _KEPT_EVENTS:
            self._kept.append((event, fields))

    def debug(self, event: str, **fields: object) -> None:
        """Log a detail, with --debug only."""
        if self._debug:
            self.info(event, **fields)

    def attach(self, write: Callable[[str, dict[str, object]], None]) -> None:
        """Write the events so far, and from now on each as it comes."""
        self._write = write
        kept, self._kept = self._kept, []
        for event, fields in kept:
            write(event, fields)


class _Lines:
    """The writer of structlog's lines."""

    def __init__(self, file: BoundedLog) -> None:
        self._file = file

    def msg(self, line: bytes) -> None:
        self._file.append(line + b"\n")


def open_journal() -> Callable[[str, dict[str, object]], None]:
    """Return a function that appends an event with its fields to the pod's supervisor log."""
    logger = structlog.wrap_logger(
        _Lines(BoundedLog(paths.STAGE1_SUPERVISOR_LOG, _FILE_BYTES)),
        processors=[
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(serializer=lambda event, **_: dump(event)),
        ],
        wrapper_class=structlog.BoundLogger,
    )
    # Once: otherwise each event makes a logger of its own, which only the collector can remove.
    logger = logger.bind()

    def write(event: str, fields: dict[str, object]) -> None:
        try:
            logger.msg(event, **fields)
        except OSError:
            pass  # a full disk must not stop PID 1, and there is no other place to say so

    return write
