"""Points in time as rkt prints them: Go's layouts, and the rough ages of short lists."""

from __future__ import annotations

import time

_SECOND_NS = 1_000_000_000
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_WEEK, _MONTH, _YEAR = 7 * _DAY, 30 * _DAY, 360 * _DAY
_LONG = 37 * _YEAR

# (age below this many seconds, text, unit the count is in)
_AGES = (
    (1, "now", 1),
    (2, "1 second ago", 1),
    (_MINUTE, "{} seconds ago", 1),
    (2 * _MINUTE, "1 minute ago", 1),
    (_HOUR, "{} minutes ago", _MINUTE),
    (2 * _HOUR, "1 hour ago", 1),
    (_DAY, "{} hours ago", _HOUR),
    (2 * _DAY, "1 day ago", 1),
    (_WEEK, "{} days ago", _DAY),
    (2 * _WEEK, "1 week ago", 1),
    (_MONTH, "{} weeks ago", _WEEK),
    (2 * _MONTH, "1 month ago", 1),
    (_YEAR, "{} months ago", _MONTH),
    (3 * _YEAR // 2, "1 year ago", 1),
    (2 * _YEAR, "2 years ago", 1),
    (_LONG, "{} years ago", _YEAR),
)

ZERO_TIME = "0001-01-01 00:00:00 +0000 UTC"
"""Go's zero time: a time that is not known where one must be shown."""


def format_time(time_ns: int) -> str:
    """Return a local time in Go's layout `2006-01-02 15:04:05.999 -0700 MST`."""
    local = time.localtime(time_ns // _SECOND_NS)
    return _join_time(local, f"{time_ns % _SECOND_NS // 1_000_000:03d}".rstrip("0"))


def format_exact_time(time_ns: int) -> str:
    """Return a local time as Go prints one by default, `2006-01-02 15:04:05.999999999 -0700 MST`."""
    local = time.localtime(time_ns // _SECOND_NS)
    fraction = f"{time_ns % _SECOND_NS:09d}".rstrip("0")
    return _join_time(local, fraction)


def format_age(time_ns: int | None, now_ns: int) -> str:
    """Return how long ago `time_ns` was, in the words of the go-humanize library; None is the zero time."""
    if time_ns is None:
        return "a long while ago"
    difference_ns = now_ns - time_ns
    age = abs(difference_ns) // _SECOND_NS
    for limit, text, unit in _AGES:
        if age < limit:
            shown = text.format(age // unit)
            return shown if difference_ns >= 0 else shown.replace(" ago", " from now")
    return "a long while ago" if difference_ns >= 0 else "a long while from now"


def _join_time(local: time.struct_time, fraction: str) -> str:
    seconds = time.strftime("%Y-%m-%d %H:%M:%S", local) + (f".{fraction}" if fraction else "")
    return f"{seconds} {time.strftime('%z', local)} {local.tm_zone}"
