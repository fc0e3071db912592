"""Durations as Go's time package reads and writes them (`500ms`, `1m30s`), rkt's format in flags and messages."""

from __future__ import annotations

import re

_UNIT_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")


def parse_duration(text: str) -> float:
    """Return a Go duration in seconds; ValueError if `text` is none."""
    sign, body = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if body == "0":
        return 0.0
    position, total_ns = 0, 0
    while position < len(body):
        part = _PART.match(body, position)
        if part is None or not (part[1] or part[2]):
            break
        unit_ns = _UNIT_NANOSECONDS[part[3]]
        fraction = part[2] or ""
        total_ns += int(part[1] or "0") * unit_ns + int(fraction or "0") * unit_ns // 10 ** len(fraction)
        position = part.end()
    if not body or position < len(body):
        raise ValueError(f'invalid duration "{text}" (write for example 30s, 1m30s or 24h)')
    return sign * total_ns / 1e9


def format_duration(seconds: float) -> str:
    """Return `seconds` as Go's Duration.String() does, for example `30m0s`."""
    total_ns = round(abs(seconds) * 1e9)
    sign = "-" if seconds < 0 and total_ns else ""
    if total_ns == 0:
        return "0s"
    for unit, size_ns in (("ns", 1), ("µs", 1_000), ("ms", 1_000_000)):
        if total_ns < size_ns * 1000:
            return f"{sign}{_decimal(total_ns, size_ns)}{unit}"
    hours, rest_ns = divmod(total_ns, _UNIT_NANOSECONDS["h"])
    minutes, rest_ns = divmod(rest_ns, _UNIT_NANOSECONDS["m"])
    text = f"{_decimal(rest_ns, _UNIT_NANOSECONDS['s'])}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    if hours:
        text = f"{hours}h{text}"
    return sign + text


def _decimal(amount: int, unit: int) -> str:
    whole, rest = divmod(amount, unit)
    if not rest:
        return str(whole)
    return f"{whole}." + str(rest).zfill(len(str(unit)) - 1).rstrip("0")
