"""Reports of long work to its caller: a step, its progress and its total."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, "int | None"], None]
"""Called with the step's text, the units done, and the units in all (None while unknown)."""


def silent(step: str, done: int, total: int | None) -> None:
    """Report nothing."""
