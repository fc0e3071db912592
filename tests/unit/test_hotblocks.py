"""The hot blocks of a dump's memory: those that were written to, of a size that several share a page."""

from __future__ import annotations

import struct
from array import array
from pathlib import Path

from minit.image.dump.program import ARENA_ADDRESS, choose_blocks_at, choose_hot_blocks

GRANULE_BYTES = 16


def hot_blocks(profile: Path, numbers: list[int], written: list[int]) -> tuple[int, list[int]]:
    """Return the size and the numbers of what is hot, given the block of each granule and the granules written to."""
    (profile / "numbers").write_bytes(array("I", numbers).tobytes())
    (profile / "written").write_bytes(bytes(int(at in written) for at in range(len(numbers))))
    assert choose_hot_blocks(profile)
    (size_bytes, rest_bytes), table = read_hot(profile)
    assert rest_bytes == 0 and set(table) <= {0, 1}
    return size_bytes, [at + 1 for at, is_hot in enumerate(table) if is_hot]


def read_hot(profile: Path) -> tuple[tuple[int, int], list[int]]:
    """Return the sizes of both places, and the place of each block, 0 for none."""
    data = (profile / "hot").read_bytes()
    first_bytes, second_bytes = struct.unpack_from("NN", data)
    return (first_bytes, second_bytes), list(data[struct.calcsize("NN") :])


def test_blocks_that_are_written_to_are_hot(tmp_path: Path) -> None:
    """With all their granules; what belongs to no block counts for nothing."""
    assert hot_blocks(tmp_path, [0, 1, 1, 2, 7, 7, 7, 0], [0, 1, 6, 7]) == (5 * GRANULE_BYTES, [1, 7])


def test_large_blocks_are_not_hot(tmp_path: Path) -> None:
    """They have pages of their own in any case."""
    numbers = [1] * 64 + [2] * 65 + [3]
    assert hot_blocks(tmp_path, numbers, [0, 64, 129]) == (65 * GRANULE_BYTES, [1, 3])


def test_nothing_was_written_to(tmp_path: Path) -> None:
    """There is no profile where the program has noted nothing, or not got so far."""
    (tmp_path / "numbers").write_bytes(array("I", [1, 2]).tobytes())
    assert not choose_hot_blocks(tmp_path)
    (tmp_path / "written").write_bytes(b"\0\0")
    assert not choose_hot_blocks(tmp_path)
    assert not (tmp_path / "hot").exists()


def test_noted_blocks_of_sidecars_have_the_first_place(tmp_path: Path) -> None:
    """A block in the last line and in a line before lies in the first place; room is a quarter more than needed."""
    numbers = [1, 1, 2, 3, 3, 3, 3, 4, 0]
    (tmp_path / "numbers").write_bytes(array("I", numbers).tobytes())
    lines = [[3], [0], [0, 3, 7, 8, 100, -1]]
    choose_blocks_at(tmp_path, [[ARENA_ADDRESS + granule * GRANULE_BYTES for granule in line] for line in lines])
    assert read_hot(tmp_path) == ((6 * GRANULE_BYTES * 5 // 4, GRANULE_BYTES * 5 // 4), [1, 0, 1, 2])
