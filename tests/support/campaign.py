"""Kinds of runs, and the length of a campaign: a sample in an ordinary run, ten times that with MINIT_TEST_LONG=1."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

LONG = os.environ.get("MINIT_TEST_LONG") == "1"
FOR_ARM64 = os.environ.get("MINIT_TEST_ARM64") == "1"
_LONG_FACTOR = 10
_THINNED = 3
_FEW = 5

T = TypeVar("T")


def campaign(sample: int) -> int:
    """Return how many times to try what `sample` times are enough of in an ordinary run."""
    return sample * _LONG_FACTOR if LONG else sample


def thinned(cases: Sequence[T]) -> Sequence[T]:
    """Return every third of the cases, in a long run all of them."""
    return cases if LONG else cases[::_THINNED]


def few(cases: Sequence[T]) -> Sequence[T]:
    """Return every fifth of the cases, in a long run all of them."""
    return cases if LONG else cases[::_FEW]
