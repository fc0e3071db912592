"""Texts that an image may have where a line is made of them, and what such a line must not hold."""

from __future__ import annotations

import unicodedata

EVIL = "\x1b]0;x\x07\r\nstage1: forged\x9b\u202e\u2066\u200f\u200b\u2028\u2029\x85\ufeffend"
ATTACKS = (EVIL, "\x1b[2J", "a\nstage1: b", "\r", "\x9b2J", "\u202egpj.exe", "\u2028", "\u200b", "\x7f", "\udc9b")
# Controls, formats (directions and what has no width), halves of surrogate pairs, separators of lines and paragraphs.
_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def is_harmless(line: str) -> bool:
    """Tell whether nothing in a line acts on a terminal, hides, or makes another line; a tab may stand in it."""
    return not any(unicodedata.category(character) in _CATEGORIES for character in line if character != "\t")
