"""What a thread reads ahead is what there is to read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.archives.streams import Pieces, ReadAhead, joined


@given(st.lists(st.binary(max_size=9)), st.integers(1, 7))
def test_pieces_are_a_file(pieces: list[bytes], size: int) -> None:
    """Reads of any size give the pieces one after the other, whatever theirs are, and no short read before the end."""
    file, read = Pieces(iter(pieces)), []
    while data := file.read(size):
        read.append(data)
    assert b"".join(read) == b"".join(pieces)
    assert all(len(data) == size for data in read[:-1])


@given(st.lists(st.integers(0, 1 << 20), max_size=9))
def test_joined_pieces_are_large(sizes: list[int]) -> None:
    """They are the same bytes, in pieces of a megabyte or more, but for the last."""
    pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
    together = list(joined(iter(pieces)))
    assert b"".join(together) == b"".join(pieces)
    assert all(len(data) >= 1 << 20 for data in together[:-1])


def test_chunks_are_all_that_is_read() -> None:
    """Chunks give the whole of a source, and then the error that ended it."""
    large = bytes(range(256)) * 10_000

    def pieces() -> Iterator[bytes]:
        yield large
        yield b"end"

    def failing() -> Iterator[bytes]:
        yield from pieces()
        raise ValueError("broken")

    with ReadAhead(pieces()) as ahead:
        assert b"".join(ahead.chunks()) == large + b"end"
    with ReadAhead(failing()) as ahead, pytest.raises(ValueError, match="broken"):
        for _ in ahead.chunks():
            pass
    with ReadAhead(large for _ in iter(int, 1)) as ahead:
        assert bytes(next(ahead.chunks())[:256]) == large[:256]
