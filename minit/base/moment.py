"""Points in time in the words of users; apart from `utctime`, which PID 1 has, for the sake of datetime."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from minit.base.goduration import parse_duration

SECOND_NS = 1_000_000_000
_EXPECTED = (
    "expected how long ago (10m, 1h30m, 2 days ago), a time (2026-11-21T18:00:00Z, 2026-11-21 18:00, 18:00), "
    "now, today, yesterday or @SECONDS since 1970"
)

_YEAR_10000_NS = 253_402_300_800 * SECOND_NS
_UNIT_SECONDS = {"second": 1, "sec": 1, "minute": 60, "min": 60, "hour": 3600, "day": 86400, "week": 604800}
_AGO = re.compile(rf"(\d{{1,6}}) *({'|'.join(_UNIT_SECONDS)})s? ago")
_DAYS = re.compile(r"(\d{1,6})d")
_CLOCK = re.compile(r"(\d\d):(\d\d)(?::(\d\d))?")
_SECONDS = re.compile(r"@?(\d{1,12})(?:\.(\d{1,9})\d*)?")
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,9})\d*)?)? ?(Z|UTC|[+-]\d\d:?\d\d)?")


def parse_moment(text: str, now_ns: int) -> int:
    """
    Return a point in time in nanoseconds since 1970; ValueError for what is none.

    Times without a zone are local. Nanoseconds are kept, so that a time from a log means that very line.
    """
    text = text.strip()
    moment_ns = _parse_relative(text, now_ns)
    if moment_ns is None:
        moment_ns = _parse_absolute(text)
    # The log has four digits for the year.
    if moment_ns is None or not 0 <= moment_ns < _YEAR_10000_NS:
        raise ValueError(f'{_EXPECTED}, got "{text}"')
    return moment_ns


def _parse_relative(text: str, now_ns: int) -> int | None:
    if text == "now":
        return now_ns
    today = datetime.fromtimestamp(now_ns // SECOND_NS).replace(hour=0, minute=0, second=0)
    if text in ("today", "yesterday"):
        return _nanoseconds(today - timedelta(days=1 if text == "yesterday" else 0))
    if match := _CLOCK.fullmatch(text):
        hour, minute, second = (int(part or 0) for part in match.groups())
        try:
            return _nanoseconds(today.replace(hour=hour, minute=minute, second=second))
        except ValueError:
            return None
    if match := _AGO.fullmatch(text):
        return now_ns - int(match[1]) * _UNIT_SECONDS[match[2]] * SECOND_NS
    if match := _DAYS.fullmatch(text.removeprefix("-")):
        return now_ns - int(match[1]) * _UNIT_SECONDS["day"] * SECOND_NS
    try:
        # With and without a sign: docker's 10m and journalctl's -10m are the same moment.
        return now_ns - round(parse_duration(text.removeprefix("-")) * SECOND_NS)
    except ValueError:
        return None


def _parse_absolute(text: str) -> int | None:
    if match := _SECONDS.fullmatch(text):
        return int(match[1]) * SECOND_NS + _fraction_ns(match[2])
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    date, clock, fraction, zone = match.groups()
    zone = "+00:00" if zone in ("Z", "UTC") else zone or ""
    try:
        return _nanoseconds(datetime.fromisoformat(f"{date}T{clock or '00:00'}{zone}")) + _fraction_ns(fraction)
    except (ValueError, OverflowError):
        return None


def _nanoseconds(moment: datetime) -> int:
    return round(moment.timestamp()) * SECOND_NS


def _fraction_ns(digits: str | None) -> int:
    return int((digits or "").ljust(9, "0"))
