"""Signatures are verified as RFC 8032 has it, and as OpenSSL does it, and in one form alone."""

from __future__ import annotations

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from minit.manifest.machineupdate import KEY_BYTES, SIGNATURE_BYTES, is_key, verify

_PRIME = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_SEEDS = st.binary(min_size=32, max_size=32)


# RFC 8032, 7.1: the tests 1, 2, 3 and SHA(abc).
@pytest.mark.parametrize(
    ("key", "message", "signature"),
    [
        (
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595b"
            "be24655141438e7a100b",
        ),
        (
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb430"
            "2aeeb00d291612bb0c00",
        ),
        (
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716e"
            "d28dc027beceea1ec40a",
        ),
        (
            "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643c"
            "e80e2a9ac94fa54ca49f",
            "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e0303dca179c138a"
            "c17ad9bef1177331a704",
        ),
    ],
)
def test_vectors(key: str, message: str, signature: str) -> None:
    """The signatures of the RFC are good, and not those of another message."""
    parts = bytes.fromhex(key), bytes.fromhex(signature)
    assert verify(*parts, bytes.fromhex(message))
    assert not verify(*parts, bytes.fromhex(message) + b"\0")


@given(seed=_SEEDS, message=st.binary(max_size=200))
def test_what_was_signed(seed: bytes, message: bytes) -> None:
    """What `cryptography` signs is good, and the same with a larger number in it, a second form, is not."""
    private = Ed25519PrivateKey.from_private_bytes(seed)
    key, signature = private.public_key().public_bytes_raw(), private.sign(message)
    assert is_key(key) and verify(key, signature, message)
    scalar = int.from_bytes(signature[32:], "little") + _ORDER
    assert not verify(key, signature[:32] + scalar.to_bytes(32, "little"), message)


@given(seed=_SEEDS, message=st.binary(max_size=100), data=st.data())
def test_what_was_changed(seed: bytes, message: bytes, data: st.DataObject) -> None:
    """With a bit changed in key, signature or message nothing is good, which `cryptography` says as well."""
    private = Ed25519PrivateKey.from_private_bytes(seed)
    key = private.public_key().public_bytes_raw()
    whole = bytearray(key + private.sign(message) + message)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    parts = bytes(whole[:32]), bytes(whole[32:96]), bytes(whole[96:])
    with pytest.raises((InvalidSignature, ValueError)):
        Ed25519PublicKey.from_public_bytes(parts[0]).verify(*parts[1:])
    assert not verify(*parts)


@given(key=st.binary(max_size=40), signature=st.binary(max_size=70), message=st.binary(max_size=20))
def test_whatever_comes(key: bytes, signature: bytes, message: bytes) -> None:
    """Any bytes are refused, and none is an error."""
    assert not verify(key, signature, message)


def _number(y: int, sign: int = 0) -> bytes:
    return (y | sign << 255).to_bytes(32, "little")


@pytest.mark.parametrize(
    "key",
    [
        _number(1),  # the neutral point
        _number(1, sign=1),  # a zero that is negative
        _number(_PRIME - 1),  # order 2
        _number(0),  # order 4
        bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),  # order 8
        _number(_PRIME + 1),  # the neutral point with a coordinate that is too large
        _number(_PRIME + 3),
        _number(2),  # of no point
        bytes(31),
        bytes(33),
    ],
)
def test_what_is_no_key(key: bytes) -> None:
    """Points of small order, which sign everything, second forms of points, and no points at all, are no keys."""
    assert not is_key(key)
    # With a key of small order this would be a signature of an eighth of all messages at least.
    signature = _number(1) + bytes(32)
    assert len(signature) == SIGNATURE_BYTES and not any(verify(key, signature, bytes([n])) for n in range(32))
    assert len(key) != KEY_BYTES or not verify(key, key + bytes(32), b"")
