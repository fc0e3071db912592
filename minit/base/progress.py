"""Reports of long work to the caller: step, progress and total; commands, stage0 and the image builder all use them."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, "int | None"], None]
"""Called with the step's text, the units done, and the units in all (None while unknown)."""


def silent(step: str, done: int, total: int | None) -> None:
    """Report nothing."""
