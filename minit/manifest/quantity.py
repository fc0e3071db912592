"""Quantities of resources (`500m`, `1.5Gi`, `2e6`), as isolators give limits of memory and cpu."""

from __future__ import annotations

_DIGITS = "0123456789"
_MAX_LENGTH = 32  # characters; bounds the numbers that a text can make
_MAX_EXPONENT = 18  # the E of the largest suffix

# appc spec/ace.md, "Resource isolators"; `K` is refused by rkt's parser, whatever the specification says.
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

BILLION = 10**9
"""The number of units of parse_quantity in one."""


def parse_quantity(text: str) -> int:
    """Return a quantity in billionths, fractions of them rounded up; ValueError if `text` is none."""
    quantity = _parse(text) if len(text) <= _MAX_LENGTH else None
    if quantity is None:
        raise ValueError(f'invalid quantity "{text}" (write for example 500m, 16M or 1.5Gi)')
    return quantity


def _parse(text: str) -> int | None:
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    suffix = rest.lstrip(_DIGITS + ".")
    whole, _, fraction = rest.removesuffix(suffix).partition(".")
    exponent = 0 if suffix in _BINARY else _decimal_exponent(suffix)
    if exponent is None or not whole + fraction or "." in fraction:
        return None
    count = sign * int(whole + fraction) << _BINARY.get(suffix, 0)
    scale = 9 + exponent - len(fraction)
    power: int = 10 ** abs(scale)
    return count * power if scale >= 0 else -(-count // power)


def _decimal_exponent(suffix: str) -> int | None:
    if suffix in _DECIMAL:
        return _DECIMAL[suffix]
    digits = suffix[2:] if suffix[1:2] in ("+", "-") else suffix[1:]
    if suffix[0] not in "eE" or not digits or digits.strip(_DIGITS) or int(digits) > _MAX_EXPONENT:
        return None
    return -int(digits) if suffix[1] == "-" else int(digits)
