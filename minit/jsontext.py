"""
JSON text to values and back: strict, bounded, and without the `json` package.

Importing `json` would cost PID 1 more than a bare interpreter start, so this module drives the C accelerator
behind it directly. What the values mean is left to `minit.manifest` and the control protocol.
"""

from __future__ import annotations

import _json

from minit.errors import ManifestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_SIZE_BYTES = 4 << 20
MAX_DEPTH = 64
MAX_NUMBER_LENGTH = 32  # characters; a 64-bit integer takes 20, a shortest-form double 24

_WHITESPACE = " \t\n\r"
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse(data: bytes, source: str) -> object:
    """
    Return the one JSON value in `data`: dict, list, str, int, float, bool or None.

    ManifestError names `source` and what is wrong in it, with the position of a syntax error. Refused as well
    are bytes that are not UTF-8, a key used twice in an object, half a surrogate pair, NaN and infinities,
    and a number, depth or size beyond the bounds above.
    """
    if len(data) > MAX_SIZE_BYTES:
        raise ManifestError(f"{source}: expected at most {MAX_SIZE_BYTES} bytes of JSON, got {len(data)}")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ManifestError(f"{source}: expected UTF-8, got 0x{data[error.start]:02x} at byte {error.start}") from error
    _check_depth(data, source)
    start = len(text) - len(text.lstrip(_WHITESPACE))
    value, end = _scan(text, start, source)
    rest = text[end:].lstrip(_WHITESPACE)
    if rest:
        raise _syntax_error(source, "expected nothing more", text, len(text) - len(rest))
    if "\\ud" in text or "\\uD" in text:
        _check_surrogates(value, source)
    return value


def dump(value: object) -> bytes:
    """
    Return `value` as compact ASCII JSON, keys in the order given, without a final newline.

    TypeError for anything but dict with str keys, list, tuple, str, int, float, bool and None; ValueError for
    a float that JSON cannot write.
    """
    parts: list[str] = []
    _write(value, parts.append)
    return "".join(parts).encode("ascii")


def quote(text: str) -> str:
    """Return `text` as an ASCII JSON string, so that it fits in one line of a message whatever it holds."""
    return _json.encode_basestring_ascii(text)


def _write(value: object, put: Callable[[str], object]) -> None:
    if isinstance(value, str):
        put(quote(value))
    elif value is None:
        put("null")
    elif value is True:
        put("true")
    elif value is False:
        put("false")
    elif isinstance(value, int):
        put(int.__repr__(value))
    elif isinstance(value, float):
        if value - value != 0.0:
            raise ValueError(f"JSON has no {value}")
        put(float.__repr__(value))
    elif isinstance(value, dict):
        separator = "{"
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a JSON object has no {type(key).__name__} keys")
            put(f"{separator}{quote(key)}:")
            _write(item, put)
            separator = ","
        put("}" if value else "{}")
    elif isinstance(value, (list, tuple)):
        separator = "["
        for item in value:
            put(separator)
            _write(item, put)
            separator = ","
        put("]" if value else "[]")
    else:
        raise TypeError(f"JSON has no {type(value).__name__}")


class _Refused(Exception):
    """JSON that the scanner would take and this module does not; says what was expected."""


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


class _Context:
    """The settings `_json.make_scanner` reads, under the names that json.JSONDecoder gives them."""

    strict = True
    object_hook = None
    object_pairs_hook = staticmethod(_object)
    parse_float = staticmethod(_float)
    parse_int = staticmethod(_integer)
    parse_constant = staticmethod(_constant)


_scan_once: Callable[[str, int], tuple[object, int]] = _json.make_scanner(
    _Context()  # type: ignore[arg-type]  # the stubs know the scanner as its own context
)


def _scan(text: str, start: int, source: str) -> tuple[object, int]:
    try:
        return _scan_once(text, start)
    except StopIteration as stop:
        raise _syntax_error(source, "expected a value", text, stop.value) from stop
    except _Refused as error:
        raise ManifestError(f"{source}: {error}") from error
    except (SystemError, ValueError):
        # A JSONDecodeError, or what CPython 3.11 makes of it: it looks the class up in sys.modules only.
        # Scanning again with the class imported tells the position; good text never pays for that import.
        import json.decoder
    try:
        return _scan_once(text, start)
    except json.decoder.JSONDecodeError as error:
        raise _syntax_error(source, error.msg, text, error.pos) from error


def _check_depth(data: bytes, source: str) -> None:
    """
    Refuse text that nests deeper than MAX_DEPTH before the scanner, which recurses, sees it.

    The count is exact up to the first place where the text is not JSON, and the scanner goes no further.
    """
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    # Backslashes occur in strings only, and a run of them starts with one that escapes the next.
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


def _syntax_error(source: str, reason: str, text: str, offset: int) -> ManifestError:
    line = text.count("\n", 0, offset) + 1
    column = offset - text.rfind("\n", 0, offset)
    # The scanner's messages are made to be followed by ": " or by a position: "Invalid control character at".
    reason = reason.rstrip(": ").removesuffix(" at").replace("Expecting", "expected")
    return ManifestError(f"{source}: {reason[:1].lower()}{reason[1:]} at line {line} column {column}")
