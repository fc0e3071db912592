"""What long work tells its caller: a step, how far it is, and how far there is to go."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, "int | None"], None]
"""Called with the step's text, the units done, and the units in all (None while unknown)."""


def silent(step: str, done: int, total: int | None) -> None:
    """Report nothing."""
