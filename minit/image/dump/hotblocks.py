"""
Has what a program writes to lie together in its memory, so that its processes copy fewer pages.

To use an object CPython counts it, and so writes to it. Used objects lie anywhere among unused ones, and with each a
page is copied. profile.c finds the memory that a program writes to, noting.py tells where that is likely.
"""

from __future__ import annotations

import platform
import struct
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ARENA_ADDRESS = 0x10000000
"""As layout.ld has it."""

_GRANULE_BYTES = 16
_MAX_BYTES = 1024
"""A block that is larger has pages of its own in any case."""


def can_trace() -> bool:
    """Tell whether writes can be found out on this processor."""
    return platform.machine() == "x86_64"


def choose_hot_blocks(profile: Path) -> bool:
    """
    Make of what a dumper and its program have left in a directory what the next dumper reads there.

    False if the program has found out nothing.
    """
    numbers = array("I", (profile / "numbers").read_bytes())
    try:
        written = (profile / "written").read_bytes()
    except FileNotFoundError:
        return False
    hot = {number for number, is_written in zip(numbers, written, strict=True) if is_written and number}
    granules = Counter(number for number in numbers if number in hot)
    hot = {number for number in hot if granules[number] * _GRANULE_BYTES <= _MAX_BYTES}
    if hot:
        _write_hot_blocks(profile, hot, sum(granules[number] for number in hot) * _GRANULE_BYTES)
    return bool(hot)


def choose_blocks_at(profile: Path, addresses: Iterable[int]) -> None:
    """Make what the next dumper reads of the blocks that lie at these addresses, of what a dumper has left."""
    numbers = array("I", (profile / "numbers").read_bytes())
    places = ((address - ARENA_ADDRESS) // _GRANULE_BYTES for address in addresses)
    hot = {numbers[place] for place in places if 0 <= place < len(numbers)} - {0}
    # With room for blocks that were freed: these are counted only by the granules that no later one took.
    size_bytes = sum(number in hot for number in numbers) * _GRANULE_BYTES * 5 // 4
    _write_hot_blocks(profile, hot, size_bytes)


def _write_hot_blocks(profile: Path, hot: set[int], size_bytes: int) -> None:
    table = bytearray(max(hot, default=0))
    for number in hot:
        table[number - 1] = 1
    (profile / "hot").write_bytes(struct.pack("N", size_bytes) + table)
