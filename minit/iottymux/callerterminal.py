"""The caller's terminal in front of an app: raw while attached, as large as the app's, and given back at the end."""

from __future__ import annotations

import os
import signal

from minit.iottymux.protocol import STDIN, TTY_IN, TTY_OUT
from minit.linux.stdio import expect_raw_terminal
from minit.linux.terminal import look_at_terminal, read_size

_ESCAPE = b"\x1b"
# No longer sequence matters here.
_MAXIMUM_BYTES = 64

# Private modes with their first state: cursor keys, reverse video, origin, wrapping, mouse, cursor, alternate screens,
# focus, pasting, updates at once.
_PRIVATE = {
    **dict.fromkeys((b"7", b"25"), True),
    **dict.fromkeys((b"1", b"5", b"6", b"9", b"47", b"1047", b"1049", b"1004", b"2004", b"2026"), False),
    **dict.fromkeys((b"1000", b"1001", b"1002", b"1003", b"1005", b"1006", b"1015", b"1016"), False),
}
_INSERT = {b"4": False}

_ENQUIRY = b"\x05"
_STRING_ENDS = (b"\x1b\\", b"\x07")
# The reporting operations on a window: state, place, size, titles.
_WINDOW_REPORTS = (b"11", b"13", b"14", b"15", b"16", b"18", b"19", b"20", b"21")


class RawTerminal:
    """
    The terminal at descriptor 0, for these streams of an app.

    `is_typed_on` says that typed keys go through unchanged, `is_raw` that the terminal has been made raw.
    """

    def __init__(self, streams: tuple[str, ...]) -> None:
        # A client that only looks on at an app's terminal detaches by keys too; but if the app reads a stream, the
        # caller's terminal makes lines of typed keys.
        is_raw = TTY_IN in streams or (TTY_OUT in streams and STDIN not in streams)
        self._terminal = look_at_terminal(is_read=is_raw)
        self._has_size = TTY_IN in streams
        self.is_typed_on = self._terminal.settings is not None
        self.is_raw = False

    def size(self) -> tuple[int, int] | None:
        """Return the size for the app's terminal; None for a client that only looks on."""
        size = read_size() if self._has_size else None
        if size is None:
            return None
        rows, columns = int.from_bytes(size[0:2], "little"), int.from_bytes(size[2:4], "little")
        return (rows, columns) if rows and columns else None

    def make_raw(self) -> None:
        """Pass on every key from now on, if keys are typed."""
        if self.is_typed_on:
            self.is_raw = True
            self._terminal.make_raw()
            expect_raw_terminal()

    def restore(self) -> None:
        """Give the terminal back in its old state."""
        if self.is_raw:
            self._terminal.restore()
            expect_raw_terminal(False)

    def suspend(self) -> None:
        """Stop as a program without its own terminal would, until SIGCONT."""
        self.restore()
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTSTP,))
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTSTP,))

    def resume(self) -> None:
        """Make the terminal raw again, if it was, after a stop."""
        if self.is_raw:
            self.make_raw()


class ScreenModes:
    """
    Follows the modes that an app sets on a terminal (ECMA-48, DEC STD 070, xterm), so that the caller gets the old
    modes back; takes any bytes, in pieces of any size.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._reset()

    def _reset(self) -> None:
        self._private = dict(_PRIVATE)
        self._insert = dict(_INSERT)
        self._has_attributes = self._has_margins = self._has_keypad = self._has_charset = self._has_shape = False

    def feed(self, data: bytes) -> None:
        """Take the next output into account."""
        if not self._rest and _ESCAPE not in data:
            return
        data, self._rest = self._rest + data, b""
        start = data.find(_ESCAPE)
        while start >= 0:
            end = _end_of_sequence(data, start)
            if end > len(data):
                self._rest = data[start:] if len(data) - start < _MAXIMUM_BYTES else b""
                return
            if end - start < _MAXIMUM_BYTES:
                self._note(data[start + 1 : end])
            start = data.find(_ESCAPE, end)

    def restore(self) -> bytes:
        """Return the sequences that restore the first state; empty if nothing differs."""
        parts = []
        # The alternate screen last: the state of the main screen comes back with it, for example the cursor's place.
        if self._has_margins:
            parts.append(b"\x1b7\x1b[r\x1b8")
        if self._has_charset:
            parts.append(b"\x1b(B")
        if self._has_keypad:
            parts.append(b"\x1b>")
        if self._has_shape:
            parts.append(b"\x1b[0 q")
        parts += [b"\x1b[%s%s" % (mode, _letter(_INSERT[mode])) for mode, on in self._insert.items() if on]
        parts += [
            b"\x1b[?%s%s" % (mode, _letter(_PRIVATE[mode]))
            for mode, is_on in self._private.items()
            if is_on != _PRIVATE[mode]
        ]
        if self._has_attributes:
            parts.append(b"\x1b[m")
        self._reset()
        return b"".join(parts)

    def _note(self, sequence: bytes) -> None:
        kind, final = sequence[:1], sequence[-1:]
        if kind == b"[":
            self._note_control(sequence[1:-1], final)
        elif kind == b"(":
            self._has_charset = final != b"B"
        elif sequence in (b"=", b">"):
            self._has_keypad = sequence == b"="
        elif sequence == b"c":
            self._reset()

    def _note_control(self, parameters: bytes, final: bytes) -> None:
        if final in (b"h", b"l"):
            is_private = parameters.startswith(b"?")
            modes = self._private if is_private else self._insert
            for mode in parameters.removeprefix(b"?").split(b";"):
                if mode in modes:
                    modes[mode] = final == b"h"
        elif final == b"m" and parameters[:1] not in (b"?", b">"):
            self._has_attributes = parameters not in (b"", b"0")
        elif final == b"r" and not parameters.startswith(b"?"):
            self._has_margins = parameters not in (b"", b";")
        elif final == b"q" and parameters.endswith(b" "):
            self._has_shape = parameters not in (b" ", b"0 ")


def _letter(is_on: bool) -> bytes:
    return b"h" if is_on else b"l"


def _end_of_sequence(data: bytes, start: int) -> int:
    """Return the end of the sequence with its escape at `start`; past the data for an incomplete sequence."""
    at = start + 1
    kind = data[at : at + 1]
    if kind == b"[":
        at += 1
        # Parameters and intermediate bytes; anything but a final byte afterwards also ends the sequence, which then has
        # no meaning.
        while at < len(data) and 0x20 <= data[at] <= 0x3F:
            at += 1
    elif kind and kind in b"()*+":
        at += 1
    elif kind == _ESCAPE:
        return at
    return at + 1


def without_queries(output: bytes) -> bytes:
    """
    Return output without queries, otherwise unchanged, for a replay: the terminal would answer an old query, and the
    app, which has had its answer, would read typed keys (ECMA-48, xterm's control sequences).

    An incomplete sequence stays.
    """
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
    """Return the end of the sequence with its escape at `start`, and whether it is a query."""
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
    # A byte other than a final byte belongs to the next characters.
    return at + (0x40 <= ord(final or b"\0") <= 0x7E), is_query


def _string(output: bytes, at: int) -> tuple[int, bytes]:
    """Return a string's end including its terminator, and its text; without a terminator there is no string."""
    ends = [(output.find(end, at), len(end)) for end in _STRING_ENDS]
    found = [(place, size) for place, size in ends if place >= 0]
    if not found:
        return at, b""
    place, size = min(found)
    return place + size, output[at:place]
