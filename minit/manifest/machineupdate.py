"""
An update of a machine: another version of its root and its kernel, signed, in one file that is read from the start.

    16 bytes     the kind of the file
    64 bytes     the signature of the kind and the manifest: Ed25519, RFC 8032
     4 bytes     the size of the manifest, the highest byte first
    manifest     JSON
    root         the used part of a root partition
    boot         the used part of a boot partition

Pure. Nothing is trusted before the signature is verified, and no part before its digest in the manifest is compared.
Ed25519 is done in Python alone, RFC 8032: the machine carries no OpenSSL. Nothing is secret, so no time has to be
constant. The verification is as strict as the RFC allows: nobody who chooses a signature, a message or a key finds a
second form of any of them.
"""

from __future__ import annotations

from binascii import a2b_base64
from hashlib import sha512
from struct import Struct

from minit.base import jsontext
from minit.base.errors import ManifestError
from minit.base.value import Value
from minit.manifest.reader import Node

SIGNATURE_BYTES = 64
KEY_BYTES = 32

_PRIME = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_COEFFICIENT = -121665 * pow(121666, -1, _PRIME) % _PRIME
_DOUBLE_COEFFICIENT = 2 * _COEFFICIENT % _PRIME
_ROOT_OF_MINUS_ONE = pow(2, (_PRIME - 1) // 4, _PRIME)
_COFACTOR_BITS = 3

# x, y, z and t of section 5.1.4: x/z and y/z are the coordinates, t/z is their product.
_Point = tuple[int, int, int, int]
_NEUTRAL: _Point = (0, 1, 1, 0)

HEADER = Struct(f">16s{SIGNATURE_BYTES}sI")
BLOCK_BYTES = 4096
"""The size of a block of a root; parts are whole blocks."""

_KIND = b"minit update 1\n\0"
_MAXIMUM_MANIFEST_BYTES = 1 << 16
_MAXIMUM_PART_BYTES = 1 << 40
_DIGEST_DIGITS = 128
_HASH_DIGITS = 64
_MAXIMUM_NUMBERS, _MAXIMUM_DIGITS = 8, 9
_MAXIMUM_NAME = 64
# RFC 8410: the bytes before the key itself, for Ed25519.
_KEY_PREFIX = bytes.fromhex("302a300506032b6570032100")
_PEM_LINES = ("-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----")


class UpdatePart(Value):
    """A part: size, digest, and the least size of the partition."""

    size_bytes: int
    sha512: str
    partition_bytes: int


class UpdateManifest(Value):
    """
    The contents of an update: the version of a `model` of machines, for an `architecture` by appc's name.

    `root_hash` is for the kernel's command line; the root has `root_blocks` blocks before its hash tree.
    """

    model: str
    version: str
    architecture: str
    root_hash: str
    root_blocks: int
    root: UpdatePart
    boot: UpdatePart


class UpdateHeader(Value):
    """The beginning of an update: signature, and size of the manifest."""

    signature: bytes
    manifest_bytes: int


def parse_header(data: bytes, source: str) -> UpdateHeader:
    """Return the header in the first `HEADER.size` bytes of a file; ManifestError for other files."""
    if len(data) != HEADER.size or not data.startswith(_KIND):
        raise ManifestError(f"{source}: expected an update for a machine, as init build --format update writes it")
    _, signature, manifest_bytes = HEADER.unpack(data)
    if manifest_bytes > _MAXIMUM_MANIFEST_BYTES:
        raise ManifestError(f"{source}: expected at most {_MAXIMUM_MANIFEST_BYTES} bytes of manifest")
    return UpdateHeader(signature=signature, manifest_bytes=manifest_bytes)


def make_header(manifest: bytes, signature: bytes) -> bytes:
    """Return the bytes in front of a manifest."""
    return HEADER.pack(_KIND, signature, len(manifest))


def signed_bytes(manifest: bytes) -> bytes:
    """Return the bytes that are signed: the kind comes first, so that no signature of other files fits an update."""
    return _KIND + manifest


def parse_update(header: UpdateHeader, data: bytes, keys: tuple[bytes, ...], source: str) -> UpdateManifest:
    """Return the manifest of an update; ManifestError unless one of the public keys has signed the bytes."""
    if len(data) != header.manifest_bytes:
        raise ManifestError(f"{source}: expected {header.manifest_bytes} bytes of manifest, got {len(data)}")
    if not any(verify(key, header.signature, signed_bytes(data)) for key in keys):
        raise ManifestError(f"{source}: expected a signature by one of this machine's keys (update.keys)")
    node = Node(jsontext.parse(data, source), None, source)
    manifest = UpdateManifest(
        model=read_model(node["model"]),
        version=read_version(node["version"]),
        architecture=node["arch"].non_empty(),
        root_hash=_hexadecimal(node["root_hash"], _HASH_DIGITS),
        root_blocks=node["root_blocks"].integer(1, _MAXIMUM_PART_BYTES // BLOCK_BYTES),
        root=_part(node["root"]),
        boot=_part(node["boot"]),
    )
    # Or the block with the root hash is none of the root.
    if manifest.root_blocks >= manifest.root.size_bytes // BLOCK_BYTES:
        raise node["root_blocks"].error("fewer blocks than the root has with its hash tree")
    return manifest


def dump_update(manifest: UpdateManifest) -> bytes:
    """Return a manifest as JSON."""
    fields = {name: getattr(manifest, name) for name in ("model", "version", "root_hash", "root_blocks")}
    parts = {
        name: {field: getattr(getattr(manifest, name), field) for field in UpdatePart._fields}
        for name in ("root", "boot")
    }
    return jsontext.dump({**fields, "arch": manifest.architecture, **parts})


def read_model(node: Node) -> str:
    """Return the name of a kind of machines."""
    return node.matching(
        lambda text: 0 < len(text) <= _MAXIMUM_NAME and text.isascii() and text.isprintable(),
        f"1 to {_MAXIMUM_NAME} printable characters of ASCII",
    )


def read_version(node: Node) -> str:
    """Return a version in the form of `version_numbers`."""
    return node.matching(_is_version, 'a version of numbers and dots ("1.10.2")')


def read_public_key(data: bytes, source: str) -> bytes:
    """Return the key in a PEM file of `openssl pkey -pubout`; ManifestError for keys other than Ed25519."""
    try:
        begin, *lines, end = data.decode("ascii").strip().splitlines()
        key = a2b_base64("".join(lines), strict_mode=True) if (begin, end) == _PEM_LINES else b""
    except ValueError:
        key = b""
    raw = key.removeprefix(_KEY_PREFIX)
    if len(key) != len(_KEY_PREFIX) + len(raw) or not is_key(raw):
        raise ManifestError(f"{source}: expected a public key (PEM) for Ed25519")
    return raw


def _part(node: Node) -> UpdatePart:
    partition_bytes = node["partition_bytes"].integer(BLOCK_BYTES, _MAXIMUM_PART_BYTES)
    size = node["size_bytes"]
    size_bytes = size.integer(BLOCK_BYTES, partition_bytes)
    if size_bytes % BLOCK_BYTES:
        raise size.error(f"whole blocks of {BLOCK_BYTES}")
    return UpdatePart(
        size_bytes=size_bytes,
        sha512=_hexadecimal(node["sha512"], _DIGEST_DIGITS),
        partition_bytes=partition_bytes,
    )


def _hexadecimal(node: Node, digits: int) -> str:
    return node.matching(
        lambda text: len(text) == digits and set(text) <= set("0123456789abcdef"), f"{digits} hexadecimal digits"
    )


def _is_version(text: str) -> bool:
    numbers = text.split(".")
    return len(numbers) <= _MAXIMUM_NUMBERS and all(
        number.isascii() and number.isdigit() and len(number) <= _MAXIMUM_DIGITS and str(int(number)) == number
        for number in numbers
    )


def is_key(key: bytes) -> bool:
    """Tell whether 32 bytes are a public key: the only form of a point, not one of the eight of small order."""
    return _decode_key(key) is not None


def verify(key: bytes, signature: bytes, message: bytes) -> bool:
    """Tell whether a signature of 64 bytes is of a message and of the owner of a key."""
    point = _decode_key(key)
    if point is None or len(signature) != SIGNATURE_BYTES:
        return False
    commitment, scalar = signature[:KEY_BYTES], int.from_bytes(signature[KEY_BYTES:], "little")
    if scalar >= _ORDER:
        return False
    challenge = int.from_bytes(sha512(commitment + key + message).digest(), "little") % _ORDER
    x, y, z, t = point
    # A point has a single encoding, so that another encoding of the same commitment is refused.
    return _encode(_add_multiples(scalar, _BASE, challenge, (-x % _PRIME, y, z, -t % _PRIME))) == commitment


def _decode_key(key: bytes) -> _Point | None:
    point = multiple = _decode(key)
    if multiple is None:
        return None
    for _ in range(_COFACTOR_BITS):
        multiple = _double(multiple)
    return None if _is_neutral(multiple) else point


def _decode(data: bytes) -> _Point | None:
    """Return the point of an encoding, section 5.1.3; None without a point, or for a second encoding."""
    if len(data) != KEY_BYTES:
        return None
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number & (1 << 255) - 1
    if y >= _PRIME:
        return None
    x = _recover_x(y, sign)
    return None if x is None else (x, y, 1, x * y % _PRIME)


def _recover_x(y: int, sign: int) -> int | None:
    over, under = (y * y - 1) % _PRIME, (_COEFFICIENT * y * y + 1) % _PRIME
    x = over * pow(under, 3, _PRIME) * pow(over * pow(under, 7, _PRIME), (_PRIME - 5) // 8, _PRIME) % _PRIME
    if under * x * x % _PRIME != over:
        x = x * _ROOT_OF_MINUS_ONE % _PRIME
        if under * x * x % _PRIME != over:
            return None
    # A zero has no sign. Points with x = 0 are of small order, and no keys.
    return _PRIME - x if x & 1 != sign else x


def _encode(point: _Point) -> bytes:
    x, y, z, _ = point
    inverse = pow(z, -1, _PRIME)
    return (y * inverse % _PRIME | (x * inverse % _PRIME & 1) << 255).to_bytes(KEY_BYTES, "little")


def _is_neutral(point: _Point) -> bool:
    x, y, z, _ = point
    return not x and y == z


def _add(first: _Point, second: _Point) -> _Point:
    x1, y1, z1, t1 = first
    x2, y2, z2, t2 = second
    a, b = (y1 - x1) * (y2 - x2) % _PRIME, (y1 + x1) * (y2 + x2) % _PRIME
    c, d = t1 * t2 * _DOUBLE_COEFFICIENT % _PRIME, 2 * z1 * z2 % _PRIME
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _PRIME, g * h % _PRIME, f * g % _PRIME, e * h % _PRIME


def _double(point: _Point) -> _Point:
    x, y, z, _ = point
    a, b, c = x * x % _PRIME, y * y % _PRIME, 2 * z * z % _PRIME
    e, g, h = a + b - (x + y) * (x + y) % _PRIME, a - b, a + b
    f = c + g
    return e * f % _PRIME, g * h % _PRIME, f * g % _PRIME, e * h % _PRIME


def _add_multiples(first: int, point: _Point, second: int, other: _Point) -> _Point:
    """Return the sum of two multiples of points, by the same doublings for both."""
    terms = (_NEUTRAL, point, other, _add(point, other))
    total = _NEUTRAL
    for bit in reversed(range(_ORDER.bit_length())):
        total = _add(_double(total), terms[(first >> bit & 1) | (second >> bit & 1) << 1])
    return total


def _base_point() -> _Point:
    y = 4 * pow(5, -1, _PRIME) % _PRIME
    x = _recover_x(y, 0)
    assert x is not None
    return x, y, 1, x * y % _PRIME


_BASE = _base_point()
