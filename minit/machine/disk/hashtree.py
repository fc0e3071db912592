"""The superblock of a hash tree for dm-verity, as veritysetup(8) writes it behind a root. Pure."""

from __future__ import annotations

import struct

SIGNATURE = b"verity\0\0"

# Signature, version and kind, identifier, which is the first half of the root hash (minit/image/disk/filesystems.py).
_SUPERBLOCK = struct.Struct("<8s8x16s")


def root_hash_prefix(data: bytes) -> str | None:
    """Return the first half of a tree's root hash, in hexadecimal; None for data that begins with no superblock."""
    if len(data) < _SUPERBLOCK.size or not data.startswith(SIGNATURE):
        return None
    _, identifier = _SUPERBLOCK.unpack_from(data)
    return bytes(identifier).hex()
