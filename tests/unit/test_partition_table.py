"""The table of a disk's partitions, whose last one grows: what is written, and what a loss of power leaves."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.machine.partitions import PRIMARY_SECTOR, SECTOR_BYTES, Table, grow_last, read_table

SECTORS = 8192
GROWN = 30000
SCRIPT = """label: gpt
label-id: 6B3F7B0E-4E0C-5C55-8F0E-3D5D5C7D9A11
start=2048, size=1024, name="root"
start=4096, size=1024, name="data"
"""


@pytest.fixture(scope="module")
def disk() -> bytes:
    """A disk with two partitions, by sfdisk, that has been copied to a larger one."""
    if shutil.which("sfdisk") is None:
        pytest.skip("no sfdisk on PATH")
    path = Path(subprocess.run(["mktemp"], capture_output=True, text=True, check=True).stdout.strip())
    try:
        path.write_bytes(bytes(SECTORS * SECTOR_BYTES))
        subprocess.run(["sfdisk", "--quiet", path], input=SCRIPT, text=True, check=True)
        return path.read_bytes().ljust(GROWN * SECTOR_BYTES, b"\0")
    finally:
        path.unlink()


def read(disk: bytes, sector: int) -> Table | None:
    """Return the table at a sector."""
    return read_table(sector, lambda at, count: disk[at * SECTOR_BYTES : at * SECTOR_BYTES + count])


def writes(disk: bytes, number: int = 2) -> list[tuple[int, bytes]]:
    """Return what is written to grow a partition, sector by sector."""
    table = read(disk, PRIMARY_SECTOR) or read(disk, len(disk) // SECTOR_BYTES - 1)
    assert table is not None
    grown = grow_last(table, number, len(disk) // SECTOR_BYTES, disk[:SECTOR_BYTES])
    return [
        (sector + at // SECTOR_BYTES, data[at : at + SECTOR_BYTES])
        for sector, data in (() if grown is None else grown.writes)
        for at in range(0, len(data), SECTOR_BYTES)
    ]


def write(disk: bytes, sectors: list[tuple[int, bytes]]) -> bytes:
    """Return the disk with these sectors written."""
    changed = bytearray(disk)
    for sector, data in sectors:
        changed[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES] = data
    return bytes(changed)


def partitions(disk: bytes, path: Path) -> list[dict[str, Any]]:
    """Return the partitions that sfdisk finds, which finds the table in order."""
    path.write_bytes(disk)
    done = subprocess.run(["sfdisk", "--verify", path], capture_output=True, text=True, check=True)
    assert "No errors detected" in done.stdout and not done.stderr, (done.stdout, done.stderr)
    dumped = subprocess.run(["sfdisk", "--json", path], capture_output=True, check=True).stdout
    found: list[dict[str, Any]] = json.loads(dumped)["partitiontable"]["partitions"]
    return [{key: value for key, value in partition.items() if key != "node"} for partition in found]


def test_the_last_partition_grows(disk: bytes, tmp_path: Path) -> None:
    """It ends before the second table at the disk's end, in whole blocks of 4 KiB; the others are as they were."""
    before = partitions(disk[: SECTORS * SECTOR_BYTES], tmp_path / "before")
    grown = write(disk, writes(disk))
    one, two = partitions(grown, tmp_path / "disk")
    assert one == before[0]
    assert two == before[1] | {"size": (GROWN - 33) // 8 * 8 - 4096}
    assert writes(grown) == []


def test_no_other_partition_grows(disk: bytes) -> None:
    """One that another is behind stays, and so does one that is not there."""
    assert [writes(disk, number) for number in (0, 1, 3, 129)] == [[], [], [], []]


def test_a_loss_of_power(disk: bytes, tmp_path: Path) -> None:
    """After each sector that is written one of the two tables is whole, and the next boot completes the rest."""
    sectors = writes(disk)
    whole = write(disk, sectors)
    assert len(sectors) > 60
    for count in range(len(sectors)):
        cut = write(disk, sectors[:count])
        primary, backup = read(cut, PRIMARY_SECTOR), read(cut, GROWN - 1)
        assert primary is not None or backup is not None
        assert write(cut, writes(cut)) == whole


@given(st.data())
def test_a_table_that_is_damaged(disk: bytes, data: st.DataObject) -> None:
    """A changed byte of header or entries is found by their checksums."""
    place = data.draw(st.sampled_from([*range(92), *range(SECTOR_BYTES, SECTOR_BYTES + 128 * 128)]))
    changed = bytearray(disk)
    changed[SECTOR_BYTES + place] ^= data.draw(st.integers(1, 255))
    assert read(bytes(changed), PRIMARY_SECTOR) is None
