"""The format of updates: what was signed is read as it was written, and anything else is one line."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ManifestError
from minit.manifest.machinefields import Url, parse_url
from minit.manifest.machineupdate import (
    HEADER,
    UpdateManifest,
    UpdatePart,
    dump_update,
    make_header,
    parse_header,
    parse_update,
    read_public_key,
    signed_bytes,
)
from minit.manifest.names import version_numbers

_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
_PUBLIC = _KEY.public_key().public_bytes_raw()
_OTHER = Ed25519PrivateKey.from_private_bytes(b"1" * 32).public_key().public_bytes_raw()
_MANIFEST = UpdateManifest(
    model="sensor",
    version="1.10.2",
    architecture="amd64",
    root_hash="0" * 64,
    root_blocks=2,
    root=UpdatePart(size_bytes=16384, sha512=hashlib.sha512(b"root").hexdigest(), partition_bytes=16384),
    boot=UpdatePart(size_bytes=4096, sha512=hashlib.sha512(b"boot").hexdigest(), partition_bytes=8192),
)


def _written(manifest: bytes) -> bytes:
    return make_header(manifest, _KEY.sign(signed_bytes(manifest))) + manifest


def _read(data: bytes, *keys: bytes) -> UpdateManifest:
    header = parse_header(data[: HEADER.size], "update")
    return parse_update(header, data[HEADER.size :], keys, "update")


def test_what_was_written_is_read() -> None:
    """A manifest is read that one of several keys has signed."""
    assert _read(_written(dump_update(_MANIFEST)), _OTHER, _PUBLIC) == _MANIFEST


def test_another_key() -> None:
    """A manifest that nobody has signed whose key the machine has is refused, also if it has none."""
    for keys in ((), (_OTHER,)):
        with pytest.raises(ManifestError, match="expected a signature by one of this machine's keys"):
            _read(_written(dump_update(_MANIFEST)), *keys)


@given(place=st.integers(0, len(_written(dump_update(_MANIFEST))) * 8 - 1))
def test_a_bit_is_changed(place: int) -> None:
    """No bit in front of the parts can be another one."""
    data = bytearray(_written(dump_update(_MANIFEST)))
    data[place // 8] ^= 1 << place % 8
    with pytest.raises(ManifestError, match="^update: "):
        _read(bytes(data), _PUBLIC)


@given(data=st.binary(max_size=300))
def test_whatever_comes(data: bytes) -> None:
    """Any bytes are refused in one line, also behind the first ones of an update."""
    for start in (b"", make_header(b"", b"")[:16]):
        with pytest.raises(ManifestError, match="^update: [^\n]*$"):
            _read(start + data, _PUBLIC)


def test_a_manifest_is_small() -> None:
    """A file that claims a manifest of any size does not have so much read."""
    with pytest.raises(ManifestError, match="at most 65536 bytes of manifest"):
        parse_header(make_header(bytes(65537), bytes(64)), "update")


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("version", "1.x", r'update: version: expected a version of numbers and dots \("1.10.2"\), got "1.x"'),
        ("version", "01", "update: version: "),
        ("version", "1." * 8 + "1", "update: version: "),
        ("version", 1, "update: version: "),
        ("model", "", "update: model: "),
        ("arch", None, "update: arch: "),
        ("root_hash", "0" * 63, "update: root_hash: expected 64 hexadecimal digits"),
        ("root_blocks", 0, "update: root_blocks: "),
        ("root_blocks", 4, "update: root_blocks: expected fewer blocks than the root has with its hash tree"),
        ("root.size_bytes", 16385, "update: root.size_bytes: "),
        ("boot.size_bytes", 4097, "update: boot.size_bytes: expected whole blocks of 4096"),
        ("boot.size_bytes", 12288, "update: boot.size_bytes: "),
        ("boot.sha512", "A" * 128, "update: boot.sha512: "),
        ("boot", None, "update: boot"),
    ],
)
def test_what_is_signed_has_to_be_right(path: str, value: object, line: str) -> None:
    """A signature is no reason to believe numbers that cannot be."""
    fields: dict[str, Any] = json.loads(dump_update(_MANIFEST))
    *parents, name = path.split(".")
    place = fields
    for parent in parents:
        place = place[parent]
    place[name] = value
    with pytest.raises(ManifestError, match=f"^{line}"):
        _read(_written(json.dumps(fields).encode()), _PUBLIC)


def test_versions() -> None:
    """Versions are compared number by number, and zeros at the end count nothing."""
    versions = ["0", "0.9", "1", "1.0.1", "1.2", "1.10", "2"]
    assert sorted(versions, key=version_numbers) == versions
    assert version_numbers("1.0") == version_numbers("1")


def test_public_keys() -> None:
    """A public key in PEM is read, and nothing else: no other algorithm, no second key, no private one."""
    pem = _KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert read_public_key(pem, "key") == _PUBLIC
    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    for wrong in (
        b"",
        b"\xff",
        pem[:-10],
        pem + pem,
        pem.replace(b"PUBLIC", b"PRIVATE"),
        pem.replace(b"MC", b"M="),
        other.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    ):
        with pytest.raises(ManifestError, match=r"^key: expected a public key \(PEM\) for Ed25519$"):
            read_public_key(wrong, "key")


def test_urls() -> None:
    """A URL has a host, and a port and a path if they are not 80 and /."""
    assert parse_url("http://a.example") == Url(host="a.example", port=80, authority="a.example", target="/")
    assert parse_url("http://[2001:db8::1]:8080/x?y") == Url(
        host="2001:db8::1", port=8080, authority="[2001:db8::1]:8080", target="/x?y"
    )
    for wrong in (
        *("https://a.example/x", "http://", "http:///x", "http://a:b@c/", "http://a:0/", "http://a:65536/"),
        *("http://a/ b", "http://a/\n", "http://2001:db8::1/", "http://a?x", "http://a/#x", "http://ä/"),
    ):
        with pytest.raises(ValueError):
            parse_url(wrong)


@given(text=st.text(max_size=50))
def test_any_url(text: str) -> None:
    """Whatever is given for a URL, it is one or an error, and nothing of it makes a second line of a request."""
    try:
        url = parse_url(f"http://{text}")
    except ValueError:
        return
    assert (url.authority + url.target).isprintable() and " " not in url.authority + url.target and url.host
