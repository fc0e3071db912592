"""Reads files of which only so much is wanted, without memory for all of it."""

from __future__ import annotations

import os
from typing import BinaryIO


def read_at_most(file: BinaryIO, limit_bytes: int) -> bytes:
    """Return the first bytes of a file, also of one that is no regular file, or grows meanwhile."""
    expected = min(os.fstat(file.fileno()).st_size + 1, limit_bytes)
    data = file.read(expected)
    return data if len(data) < expected else data + file.read(limit_bytes - expected)
