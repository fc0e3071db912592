"""Times as text in UTC, in the form of RFC 3339 that Kubernetes and logs have."""

from __future__ import annotations

import time

_SECOND_NS = 1_000_000_000


def utc_text(seconds: float) -> str:
    """Return a time since 1970, to the second: 2026-11-24T06:30:00Z."""
    return f"{_moment(seconds)}Z"


def utc_text_ns(time_ns: int) -> str:
    """Return a time since 1970, to the nanosecond: 2026-11-24T06:30:00.000000001Z."""
    seconds, fraction_ns = divmod(time_ns, _SECOND_NS)
    return f"{_moment(seconds)}.{fraction_ns:09d}Z"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
