"""
Attributes of netlink messages as bytes, for messages that are written so often that pyroute2's classes take too long.

Numbers are in network byte order, as nfnetlink has them.
"""

from __future__ import annotations

_NESTED = 0x8000
_HEADER_BYTES = 4


def attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute, padded to where the next one begins."""
    return _header(kind, value) + value + bytes(-len(value) % 4)


def number(kind: int, value: int) -> bytes:
    """Return an attribute of 32 bits, signed or not."""
    return attribute(kind, (value & 0xFFFFFFFF).to_bytes(4, "big"))


def text(kind: int, value: str) -> bytes:
    """Return an attribute that is a string; what is no text in UTF-8 stands for the byte that it came from."""
    return attribute(kind, value.encode("utf-8", "surrogateescape") + b"\0")


def nested(kind: int, *attributes: bytes) -> bytes:
    """Return an attribute made of others."""
    value = b"".join(attributes)
    return _header(kind | _NESTED, value) + value


def read_attributes(data: bytes) -> dict[int, bytes]:
    """Return the values of attributes that stand one after the other, by their kinds."""
    found = {}
    while len(data) >= _HEADER_BYTES:
        size = int.from_bytes(data[0:2], "little")
        found[int.from_bytes(data[2:4], "little") & ~_NESTED] = data[_HEADER_BYTES:size]
        data = data[max(_HEADER_BYTES, size + 3 & ~3) :]
    return found


def _header(kind: int, value: bytes) -> bytes:
    return (4 + len(value)).to_bytes(2, "little") + kind.to_bytes(2, "little")
