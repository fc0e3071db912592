"""The keys that detach a client from a terminal: how they are written, and how they are found in what is typed."""

from __future__ import annotations

from minit.base.errors import AttachError

_NONE = ("", "none")
_CONTROL = "ctrl-"
# The characters whose codes, less the bits that Ctrl takes away, are the control characters; ctrl-@ is NUL.
_CONTROLLED = "@abcdefghijklmnopqrstuvwxyz[\\]^_"
_MAXIMUM_KEYS = 16


def parse_detach_keys(text: str) -> bytes:
    """
    Return the bytes that the keys of `text` send: `ctrl-X` or one character each, separated by commas.

    Empty for `none` and for nothing. AttachError says which is no key.
    """
    if text in _NONE:
        return b""
    keys = text.split(",")
    if len(keys) > _MAXIMUM_KEYS:
        raise AttachError(f"detach keys: expected at most {_MAXIMUM_KEYS}, got {len(keys)}")
    return bytes(_parse_key(key) for key in keys)


def _parse_key(key: str) -> int:
    if len(key) == 1 and " " < key <= "~":
        return ord(key)
    letter = key.removeprefix(_CONTROL).lower()
    if key.startswith(_CONTROL) and len(letter) == 1 and letter in _CONTROLLED:
        return _CONTROLLED.index(letter)
    raise AttachError(f'detach keys: expected a character or ctrl- and one of {_CONTROLLED}, got "{key}"')


class DetachKeys:
    """
    Finds a sequence of keys in what is typed.

    A possible beginning of it is held back until it turns out to be none, so that the app never sees a part of it.
    """

    def __init__(self, sequence: bytes) -> None:
        self._sequence = sequence
        self._held = b""

    @property
    def is_holding(self) -> bool:
        """Tell whether something is held back."""
        return bool(self._held)

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """Return what of the input is for the app, and whether the sequence follows, after which all is ignored."""
        data = self._held + typed
        if not self._sequence:
            return data, False
        found = data.find(self._sequence)
        if found >= 0:
            self._held = b""
            return data[:found], True
        held = next(
            size
            for size in range(min(len(self._sequence) - 1, len(data)), -1, -1)
            if data.endswith(self._sequence[:size])
        )
        end = len(data) - held
        self._held = data[end:]
        return data[:end], False

    def release(self) -> bytes:
        """Return what was held back: nothing more was typed."""
        held, self._held = self._held, b""
        return held
