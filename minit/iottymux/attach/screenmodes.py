"""The modes an app has switched on, so that the caller's terminal gets its own back (ECMA-48, DEC STD 070, xterm)."""

from __future__ import annotations

_ESCAPE = b"\x1b"
# A longer sequence is none that matters here.
_MAXIMUM_BYTES = 64

# Private modes with how they are at first: cursor keys, reverse video, origin, wrapping, mouse, cursor, alternate
# screens, focus, pasting, updates at once.
_PRIVATE = {
    **dict.fromkeys((b"7", b"25"), True),
    **dict.fromkeys((b"1", b"5", b"6", b"9", b"47", b"1047", b"1049", b"1004", b"2004", b"2026"), False),
    **dict.fromkeys((b"1000", b"1001", b"1002", b"1003", b"1005", b"1006", b"1015", b"1016"), False),
}
_INSERT = {b"4": False}


class ScreenModes:
    """Follows what is shown on a terminal; it takes any bytes, in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""
        self._reset()

    def _reset(self) -> None:
        self._private = dict(_PRIVATE)
        self._insert = dict(_INSERT)
        self._has_attributes = self._has_margins = self._has_keypad = self._has_charset = self._has_shape = False

    def feed(self, data: bytes) -> None:
        """Take into account what is shown next."""
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
        """Return what switches everything back that is not as it was at first; empty if all is."""
        parts = []
        # The alternate screen last: what belongs to the other one comes back with it, the cursor's place for one.
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
    """Return where the sequence ends that begins with the escape at `start`; past the data if it is not complete."""
    at = start + 1
    kind = data[at : at + 1]
    if kind == b"[":
        at += 1
        # Parameters and intermediate bytes; anything but a final byte after them ends it, too, without a meaning.
        while at < len(data) and 0x20 <= data[at] <= 0x3F:
            at += 1
    elif kind and kind in b"()*+":
        at += 1
    elif kind == _ESCAPE:
        return at
    return at + 1
