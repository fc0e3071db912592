"""minit.base.jsontext: strict reading, compact writing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minit.base import jsontext
from minit.base.errors import ManifestError

PROJECT = Path(__file__).parents[2]

SEARCH = settings(deadline=None)

INTEGERS = st.integers(min_value=-(10**30), max_value=10**30)
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5)
)


def refusal(data: bytes) -> str:
    """Return the message with which `data`, read from a file called pod, is refused."""
    with pytest.raises(ManifestError) as caught:
        jsontext.parse(data, "pod")
    return str(caught.value)


@SEARCH
@given(VALUES)
def test_what_is_dumped_parses_to_the_same_value(value: object) -> None:
    """Parsing the dump of a value gives the value, types and key order included."""
    data = jsontext.dump(value)
    assert repr(jsontext.parse(data, "x")) == repr(value)
    assert data.isascii()
    assert b"\n" not in data


@SEARCH
@given(VALUES)
def test_the_json_package_agrees(value: object) -> None:
    """A dump is what `json` makes of the value, and pretty-printed JSON of `json` parses."""
    assert jsontext.dump(value) == json.dumps(value, separators=(",", ":")).encode()
    assert repr(jsontext.parse(json.dumps(value, indent=1, ensure_ascii=False).encode(), "x")) == repr(value)


@SEARCH
@given(st.binary() | st.text(alphabet='[]{}",:\\u0123dDeE.-+ \ntfn', max_size=40).map(str.encode))
def test_arbitrary_bytes_are_parsed_or_refused(data: bytes) -> None:
    """Text that `json` refuses is refused with one line that names the source."""
    try:
        value = jsontext.parse(data, "pod")
    except ManifestError as error:
        assert str(error).startswith("pod: ")
        assert "\n" not in str(error)
    else:
        assert value == json.loads(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "pod: expected a value at line 1 column 1"),
        (b" \n ", "pod: expected a value at line 2 column 2"),
        (b"\n[1,x]", "pod: expected a value at line 2 column 4"),
        (b'{"a": 1 "b": 2}', "pod: expected ',' delimiter at line 1 column 9"),
        (b"{1: 2}", "pod: expected property name enclosed in double quotes at line 1 column 2"),
        (b'"a\nb"', "pod: invalid control character at line 1 column 3"),
        (b'"\\x"', "pod: invalid \\escape at line 1 column 2"),
        (b'["abc', "pod: unterminated string starting at line 1 column 2"),
        (b"{} x", "pod: expected nothing more at line 1 column 4"),
        (b"\xef\xbb\xbf{}", "pod: expected a value at line 1 column 1"),
        (b'["\xff"]', "pod: expected UTF-8, got 0xff at byte 2"),
        (b'{"a":1,"b":{},"a":2}', 'pod: expected each key of an object once, got "a" twice'),
        (b"[NaN]", "pod: expected a value, got NaN"),
        (b"-Infinity", "pod: expected a value, got -Infinity"),
        (b"1e400", "pod: expected a number that fits in a double, got 1e400"),
        (b"1" * 33, "pod: expected a number of at most 32 characters, got 33"),
        (b"1." + b"1" * 5000, "pod: expected a number of at most 32 characters, got 5002"),
        (b'["\\udc80"]', 'pod: expected Unicode text, got half a surrogate pair in "\\udc80"'),
        (b'{"\\uD800": 1}', 'pod: expected Unicode text, got half a surrogate pair in "\\ud800"'),
    ],
)
def test_a_refusal_says_what_was_expected_and_where(data: bytes, message: str) -> None:
    """A refusal is one line: source, expectation, and the position or the offending value."""
    assert refusal(data) == message


def test_escaped_pairs_and_escaped_backslashes_are_text() -> None:
    """A whole surrogate pair is one character, and a backslash before `ud8` needs no pair."""
    data = b'["\\ud83d\\ude00", "\\\\ud800", "\\uD55c"]'
    assert jsontext.parse(data, "x") == ["\U0001f600", "\\ud800", "\ud55c"]


@pytest.mark.parametrize("opening", [b"[", b'{"":'])
def test_nesting_is_bounded(opening: bytes) -> None:
    """64 levels parse, 65 do not, and 200,000 neither recurse nor crash."""
    closing = b"]" if opening == b"[" else b"}"
    deepest = opening * jsontext.MAX_DEPTH + b"1" + closing * jsontext.MAX_DEPTH
    assert jsontext.parse(deepest, "pod") is not None
    expected = "pod: expected JSON at most 64 levels deep, got more"
    assert refusal(opening + deepest + closing) == expected
    assert refusal(opening * 200_000) == expected


@SEARCH
@given(st.lists(st.text(alphabet='[{]}"\\'), min_size=1))
def test_brackets_in_strings_do_not_nest(strings: list[str]) -> None:
    """Depth counts brackets outside strings only, whatever quotes and backslashes the strings hold."""
    strings = strings * 20
    assert jsontext.parse(json.dumps([strings]).encode(), "x") == [strings]


def test_an_escaped_backslash_does_not_escape_the_quote() -> None:
    """After a string that ends in a backslash, depth is counted neither too high nor too low."""
    assert jsontext.parse(b'["\\\\", "' + b"[" * 100 + b'"]', "x") == ["\\", "[" * 100]
    assert "64 levels" in refusal(b'["\\\\", ' + b"[" * 200_000)


def test_size_is_bounded() -> None:
    """4 MiB parse, a byte more does not."""
    data = b'"' + b"x" * (jsontext.MAX_SIZE_BYTES - 2) + b'"'
    assert len(str(jsontext.parse(data, "pod"))) == len(data) - 2
    assert refusal(data + b" ") == "pod: expected at most 4194304 bytes of JSON, got 4194305"


@pytest.mark.parametrize("value", [b"bytes", {1}, object(), [1, (2, {"a": b""})]])
def test_only_json_types_are_dumped(value: object) -> None:
    """Other types are a TypeError rather than a guess."""
    with pytest.raises(TypeError):
        jsontext.dump(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, [-math.inf]])
def test_floats_beyond_json_are_not_dumped(value: object) -> None:
    """JSON has no NaN and no infinities."""
    with pytest.raises(ValueError, match="JSON"):
        jsontext.dump(value)


def test_tuples_are_lists_and_keys_keep_their_order() -> None:
    """A dump is compact and deterministic."""
    assert jsontext.dump({"b": (1, True, None), "a": {}, "c": []}) == b'{"b":[1,true,null],"a":{},"c":[]}'
