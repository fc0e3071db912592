"""minit.base.goduration: durations as Go writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.goduration import parse_duration

UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("10s", 10.0),
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("500ms", 0.5),
        ("1m30s", 90.0),
        ("1h2m3s", 3723.0),
        ("1ms500us", 0.0015),
        ("5µs", 5e-6),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    """Numbers with units add up."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "5", "s", ".s", "-", "+", "1.2.3s", "5 s", " 5s", "5s ", "1d", "1e3s", "infs", "nan", "٣s", "9" * 400 + "h"],
)
def test_what_is_no_duration(text: str) -> None:
    """Text without units, a lone sign, a blank, another unit or more than Go can hold is refused."""
    with pytest.raises(ValueError):
        parse_duration(text)


@given(st.lists(st.tuples(st.integers(0, 5 * 10**5), st.sampled_from(sorted(UNITS))), min_size=1, max_size=4))
def test_parts_add_up(parts: list[tuple[int, str]]) -> None:
    """The sum of any parts that fit together into Go's 64 bits is what Go would say."""
    text = "".join(f"{number}{unit}" for number, unit in parts)
    assert parse_duration(text) == pytest.approx(sum(number * UNITS[unit] for number, unit in parts))


@given(st.text("0123456789.nuµmsh-+e ", max_size=12))
def test_any_text_gives_a_finite_duration_or_a_value_error(text: str) -> None:
    """No text gives infinity or another error."""
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert abs(seconds) < 1e10
