"""Durations as Go's time package reads and writes them (`500ms`, `1m30s`), rkt's format in flags and messages."""

from __future__ import annotations

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
_MAXIMUM_NANOSECONDS = 2**63 - 1  # Go's int64, 292 years
_DIGITS = "0123456789"


def parse_duration(text: str) -> float:
    """Return a Go duration in seconds; ValueError if `text` is none."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return 0.0
    total_ns, valid = 0, bool(rest)
    while rest and valid:
        whole, rest = _split(rest, _DIGITS)
        fraction = ""
        if rest.startswith("."):
            fraction, rest = _split(rest[1:], _DIGITS)
        unit, rest = _split(rest, "nuµμmsh")
        valid = unit in _UNIT_NANOSECONDS and bool(whole or fraction)
        if valid:
            unit_ns = _UNIT_NANOSECONDS[unit]
            total_ns += int(whole or "0") * unit_ns + int(fraction or "0") * unit_ns // 10 ** len(fraction)
            valid = total_ns <= _MAXIMUM_NANOSECONDS
    if not valid:
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


def _split(text: str, characters: str) -> tuple[str, str]:
    """Return the longest start of `text` made of `characters`, and the rest."""
    rest = text.lstrip(characters)
    return text[: len(text) - len(rest)], rest
