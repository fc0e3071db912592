"""
Partitions of the machine's disk by name, and the growth of the last partition, with its file system, to the disk's end.

The authority for the table (GPT) is the UEFI specification 2.10, chapter 5. The table is there twice: behind the disk's
first sector, and before the disk's end. Each has a header of a sector with checksums, and an array of entries.
"""

from __future__ import annotations

import fcntl
import os
import struct
from binascii import crc32
from collections.abc import Callable
from struct import Struct
from struct import error as StructError

from minit.base.value import Value
from minit.linux import syscalls

_BLOCK_DEVICES = "/sys/class/block"
_BY_NUMBER = "/sys/dev/block"
# _IOW('f', 16, __u64), of the kernel's fs/ext4/ext4.h.
_EXT4_IOC_RESIZE_FS = 0x40086610
SECTOR_BYTES = 512
PRIMARY_SECTOR = 1

_HEADER = Struct("<8sIIIIQQQQ16sQIII")
_SIGNATURE = b"EFI PART"
_REVISION = 0x10000
_ENTRY = Struct("<16s16sQQQ72s")
_MAXIMUM_ENTRIES_BYTES = 1 << 16
# A file system of Linux has blocks of this size.
_ALIGNMENT_SECTORS = 8
# In the first sector, for programs that know no GPT: the largest number of sectors of a partition there.
_PROTECTED_SECTORS = Struct("<I")
_PROTECTED_SECTORS_OFFSET = 446 + 12
_MAXIMUM_PROTECTED = 0xFFFFFFFF


def find_partition(name: str) -> str | None:
    """
    Return the node of the partition with this name in its disk's table, None if there is none.

    If the machine's root is on a disk, only that disk counts: a disk plugged in later may have any names.
    """
    disk = _disk_of_root()
    for device in sorted(os.listdir(_BLOCK_DEVICES)):
        place = os.path.realpath(f"{_BLOCK_DEVICES}/{device}")
        if disk in (None, os.path.dirname(place)) and _partition_name(place) == name:
            return f"/dev/{device}"
    return None


def root_partition() -> str | None:
    """Return the name of the partition with the machine's root, None for a root outside any named partition."""
    place = _device_of_root()
    return None if place is None else _partition_name(place)


def partition_entry(node: str) -> PartitionEntry:
    """Return a partition from its disk's table; OSError if the disk cannot be read, ValueError without a table."""
    place = os.path.realpath(f"{_BLOCK_DEVICES}/{os.path.basename(node)}")
    disk = os.path.dirname(place)
    fd = os.open(f"/dev/{os.path.basename(disk)}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        table = _table_of_disk(fd, int(_read(f"{disk}/size")))
    finally:
        os.close(fd)
    if table is None:
        raise ValueError(f"/dev/{os.path.basename(disk)} has no table of partitions")
    return _read_entry(table, int(_read(f"{place}/partition")))


def grow_partition(node: str) -> None:
    """
    Grow a partition, if it is the disk's last, to the disk's end, in the table and for the kernel.

    OSError if the disk cannot be read or written. A device other than a partition is as large as possible already.
    """
    place = os.path.realpath(f"{_BLOCK_DEVICES}/{os.path.basename(node)}")
    if not os.path.exists(f"{place}/partition"):
        return
    disk = os.path.dirname(place)
    number = int(_read(f"{place}/partition"))
    sectors = int(_read(f"{disk}/size"))
    fd = os.open(f"/dev/{os.path.basename(disk)}", os.O_RDWR | os.O_CLOEXEC)
    try:
        table = _table_of_disk(fd, sectors)
        grown = None if table is None else grow_last(table, number, sectors, os.pread(fd, SECTOR_BYTES, 0))
        if grown is None:
            return
        for sector, data in grown.writes:
            os.pwrite(fd, data, sector * SECTOR_BYTES)
            os.fsync(fd)
        syscalls.resize_partition(fd, number, grown.start_sector * SECTOR_BYTES, grown.sectors * SECTOR_BYTES)
    finally:
        os.close(fd)


def grow_ext4(target: str, node: str) -> None:
    """Grow the ext4 mounted at `target` to the size of its device; the kernel does so during use."""
    size_bytes = int(_read(f"{_BLOCK_DEVICES}/{os.path.basename(node)}/size")) * SECTOR_BYTES
    fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        blocks = size_bytes // os.fstatvfs(fd).f_bsize
        fcntl.ioctl(fd, _EXT4_IOC_RESIZE_FS, struct.pack("=Q", blocks))
    finally:
        os.close(fd)


def _table_of_disk(disk: int, sectors: int) -> Table | None:
    def read(sector: int, size_bytes: int) -> bytes:
        return os.pread(disk, size_bytes, sector * SECTOR_BYTES)

    # The first table may be half written; the last is at the disk's former end.
    return read_table(PRIMARY_SECTOR, read) or read_table(sectors - 1, read)


def _disk_of_root() -> str | None:
    """Return the disk of the machine's root in sysfs."""
    own = _device_of_root()
    return os.path.dirname(own) if own is not None and os.path.exists(f"{own}/partition") else own


def _device_of_root() -> str | None:
    """Return the device of the machine's root in sysfs; a verified root has another device below."""
    device = os.stat("/").st_dev
    place = f"{_BY_NUMBER}/{os.major(device)}:{os.minor(device)}"
    if not os.path.exists(place):
        return None
    behind = sorted(os.listdir(f"{place}/slaves")) if os.path.isdir(f"{place}/slaves") else []
    return os.path.realpath(f"{place}/slaves/{behind[0]}" if behind else place)


def _partition_name(place: str) -> str | None:
    try:
        lines = _read(f"{place}/uevent").splitlines()
    except OSError:
        return None  # it has gone
    return next((line.partition("=")[2] for line in lines if line.startswith("PARTNAME=")), None)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


class Table(Value):
    """
    A table of partitions: the header's fields that do not depend on its place, and its entries unchanged.

    The table is written at the sector `own`, and its other copy at `other`.
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
    """A partition: number, from 1, identifier as a GUID's bytes, and place."""

    number: int
    identifier: bytes
    start_sector: int
    sectors: int


class GrownTable(Value):
    """Sectors with their bytes to write, in this order and each on the disk before the next."""

    writes: tuple[tuple[int, bytes], ...]
    start_sector: int
    sectors: int


def read_table(sector: int, read: Callable[[int, int], bytes]) -> Table | None:
    """Return the table with its header at a sector, None for a damaged table; `read(sector, bytes)` reads the disk."""
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


def _read_entry(table: Table, number: int) -> PartitionEntry:
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

    None if the partition ends there already, or is not the last; `table` is the first copy, or else the second. The
    disk's end is written first: after a loss of power at any time, one of the two copies is whole.
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
