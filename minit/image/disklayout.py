"""
The layout of a machine's disk: a table of partitions (GPT), two slots for the parts that an update changes.

    boot-a, root-a      a file system for the firmware with one program, kernel and all; and a root
    boot-b, root-b      the same for the next version, empty at first
    data                a file system that grows to the disk's end at the first boot

Pure, and so apart from disk.py. The layout never changes on a machine: an update writes the other slot's two partitions
as a whole, from the first byte to the last, and no table, nor a file system that the running version needs.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from minit.base.errors import ImageError
from minit.base.value import Value
from minit.manifest.machineconfig import Disk
from minit.podfiles import paths

SECTOR_BYTES = 512
DATA = "data"
DATA_BYTES = 64 << 20
"""The size of the data file system before the growth."""

_MIB = 1 << 20
_ALIGNMENT_BYTES = _MIB
# The table's second copy is at the disk's end: 32 sectors of entries, and a header.
_TABLE_BYTES = 33 * SECTOR_BYTES
# The kinds of partitions: UEFI specification 2.10, 5.3.3, and the Discoverable Partitions Specification.
_ESP = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
_LINUX = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
_NAMESPACE = uuid.UUID("6b3f7b0e-4e0c-5c55-8f0e-3d5d5c7d9a11")


class EfiNames(Value):
    """
    The names for a kind of processors: the program that a firmware starts by default, systemd's stub, and the kind of
    partitions with a root.
    """

    program: str
    stub: str
    root_kind: str


ARCHITECTURES = {
    "amd64": EfiNames(
        program="BOOTX64.EFI", stub="linuxx64.efi.stub", root_kind="4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709"
    ),
    "aarch64": EfiNames(
        program="BOOTAA64.EFI", stub="linuxaa64.efi.stub", root_kind="B921B045-1DF0-41C3-AF44-4C6F280D3FAE"
    ),
}
"""By appc's names of architectures."""


class Partition(Value):
    """A partition: name, kind and identifier, the offset of the first byte, and the size."""

    name: str
    kind: str
    identifier: str
    start_bytes: int
    size_bytes: int


class DiskLayout(Value):
    """A whole disk; `identifier` is the identifier of the table."""

    identifier: str
    size_bytes: int
    partitions: tuple[Partition, ...]

    def partition(self, name: str) -> Partition:
        """Return the partition `name`; KeyError for an unknown name."""
        return {partition.name: partition for partition in self.partitions}[name]


def plan_disk(disk: Disk, efi: EfiNames, program_bytes: int, root_bytes: int, seed: str) -> DiskLayout:
    """
    Return the layout for sizes of a firmware's program and a root; ImageError if a slot is too small.

    Identifiers are made of `seed` and names, so that the same parts make the same disk.
    """
    boot_bytes = disk.boot_mib * _MIB
    # The file system has also tables, of 4 bytes for each cluster of a sector.
    if program_bytes > boot_bytes - boot_bytes // 32 - _MIB:
        raise _too_small("boot_mib", disk.boot_mib, "kernel", program_bytes)
    slot_bytes = _align(2 * root_bytes) if disk.root_mib is None else disk.root_mib * _MIB
    if root_bytes > slot_bytes:
        raise _too_small("root_mib", slot_bytes // _MIB, "root", root_bytes)
    sizes = [(f"{kind}-{slot}", kind) for slot in paths.MACHINE_SLOTS for kind in ("boot", "root")]
    kinds = {"boot": (_ESP, boot_bytes), "root": (efi.root_kind, slot_bytes)}
    planned = [(name, *kinds[kind]) for name, kind in sizes] + [(DATA, _LINUX, DATA_BYTES)]
    partitions, end = [], _ALIGNMENT_BYTES
    for name, kind, size_bytes in planned:
        identifier = _identifier(seed, name)
        partitions.append(
            Partition(name=name, kind=kind, identifier=identifier, start_bytes=end, size_bytes=size_bytes)
        )
        end += size_bytes
    size_bytes = _align(end + _TABLE_BYTES)
    return DiskLayout(identifier=_identifier(seed, ""), size_bytes=size_bytes, partitions=tuple(partitions))


def sfdisk_script(layout: DiskLayout) -> str:
    """Return the layout as sfdisk(8) reads it."""
    lines: Sequence[str] = [
        f"start={partition.start_bytes // SECTOR_BYTES}, size={partition.size_bytes // SECTOR_BYTES}, "
        f'type={partition.kind}, uuid={partition.identifier}, name="{partition.name}"'
        for partition in layout.partitions
    ]
    return "\n".join(["label: gpt", f"label-id: {layout.identifier}", "unit: sectors", *lines, ""])


def _too_small(key: str, size_mib: int, name: str, needed_bytes: int) -> ImageError:
    return ImageError(f"disk.{key} is {size_mib}: the {name} has {-(-needed_bytes // _MIB)} MiB")


def _identifier(seed: str, name: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"{seed}/{name}")).upper()


def _align(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
