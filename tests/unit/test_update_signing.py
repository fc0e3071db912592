"""Updates are signed by a program of its own, with the keys that OpenSSL makes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from minit.base.errors import ImageError
from minit.image.disk import sign
from minit.manifest.machineupdate import verify

_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


def _pem(key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
    encryption = NoEncryption() if password is None else BestAvailableEncryption(password)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def test_a_signature(tmp_path: Path) -> None:
    """It is one that a machine takes, with the public key that belongs to it, and the same each time."""
    (tmp_path / "key").write_bytes(_pem(_KEY))
    key, signature = sign(tmp_path / "key", b"data")
    assert key == _KEY.public_key().public_bytes_raw() and verify(key, signature, b"data")
    assert sign(tmp_path / "key", b"data") == (key, signature)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "no such file or directory"),
        (b"key", r"expected a private key \(PEM\) without a password"),
        (_pem(_KEY, b"secret"), r"expected a private key \(PEM\) without a password"),
        (
            _pem(ec.generate_private_key(ec.SECP256R1())),
            "expected a key for Ed25519, as openssl genpkey -algorithm ed25519 makes it",
        ),
    ],
    ids=["missing", "no key", "password", "another algorithm"],
)
def test_what_signs_nothing(tmp_path: Path, data: bytes | None, reason: str) -> None:
    """Anything else is one line with the file."""
    if data is not None:
        (tmp_path / "key").write_bytes(data)
    with pytest.raises(ImageError, match=f"^cannot sign with {tmp_path}/key: {reason}$"):
        sign(tmp_path / "key", b"data")
