"""The supervisor's log file, one JSON object a line; the only configuration of structlog."""

from __future__ import annotations

import os

import structlog

from minit import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def open_journal() -> Callable[[str, dict[str, object]], None]:
    """Return a function that appends an event with its fields to the pod's supervisor log."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.fdopen(os.open(paths.STAGE1_SUPERVISOR_LOG, flags, 0o640), "ab", buffering=0)
    logger = structlog.wrap_logger(
        structlog.BytesLogger(file),
        processors=[
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(serializer=lambda event, **_: _encode(event)),
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


def _encode(event: object) -> bytes:
    from minit.jsontext import dump

    return dump(event)
