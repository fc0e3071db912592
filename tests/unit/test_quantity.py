"""Quantities of resources, as isolators give them."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.manifest.limits import BILLION, parse_quantity

SUFFIXES: dict[str, int | Fraction] = {
    **{"": 1, "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "k": 10**3, "M": 10**6},
    **{
        "G": 10**9,
        "T": 10**12,
        "P": 10**15,
        "E": 10**18,
        "e3": 1000,
        "E3": 1000,
        "e+3": 1000,
        "e-3": Fraction(1, 1000),
    },
    **{"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60},
}


@given(st.integers(0, 9999), st.integers(0, 999), st.sampled_from(sorted(SUFFIXES)), st.sampled_from(["", "+", "-"]))
def test_every_suffix(whole: int, thousandths: int, suffix: str, sign: str) -> None:
    """A quantity is its decimal number times what the suffix says, rounded up to billionths."""
    exact = (Fraction(whole) + Fraction(thousandths, 1000)) * SUFFIXES[suffix] * (-1 if sign == "-" else 1)
    assert parse_quantity(f"{sign}{whole}.{thousandths:03}{suffix}") == math.ceil(exact * BILLION)


@pytest.mark.parametrize(
    ("text", "billionths"),
    [
        ("1", BILLION),
        ("500m", BILLION // 2),
        ("4Ki", 4096 * BILLION),
        ("1.", BILLION),
        (".5", BILLION // 2),
        ("-2", -2 * BILLION),
    ],
)
def test_examples(text: str, billionths: int) -> None:
    """Either side of the point may be missing."""
    assert parse_quantity(text) == billionths


def test_rounding_is_upwards() -> None:
    """A value smaller than a billionth counts as one."""
    assert parse_quantity("0.0000000001") == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "K",
        "1K",
        "e3",
        "1e",
        "1e+",
        "1e-+3",
        "1.2.3",
        "--1",
        "1 ",
        " 1",
        "\uff11",
        "1e19",
        "1i",
        ".",
        "1m5",
        "0" * 33,
    ],
)
def test_what_is_no_quantity(text: str) -> None:
    """Everything else is refused with an example of what would do; rkt takes no upper-case K either."""
    with pytest.raises(ValueError, match="write for example 500m, 16M or 1.5Gi"):
        parse_quantity(text)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text leads to anything but a number or a ValueError."""
    try:
        parse_quantity(text)
    except ValueError as error:
        assert "invalid quantity" in str(error)
