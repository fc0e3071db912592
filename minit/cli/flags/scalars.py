"""Whole numbers on the command line. Pure."""

from __future__ import annotations

from minit.cli.flagwords import FlagError

_MAX_DIGITS = 19


def parse_number(place: str, text: str, lowest: int, highest: int) -> int:
    """Return a number from `lowest` to `highest`, both included; FlagError, naming `place`, if `text` is none."""
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS and lowest <= int(text) <= highest:
        return int(text)
    raise FlagError(f'{place}: expected a number from {lowest} to {highest}, got "{text}"')
