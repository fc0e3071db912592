"""minit.linux.libcrypto: SHA-2 by OpenSSL's functions."""

from __future__ import annotations

import _hashlib
import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.image.libraries import LibrarySearch
from minit.linux.libcrypto import load_sha2

(LIBRARY,) = (
    library.name
    for library in LibrarySearch().closure([Path(_hashlib.__file__)])
    if library.name.startswith("libcrypto.")
)


@given(st.lists(st.tuples(st.binary(max_size=300), st.sampled_from((0, 1, 10)), st.integers(0, 3))))
def test_it_is_what_hashlib_has(parts: list[tuple[bytes, int, int]]) -> None:
    """Whatever bytes come, in whatever memory, the digests are hashlib's, and can be had at any time."""
    for made, algorithm in zip(load_sha2(LIBRARY), ("sha256", "sha512"), strict=True):
        digest, expected = made(b"beginning"), hashlib.new(algorithm, b"beginning")
        for data, times, kind in parts:
            data *= times
            expected.update(data)
            digest.update((bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data)))[kind](data))
            assert digest.digest() == expected.digest()
        assert digest.hexdigest() == expected.hexdigest()


def test_another_library() -> None:
    """A library without these functions is told from one that has them."""
    with pytest.raises(AttributeError):
        load_sha2("libc.so.6")
    with pytest.raises(OSError, match="no-such-library"):
        load_sha2("no-such-library")
