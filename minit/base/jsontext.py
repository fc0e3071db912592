"""
JSON text to values and back: strict and bounded.

The meaning of values is left to `minit.manifest` and the control protocol.
"""

from __future__ import annotations

import json

from minit.base.errors import ManifestError

MAX_SIZE_BYTES = 4 << 20
MAX_DEPTH = 64
MAX_NUMBER_LENGTH = 32  # characters; a 64-bit integer takes 20, a shortest-form double 24

_OWN_WORDS = {"Expecting value": "expected a value", "Extra data": "expected nothing more"}
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse(data: bytes, source: str) -> object:
    """
    Return the one JSON value in `data`: dict, list, str, int, float, bool or None.

    ManifestError names `source` and the fault, with the position of a syntax error. Refused as well are bytes
    other than UTF-8, a key used twice in an object, half a surrogate pair, NaN and infinities, and a number,
    depth or size beyond the bounds above.
    """
    if len(data) > MAX_SIZE_BYTES:
        raise ManifestError(f"{source}: expected at most {MAX_SIZE_BYTES} bytes of JSON, got {len(data)}")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ManifestError(f"{source}: expected UTF-8, got 0x{data[error.start]:02x} at byte {error.start}") from error
    _check_depth(data, source)
    try:
        value: object = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _syntax_error(source, error) from error
    except _Refused as error:
        raise ManifestError(f"{source}: {error}") from error
    if "\\ud" in text or "\\uD" in text:
        _check_surrogates(value, source)
    return value


def dump(value: object) -> bytes:
    """
    Return `value` as compact ASCII JSON, keys in the order given, without a final newline.

    TypeError for a value that JSON lacks; ValueError for NaN and infinities.
    """
    return _ENCODER.encode(value).encode("ascii")


def quote(text: str) -> str:
    """Return any `text` as an ASCII JSON string, which fits in one line of a message."""
    return json.dumps(text)


class _Refused(Exception):
    """JSON that the decoder would accept and this module refuses; the text has the expectation."""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Refused(f"expected each key of an object once, got {quote(key)[:60]} twice")
            seen.add(key)
    return result


def _integer(digits: str) -> int:
    if len(digits) > MAX_NUMBER_LENGTH:
        raise _Refused(f"expected a number of at most {MAX_NUMBER_LENGTH} characters, got {len(digits)}")
    return int(digits)


def _float(digits: str) -> float:
    if len(digits) > MAX_NUMBER_LENGTH:
        raise _Refused(f"expected a number of at most {MAX_NUMBER_LENGTH} characters, got {len(digits)}")
    number = float(digits)
    if number - number != 0.0:
        raise _Refused(f"expected a number that fits in a double, got {digits}")
    return number


def _constant(name: str) -> object:
    raise _Refused(f"expected a value, got {name}")


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_int=_integer, parse_constant=_constant)


def _check_depth(data: bytes, source: str) -> None:
    """
    Refuse text that nests deeper than MAX_DEPTH before the decoder, which recurses, sees it.

    The count is exact up to the first place where the text is not JSON, and the decoder goes no further.
    """
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    # Backslashes occur in strings only, and the first of a run escapes the next.
    outside_strings = b"".join(data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    depth = 0
    for bracket in outside_strings.translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise ManifestError(f"{source}: expected JSON at most {MAX_DEPTH} levels deep, got more")


def _check_surrogates(value: object, source: str) -> None:
    """Refuse half a surrogate pair, which no system call, file or terminal accepts as text."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            try:
                item.encode()
            except UnicodeEncodeError as error:
                raise ManifestError(
                    f"{source}: expected Unicode text, got half a surrogate pair in {quote(item)[:60]}"
                ) from error
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())


def _syntax_error(source: str, error: json.JSONDecodeError) -> ManifestError:
    # The decoder's messages are made to be followed by ": " or by a position: "Invalid control character at".
    reason = error.msg.rstrip(": ").removesuffix(" at")
    reason = _OWN_WORDS.get(reason, reason.replace("Expecting", "expected"))
    return ManifestError(f"{source}: {reason[:1].lower()}{reason[1:]} at line {error.lineno} column {error.colno}")
