"""The keys that detach from a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import AttachError
from minit.iottymux.callerinput import DetachKeys, parse_detach_keys

# Few letters, so that sequences begin and end alike.
_WORDS = st.lists(st.sampled_from(b"ab\x10"), max_size=12).map(bytes)
_SEQUENCES = st.lists(st.sampled_from(b"ab\x10"), min_size=1, max_size=4).map(bytes)


@pytest.mark.parametrize(
    ("text", "sequence"),
    [
        ("ctrl-p,ctrl-q", b"\x10\x11"),
        ("ctrl-@,ctrl-[,ctrl-\\,ctrl-],ctrl-^,ctrl-_", b"\x00\x1b\x1c\x1d\x1e\x1f"),
        ("ctrl-A,x,~", b"\x01x~"),
        ("none", b""),
        ("", b""),
    ],
)
def test_keys(text: str, sequence: bytes) -> None:
    """Keys are characters, or control characters by their letter."""
    assert parse_detach_keys(text) == sequence


@pytest.mark.parametrize("text", ["ctrl-", "ctrl-pp", "ctrl-1", "pq", "a,,b", ",", " ", "ü", "ctrl-ü", "a," * 16 + "a"])
def test_what_is_no_key(text: str) -> None:
    """Anything else is refused, with the key in the message unless there are too many."""
    with pytest.raises(AttachError, match="detach keys: expected "):
        parse_detach_keys(text)


def test_what_begins_like_the_keys() -> None:
    """The first key alone is held back, and passed on as soon as another one follows, or nothing does."""
    keys = DetachKeys(b"\x10\x11")
    assert keys.feed(b"a\x10") == (b"a", False)
    assert keys.is_holding
    assert keys.feed(b"\x10") == (b"\x10", False)
    assert keys.feed(b"b") == (b"\x10b", False)
    assert not keys.is_holding
    assert keys.feed(b"\x10") == (b"", False)
    assert keys.release() == b"\x10"
    assert keys.feed(b"\x11") == (b"\x11", False)


@given(_SEQUENCES, st.lists(_WORDS, max_size=6))
def test_however_it_is_typed(sequence: bytes, pieces: list[bytes]) -> None:
    """
    All up to the sequence is passed on, in order, no matter how the input is cut; no more than a beginning of the
    sequence is ever held back.
    """
    keys = DetachKeys(sequence)
    passed, typed = b"", b""
    for piece in pieces:
        typed += piece
        data, found = keys.feed(piece)
        passed += data
        place = typed.find(sequence)
        assert found == (place >= 0)
        if found:
            assert passed == typed[:place]
            return
        held = typed.removeprefix(passed)
        assert passed + held == typed
        assert sequence.startswith(held) and len(held) < len(sequence)
    assert passed + keys.release() == typed


@given(st.lists(_WORDS))
def test_no_keys(pieces: list[bytes]) -> None:
    """Without keys everything is passed on at once."""
    keys = DetachKeys(b"")
    assert [keys.feed(piece) for piece in pieces] == [(piece, False) for piece in pieces]
