"""Partitions of the machine's disk by their names, and the last one grown to the disk's end, with what is on it."""

from __future__ import annotations

import fcntl
import os
import struct

from minit import syscalls
from minit.machine.disk.partitiontable import (
    PRIMARY_SECTOR,
    SECTOR_BYTES,
    PartitionEntry,
    Table,
    grow_last,
    read_entry,
    read_table,
)

_BLOCK_DEVICES = "/sys/class/block"
_BY_NUMBER = "/sys/dev/block"
# _IOW('f', 16, __u64), of the kernel's fs/ext4/ext4.h.
_EXT4_IOC_RESIZE_FS = 0x40086610


def find_partition(name: str) -> str | None:
    """
    Return the node of the partition with this name in its disk's table, None if there is none.

    If the machine's root is on a disk, it is one of that: a disk that somebody plugs in may have any names.
    """
    disk = _disk_of_root()
    for device in sorted(os.listdir(_BLOCK_DEVICES)):
        place = os.path.realpath(f"{_BLOCK_DEVICES}/{device}")
        if disk in (None, os.path.dirname(place)) and _partition_name(place) == name:
            return f"/dev/{device}"
    return None


def root_partition() -> str | None:
    """Return the name of the partition with the machine's root, None if the root is on none that has a name."""
    place = _device_of_root()
    return None if place is None else _partition_name(place)


def partition_entry(node: str) -> PartitionEntry:
    """Return a partition as its disk's table has it; OSError if the disk cannot be read, ValueError without a table."""
    place = os.path.realpath(f"{_BLOCK_DEVICES}/{os.path.basename(node)}")
    disk = os.path.dirname(place)
    fd = os.open(f"/dev/{os.path.basename(disk)}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        table = _read_table(fd, int(_read(f"{disk}/size")))
    finally:
        os.close(fd)
    if table is None:
        raise ValueError(f"/dev/{os.path.basename(disk)} has no table of partitions")
    return read_entry(table, int(_read(f"{place}/partition")))


def grow_partition(node: str) -> None:
    """
    Grow a partition to the end of its disk, in the table there and for the kernel, if it is the last one.

    OSError if the disk cannot be read or written. A device that is no partition is as large as it can be.
    """
    place = os.path.realpath(f"{_BLOCK_DEVICES}/{os.path.basename(node)}")
    if not os.path.exists(f"{place}/partition"):
        return
    disk = os.path.dirname(place)
    number = int(_read(f"{place}/partition"))
    sectors = int(_read(f"{disk}/size"))
    fd = os.open(f"/dev/{os.path.basename(disk)}", os.O_RDWR | os.O_CLOEXEC)
    try:
        table = _read_table(fd, sectors)
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
    """Grow the ext4 that is mounted at `target` to the size of its device; the kernel does it while it is used."""
    size_bytes = int(_read(f"{_BLOCK_DEVICES}/{os.path.basename(node)}/size")) * SECTOR_BYTES
    fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        blocks = size_bytes // os.fstatvfs(fd).f_bsize
        fcntl.ioctl(fd, _EXT4_IOC_RESIZE_FS, struct.pack("=Q", blocks))
    finally:
        os.close(fd)


def _read_table(disk: int, sectors: int) -> Table | None:
    def read(sector: int, size_bytes: int) -> bytes:
        return os.pread(disk, size_bytes, sector * SECTOR_BYTES)

    # The first may be half written, the last one is where the disk has ended so far.
    return read_table(PRIMARY_SECTOR, read) or read_table(sectors - 1, read)


def _disk_of_root() -> str | None:
    """Return the disk of the machine's root in sysfs."""
    own = _device_of_root()
    return os.path.dirname(own) if own is not None and os.path.exists(f"{own}/partition") else own


def _device_of_root() -> str | None:
    """Return the device of the machine's root in sysfs; behind a root that is verified there is another one."""
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
