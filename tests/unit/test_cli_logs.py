"""minit.cli.text.logview and logtext: points in time as people write them, and lines as they are printed."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.moment import SECOND_NS, parse_moment
from minit.cli.text.logview import json_format, text_format, visible
from minit.stage0.reports.logfiles import LogLine

# A Tuesday, 22:13:20 UTC.
NOW_NS = 1_700_000_000 * SECOND_NS + 5
LINE = LogLine(b"2023-11-14T22:13:20.000000007Z", b"stderr", b"text", True)


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hours east of Greenwich."""
    monkeypatch.setenv("TZ", "XXX-2")
    time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("now", 0),
        ("10m", -600),
        ("-1h30m", -5400),
        ("2 days ago", -172800),
        ("1 min ago", -60),
        ("90 sec ago", -90),
        ("3d", -3 * 86400),
        ("2023-11-14T22:13:20Z", 0),
        ("2023-11-14T22:13:21.5Z", 1.5),
        ("2023-11-15 00:13:20", 0),
        ("2023-11-15T00:13", -20),
        ("2023-11-14T21:13:20-01:00", 0),
        ("2023-11-14 22:13:20 UTC", 0),
        ("today", -800),
        ("2023-11-15", -800),
        ("00:10", -200),
        ("yesterday", -800 - 86400),
        ("@1700000001", 1),
        ("1700000001.25", 1.25),
    ],
)
def test_moments(text: str, seconds: float) -> None:
    """Docker's, journalctl's and the log's own forms."""
    expected = 1_700_000_000 * SECOND_NS + int(seconds * SECOND_NS)
    assert parse_moment(text, NOW_NS) - expected in (0, NOW_NS % SECOND_NS)


def test_nanoseconds_are_kept() -> None:
    """A time from a log means that very line."""
    assert parse_moment("2023-11-14T22:13:20.000000007Z", NOW_NS) == NOW_NS + 2


@pytest.mark.parametrize(
    "text", ["", "soon", "2023-13-01", "25:00", "2023-11-14T22", "@", "1e9", "10x", "-", "²", "9999999 days ago"]
)
def test_what_is_no_moment(text: str) -> None:
    """It is quoted after examples."""
    with pytest.raises(ValueError, match="^expected how long ago"):
        parse_moment(text, NOW_NS)


@given(st.text(max_size=40))
def test_no_text_is_a_surprise(text: str) -> None:
    """Everything is a moment or a ValueError."""
    try:
        moment_ns = parse_moment(text, NOW_NS)
    except ValueError:
        return
    assert 0 <= moment_ns < 253_402_300_800 * SECOND_NS


@given(st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(9998, 1, 1), timezones=st.just(UTC)))
def test_times_are_read_as_python_does(moment: datetime) -> None:
    """RFC 3339 with a zone, to the microsecond."""
    expected = round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 10**6)
    assert abs(parse_moment(moment.isoformat(), NOW_NS) // 1000 - expected) <= 1_000_000 // 2**10


def test_text() -> None:
    """Time and prefix stand before the line."""
    prefixes = {"web": b"web: "}
    assert text_format(prefixes, times=False, terminal=False)("web", LINE) == b"web: text\n"
    assert text_format(prefixes, times=True, terminal=False)("web", LINE) == LINE.time + b" web: text\n"


def test_a_line_without_end() -> None:
    """It stays so where nothing else is shown that could come behind it."""
    line = LINE._replace(ended=False)
    assert text_format({"web": b""}, times=False, terminal=False)("web", line) == b"text"
    assert text_format({"web": b"web: "}, times=False, terminal=False)("web", line) == b"web: text\n"
    assert text_format({"web": b""}, times=True, terminal=False)("web", line) == line.time + b" text\n"


def test_json() -> None:
    """One object a line, whatever is in the text."""
    line = json_format("web", LINE._replace(text=b'a"\n\x1b\xff\xc3\xa4'))
    assert line == (
        b'{"app": "web", "time": "2023-11-14T22:13:20.000000007Z", "stream": "stderr", '
        b'"text": "a\\"\\n\\u001b\xef\xbf\xbd\xc3\xa4"}\n'
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"plain \t text \xc3\xa4", b"plain \t text \xc3\xa4"),
        (b"\x1b[31mred", b"\x1b[31mred\x1b[0m"),
        (b"\x1b]0;title\x07\x1b[2J", b"^[]0;title^G^[[2J"),
        (b"progress 1\rprogress 2\r", b"progress 1^Mprogress 2"),
        (b"\xc2\x9b2J\x9b2J\x7f\0", b"\\x9b2J\\x9b2J^?^@"),
    ],
)
def test_a_terminal_is_not_controlled(text: bytes, shown: bytes) -> None:
    """All that a terminal acts on is made visible, but for colours, which end with the line."""
    assert visible(text) == shown


@given(st.binary(max_size=60))
def test_nothing_gets_through(text: bytes) -> None:
    """Of an app's output only tabs, printable characters and colours reach a terminal."""
    shown = visible(text)
    without_colours = b"".join(part.partition(b"m")[2] if at else part for at, part in enumerate(shown.split(b"\x1b[")))
    assert not any(
        ord(character) < 32 or 0x7F <= ord(character) < 0xA0
        for character in without_colours.decode()
        if character != "\t"
    )
