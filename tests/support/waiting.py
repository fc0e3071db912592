"""Waiting for what only shows itself by being looked at, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")

# Shorter than what a test may take, so that it says itself what did not come.
TIMEOUT_SECONDS = 90.0
_PAUSE_SECONDS = 0.003


def wait_for(
    probe: Callable[[], T | Literal[False] | None],
    what: str,
    timeout_seconds: float = TIMEOUT_SECONDS,
    pause_seconds: float = _PAUSE_SECONDS,
) -> T:
    """Return the first true result of `probe`; AssertionError says `what` did not come in time."""
    end = time.monotonic() + timeout_seconds
    while not (result := probe()):
        assert time.monotonic() < end, f"waited {timeout_seconds} s for {what}"
        time.sleep(pause_seconds)
    return result
