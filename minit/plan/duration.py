"""Durations as Go writes them, which is how annotations and flags give them."""

from __future__ import annotations

_UNIT_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

_MAXIMUM_SECONDS = (2**63 - 1) / 1e9  # what Go's int64 of nanoseconds holds


def parse_duration(text: str) -> float:
    """Return the seconds that text such as `1m30s` or `500ms` stands for; ValueError if it is no duration."""
    rest, seconds = text, 0.0
    if rest == "0":
        return seconds
    if not rest:
        raise ValueError("empty duration")
    while rest:
        number = rest[: len(rest) - len(rest.lstrip("0123456789."))]
        rest = rest[len(number) :]
        unit = rest[: len(rest) - len(rest.lstrip("nuµmsh"))]
        rest = rest[len(unit) :]
        if unit not in _UNIT_SECONDS or not number.strip("."):
            raise ValueError(f'not a duration: "{text}"')
        seconds += float(number) * _UNIT_SECONDS[unit]
    if seconds > _MAXIMUM_SECONDS:
        raise ValueError(f'longer than 292 years: "{text}"')
    return seconds
