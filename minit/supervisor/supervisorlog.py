"""The supervisor's log file, one JSON object a line; the only configuration of structlog."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from minit.base.jsontext import dump
from minit.podfiles import paths
from minit.podfiles.boundedlog import BoundedLog

FILE_BYTES = 1 << 19
"""Of each of the two files."""


class _Lines:
    """The writer of structlog's lines."""

    def __init__(self, file: BoundedLog) -> None:
        self._file = file

    def msg(self, line: bytes) -> None:
        self._file.append(line + b"\n")


def open_journal() -> Callable[[str, dict[str, object]], None]:
    """Return a function that appends an event with its fields to the pod's supervisor log."""
    logger = structlog.wrap_logger(
        _Lines(BoundedLog(paths.STAGE1_SUPERVISOR_LOG, FILE_BYTES)),
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
