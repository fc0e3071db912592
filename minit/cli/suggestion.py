"""Suggestions for an unknown name that somebody typed."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LIKENESS = 0.75  # one letter of four may differ


def suggest(word: str, names: Iterable[str]) -> str:
    """Return `, did you mean NAME?` for the name most like the word, nothing if none is like it."""
    matches = get_close_matches(word, list(names), n=1, cutoff=_LIKENESS)
    return f", did you mean {matches[0]}?" if matches else ""
