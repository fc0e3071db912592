"""
The table of a disk's partitions (GPT), of which the last one grows. Pure.

The authority is the UEFI specification 2.10, chapter 5. The table is there twice: behind the disk's first sector, and
before its end. Each has a header of a sector with checksums, and an array of entries.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Callable
from struct import Struct
from struct import error as StructError

from minit.value import Value

SECTOR_BYTES = 512
PRIMARY_SECTOR = 1

_HEADER = Struct("<8sIIIIQQQQ16sQIII")
_SIGNATURE = b"EFI PART"
_REVISION = 0x10000
_ENTRY = Struct("<16s16sQQQ72s")
_MAXIMUM_ENTRIES_BYTES = 1 << 16
# A file system of Linux is of blocks of this size.
_ALIGNMENT_SECTORS = 8
# In the first sector, for programs that know no GPT: how many sectors it has, at most (of one partition).
_PROTECTED_SECTORS = Struct("<I")
_PROTECTED_SECTORS_OFFSET = 446 + 12
_MAXIMUM_PROTECTED = 0xFFFFFFFF


class Table(Value):
    """
    A table of partitions: the fields of its header that do not depend on its place, and its entries as they are.

    It is written at the sector `own`, and its other copy at `other`.
    """

    own: int
    other: int
    first_usable: int
    last_usable: int
    identifier: bytes
    entry_bytes: int
    entries: bytes

    @property
    def entries_sectors(self) -> int:
        """The number of sectors of the entries."""
        return -(-len(self.entries) // SECTOR_BYTES)


class PartitionEntry(Value):
    """A partition by its number, from 1, its identifier as a GUID's bytes, and its place."""

    number: int
    identifier: bytes
    start_sector: int
    sectors: int


class GrownTable(Value):
    """What is to be written, in this order and each on the disk before the next: sectors with their bytes."""

    writes: tuple[tuple[int, bytes], ...]
    start_sector: int
    sectors: int


def read_table(sector: int, read: Callable[[int, int], bytes]) -> Table | None:
    """Return the table with its header at a sector, None if it is not whole; `read(sector, bytes)` reads the disk."""
    header = read(sector, SECTOR_BYTES)
    try:
        signature, _, size, checksum, _, own, other, first, last, identifier, place, count, entry_bytes, entries_sum = (
            _HEADER.unpack_from(header)
        )
    except StructError:
        return None
    if signature != _SIGNATURE or own != sector or not _HEADER.size <= size <= SECTOR_BYTES:
        return None
    if crc32(header[:16] + bytes(4) + header[20:size]) != checksum or entry_bytes < _ENTRY.size:
        return None
    if count * entry_bytes > _MAXIMUM_ENTRIES_BYTES:
        return None
    entries = read(place, count * entry_bytes)
    if len(entries) != count * entry_bytes or crc32(entries) != entries_sum:
        return None
    return Table(
        own=own,
        other=other,
        first_usable=first,
        last_usable=last,
        identifier=identifier,
        entry_bytes=entry_bytes,
        entries=entries,
    )


def read_entry(table: Table, number: int) -> PartitionEntry:
    """Return a partition by its number, from 1; ValueError if the table has none."""
    offset = (number - 1) * table.entry_bytes
    if number < 1 or offset + _ENTRY.size > len(table.entries):
        raise ValueError(f"no partition {number}")
    kind, identifier, start, end, _, _ = _ENTRY.unpack_from(table.entries, offset)
    if not any(kind) or end < start:
        raise ValueError(f"no partition {number}")
    return PartitionEntry(number=number, identifier=identifier, start_sector=start, sectors=end - start + 1)


def grow_last(table: Table, number: int, disk_sectors: int, first_sector: bytes) -> GrownTable | None:
    """
    Return the table of a disk of so many sectors with the partition `number`, from 1, grown to the disk's end.

    None if it is there already, or another partition is behind it; `table` is the first copy, or else the second.
    The disk's end is written first: whenever the power goes, one of the two copies is whole.
    """
    offset = (number - 1) * table.entry_bytes
    if number < 1 or offset >= len(table.entries):
        return None
    *kinds, start, end, attributes, name = _ENTRY.unpack_from(table.entries, offset)
    ends = [_ENTRY.unpack_from(table.entries, place)[3] for place in range(0, len(table.entries), table.entry_bytes)]
    backup = disk_sectors - 1
    last_usable = backup - table.entries_sectors - 1
    grown = (last_usable + 1) // _ALIGNMENT_SECTORS * _ALIGNMENT_SECTORS - 1
    is_whole = grown <= end and table.own == PRIMARY_SECTOR
    if end != max(ends) or is_whole or not table.first_usable <= start <= end:
        return None
    grown = max(grown, end)
    entries = bytearray(table.entries)
    _ENTRY.pack_into(entries, offset, *kinds, start, grown, attributes, name)
    padded = bytes(entries).ljust(table.entries_sectors * SECTOR_BYTES, b"\0")
    backup_entries = backup - table.entries_sectors

    def header(own: int, other: int, place: int) -> bytes:
        count = len(entries) // table.entry_bytes
        usable = (table.first_usable, last_usable)
        rest = (0, own, other, *usable, table.identifier, place, count, table.entry_bytes, crc32(entries))
        start = (_SIGNATURE, _REVISION, _HEADER.size)
        checksum = crc32(_HEADER.pack(*start, 0, *rest))
        return _HEADER.pack(*start, checksum, *rest).ljust(SECTOR_BYTES, b"\0")

    protected = bytearray(first_sector)
    _PROTECTED_SECTORS.pack_into(protected, _PROTECTED_SECTORS_OFFSET, min(disk_sectors - 1, _MAXIMUM_PROTECTED))
    return GrownTable(
        writes=(
            (backup_entries, padded + header(backup, PRIMARY_SECTOR, backup_entries)),
            (0, bytes(protected)),
            (PRIMARY_SECTOR, header(PRIMARY_SECTOR, backup, PRIMARY_SECTOR + 1) + padded),
        ),
        start_sector=start,
        sectors=grown - start + 1,
    )
