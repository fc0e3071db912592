"""Columns, sizes, times and JSON, as commands print them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import click

from minit.base import jsontext
from minit.base.harmless import harmless_json

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

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")

_TAB_WIDTH = 8
_GAP = "  "
_LEAST_WIDTH = 10  # of the longest heading

_FORMATS = ("json", "json-pretty")

format_option = click.option(
    "--format", "output_format", type=click.Choice(_FORMATS), help="Print JSON instead of text."
)


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


def readable_size(size_bytes: float) -> str:
    """Return a size in the largest unit with at least one: `512B`, `1.5MiB`, `20GiB`."""
    size, units = float(size_bytes), list(_UNITS)
    # Rounded up to 1024 a size is one of the next unit, and one digit less is shown of 10.
    while size >= 1023.5 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.1f}{units[0]}" if size < 9.95 and units[0] != "B" else f"{size:.0f}{units[0]}"


def align(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows with at least one tab between cells, each ended by a newline; all rows have as many cells."""
    if not rows:
        return ""
    # The last cell of a line ends no column, so the cell is neither measured nor padded.
    widths = [_cell_width(max(len(row[column]) for row in rows)) for column in range(len(rows[0]) - 1)]
    return "".join(_line(row, widths) for row in rows)


def fit(rows: Sequence[Sequence[str]], width: int, shortened: Sequence[int]) -> str:
    """
    Return the rows with two blanks between cells, at most `width` columns wide if that can be.

    The widest of the columns `shortened`, by number, loses the middles of its longest cells, and so on until all fits.
    """
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    while sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        widest = max(shortened, key=lambda column: widths[column])
        if widths[widest] <= _LEAST_WIDTH:
            break
        widths[widest] -= 1
    lines = (_GAP.join(shorten(cell, room).ljust(room) for cell, room in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def shorten(cell: str, room: int) -> str:
    """Return a cell without the middle: a name's end says as much as the beginning."""
    if len(cell) <= room:
        return cell
    end = (room - 1) // 2
    return f"{cell[: room - 1 - end]}…{cell[-end:]}"


def _cell_width(text_width: int) -> int:
    return -(-(text_width + 1) // _TAB_WIDTH) * _TAB_WIDTH


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + "\t" * -(-(width - len(cell)) // _TAB_WIDTH) for cell, width in zip(row, widths, strict=False))
    return "".join(padded) + row[-1] + "\n"


def json_text(value: object, output_format: str) -> str:
    """Return `value` in one of FORMATS, without a final newline."""
    if output_format == "json":
        return jsontext.dump(value).decode("ascii")
    return harmless_json(json.dumps(value, indent="\t", ensure_ascii=False))
