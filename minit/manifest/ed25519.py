"""
The verification of signatures with Ed25519, RFC 8032, in Python alone: the machine carries no OpenSSL.

There is nothing secret in it, so that no time has to be constant. It is as strict as the RFC lets it be: whoever may
choose a signature, a message or a key finds no second form of any of them.
"""

from __future__ import annotations

from hashlib import sha512

SIGNATURE_BYTES = 64
KEY_BYTES = 32

_PRIME = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_COEFFICIENT = -121665 * pow(121666, -1, _PRIME) % _PRIME
_DOUBLE_COEFFICIENT = 2 * _COEFFICIENT % _PRIME
_ROOT_OF_MINUS_ONE = pow(2, (_PRIME - 1) // 4, _PRIME)
_COFACTOR_BITS = 3

# x, y, z and t of section 5.1.4: x/z and y/z are the coordinates, and t is their product times z.
_Point = tuple[int, int, int, int]
_NEUTRAL: _Point = (0, 1, 1, 0)


def is_key(key: bytes) -> bool:
    """Tell whether 32 bytes are a public key: the only form of a point, which is none of the eight of small order."""
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
    # Only one encoding of a point is ever made, so another one of the same commitment is none.
    return _encode(_add_multiples(scalar, _BASE, challenge, (-x % _PRIME, y, z, -t % _PRIME))) == commitment


def _decode_key(key: bytes) -> _Point | None:
    point = multiple = _decode(key)
    if multiple is None:
        return None
    for _ in range(_COFACTOR_BITS):
        multiple = _double(multiple)
    return None if _is_neutral(multiple) else point


def _decode(data: bytes) -> _Point | None:
    """Return the point of an encoding, section 5.1.3; None if there is none, or it has another encoding."""
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
    # A zero has no sign. Points with one are of small order, and no keys.
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
    """Return the sum of two multiples of points, both of which are made by the same doublings."""
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
