"""
The firmware's entries for the two slots: what is in Boot0000 and so on, and the order in which they are tried. Pure.

The authority is the UEFI specification 2.10, 3.1 and 10.3. An entry names a partition by its identifier in the table,
and a program on it. So it holds wherever the firmware finds the disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from struct import error as StructError

from minit.machine.disk.partitiontable import PartitionEntry
from minit.value import Value

NUMBERS = range(1 << 16)

_OPTION = Struct("<IH")
_ACTIVE = 1
_NODE = Struct("<BBH")
# Type, subtype, length; number, start, size, identifier; that the table is a GPT, and the identifier a GUID.
_HARD_DRIVE = Struct("<BBHIQQ16sBB")
_HARD_DRIVE_NODE = (4, 1, _HARD_DRIVE.size)
_GPT, _GUID = 2, 2
_FILE_NODE = (4, 4)
_END = b"\x7f\xff\4\0"
_NUL = b"\0\0"


class SlotEntry(Value):
    """What the firmware is to know of a slot: the partition it boots from, the `program` there, and a title."""

    title: str
    partition: PartitionEntry
    program: str

    def option(self) -> bytes:
        """Return it as the value of a variable Boot####, an EFI_LOAD_OPTION."""
        path = _encode(self.program)
        part = self.partition
        devices = _HARD_DRIVE.pack(
            *_HARD_DRIVE_NODE, part.number, part.start_sector, part.sectors, part.identifier, _GPT, _GUID
        )
        devices += _NODE.pack(*_FILE_NODE, _NODE.size + len(path)) + path + _END
        return _OPTION.pack(_ACTIVE, len(devices)) + _encode(self.title) + devices

    def is_in(self, option: bytes) -> bool:
        """Tell whether an entry of the firmware is this one, be its title, or the place of the partition, another."""
        try:
            _, length = _OPTION.unpack_from(option)
            start = _end_of_text(option, _OPTION.size)
            devices = option[start : start + length]
            kind, subtype, size, _, _, _, identifier, _, signature = _HARD_DRIVE.unpack_from(devices)
            if (kind, subtype, size) != _HARD_DRIVE_NODE or signature != _GUID:
                return False
            kind, subtype, size = _NODE.unpack_from(devices, _HARD_DRIVE.size)
            path = devices[_HARD_DRIVE.size + _NODE.size : _HARD_DRIVE.size + size]
        except (StructError, ValueError):
            return False
        same_file = (kind, subtype) == _FILE_NODE and path.lower() == _encode(self.program).lower()
        return same_file and bool(identifier == self.partition.identifier)


class BootPlan(Value):
    """The numbers of the slots' entries, the entries that are to be written, and the order in which all are tried."""

    numbers: Mapping[str, int]
    options: Mapping[int, bytes]
    order: tuple[int, ...]


def plan_entries(
    slots: Mapping[str, SlotEntry], found: Mapping[int, bytes], order: Sequence[int], current: int | None, first: str
) -> BootPlan:
    """
    Return what is to be written so that the firmware has an entry for each slot, that of `first` before the other.

    `found` are its entries, `order` is the order in which it tries them, and `current` the entry that it has booted.
    Entries of others stay as they are, in their order: what was tried before the disk is tried before it afterwards.
    """
    numbers: dict[str, int] = {}
    for slot, entry in slots.items():
        own = sorted(number for number, option in found.items() if entry.is_in(option))
        taken = {*found, *numbers.values(), *order}
        numbers[slot] = own[0] if own else next(number for number in NUMBERS if number not in taken)
    options = {number: slots[slot].option() for slot, number in numbers.items()}
    ours = sorted(numbers.values(), key=lambda number: number != numbers[first])
    places = [place for place, number in enumerate(order) if number in ours]
    places += [place for place, number in enumerate(order) if not places and number == current]
    place = places[0] if places else 0
    others = [number for number in order if number not in ours]
    before = len([number for number in order[:place] if number not in ours])
    return BootPlan(
        numbers=numbers,
        options={number: option for number, option in options.items() if found.get(number) != option},
        order=(*others[:before], *ours, *others[before:]),
    )


def first_slot(slots: Mapping[str, SlotEntry], found: Mapping[int, bytes], order: Sequence[int]) -> str | None:
    """Return the slot whose entry the firmware tries first, None if it has no entry for one."""
    for number in order:
        for slot, entry in slots.items():
            if entry.is_in(found.get(number, b"")):
                return slot
    return None


def _encode(text: str) -> bytes:
    # UTF-16 in little-endian order, of ASCII; the interpreter of an image has no codec for it.
    return b"".join(bytes((letter, 0)) for letter in text.encode("ascii")) + _NUL


def _end_of_text(data: bytes, start: int) -> int:
    for place in range(start, len(data), len(_NUL)):
        if data[place : place + len(_NUL)] == _NUL:
            return place + len(_NUL)
    raise ValueError
