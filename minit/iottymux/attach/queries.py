"""
Queries to a terminal, to be left out of old output that is shown again.

The terminal would answer, and the app, which has had its answer, would take that for typed keys (ECMA-48, xterm's
control sequences).
"""

from __future__ import annotations

_ESCAPE = b"\x1b"
_ENQUIRY = b"\x05"
_STRING_ENDS = (b"\x1b\\", b"\x07")
# Of the operations on a window, those that report: its state, place, size, titles.
_WINDOW_REPORTS = (b"11", b"13", b"14", b"15", b"16", b"18", b"19", b"20", b"21")


def without_queries(output: bytes) -> bytes:
    """Return output without its queries, otherwise as it is; a sequence that is not complete stays."""
    if _ESCAPE not in output and _ENQUIRY not in output:
        return output
    kept = []
    begin = 0
    start = output.find(_ESCAPE)
    while start >= 0:
        end, is_query = _sequence(output, start)
        if is_query:
            kept.append(output[begin:start])
            begin = end
        start = output.find(_ESCAPE, end)
    kept.append(output[begin:])
    return b"".join(kept).replace(_ENQUIRY, b"")


def _sequence(output: bytes, start: int) -> tuple[int, bool]:
    """Return where the sequence ends that begins with the escape at `start`, and whether it is a query."""
    kind = output[start + 1 : start + 2]
    if kind == b"[":
        return _control(output, start + 2)
    if kind == b"]":
        # Of a colour, font or clipboard: a question mark in place of the value.
        end, text = _string(output, start + 2)
        return end, text.endswith(b";?")
    if kind == b"P":
        end, text = _string(output, start + 2)
        return end, text[:2] in (b"$q", b"+q")
    if kind == _ESCAPE:
        return start + 1, False
    return start + 1 + len(kind), kind == b"Z"


def _control(output: bytes, at: int) -> tuple[int, bool]:
    begin = at
    while at < len(output) and 0x20 <= output[at] <= 0x3F:
        at += 1
    parameters, final = output[begin:at], output[at : at + 1]
    if final == b"n":
        is_query = not parameters.startswith(b">")
    elif final == b"p":
        is_query = parameters.endswith(b"$")
    elif final == b"q":
        is_query = parameters.startswith(b">")
    elif final == b"t":
        is_query = parameters.split(b";")[0] in _WINDOW_REPORTS
    elif final == b"u":
        is_query = parameters.startswith(b"?")
    else:
        is_query = final in (b"c", b"x")
    # A byte that is no final one belongs to the next ones.
    return at + (0x40 <= ord(final or b"\0") <= 0x7E), is_query


def _string(output: bytes, at: int) -> tuple[int, bytes]:
    """Return where a string ends with its terminator, and its text; without one it is no string."""
    ends = [(output.find(end, at), len(end)) for end in _STRING_ENDS]
    found = [(place, size) for place, size in ends if place >= 0]
    if not found:
        return at, b""
    place, size = min(found)
    return place + size, output[at:place]
