"""
The variables of an EFI firmware, by the kernel's efivarfs, and the firmware's entries for the two slots.

The file system is mounted nowhere: only a descriptor leads there, as long as needed. Its files are variables, with four
bytes of attributes before the value (Documentation/filesystems/efivarfs.rst).

The authority for entries is the UEFI specification 2.10, 3.1 and 10.3. An entry names a partition by its identifier in
the disk's table, and a program there. So an entry holds wherever the firmware finds the disk. The planning of entries
is pure.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from struct import Struct
from struct import error as StructError

from minit.base.errors import UpdateError, describe
from minit.base.value import Value
from minit.linux import syscalls
from minit.machine.modules import read_modules
from minit.machine.partitions import PartitionEntry

GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
"""The namespace of the variables of the UEFI specification (EFI_GLOBAL_VARIABLE)."""
OWN = "9dbc99db-f222-42ba-b1cc-5a80f0436170"
"""The namespace of minit's own variables."""

_FIRMWARE = "/sys/firmware/efi"
_FSTYPE = "efivarfs"
# The variable outlives a boot, and is readable for the firmware and for the booted system.
_ATTRIBUTES = (7).to_bytes(4, "little")
_MAXIMUM_BYTES = 1 << 16
# linux/fs.h. The kernel sets this flag on variables that it does not know, to protect them from a mere rm.
_FS_IOC_GETFLAGS, _FS_IOC_SETFLAGS = 0x80086601, 0x40086602
_FS_IMMUTABLE_FL = 0x10
_FLAGS_BYTES = 8
_NUMBERS = range(1 << 16)

_OPTION = Struct("<IH")
_ACTIVE = 1
_NODE = Struct("<BBH")
# Type, subtype, length; number, start, size, identifier; GPT as the kind of table, and GUID as the kind of identifier.
_HARD_DRIVE = Struct("<BBHIQQ16sBB")
_HARD_DRIVE_NODE = (4, 1, _HARD_DRIVE.size)
_GPT, _GUID = 2, 2
_FILE_NODE = (4, 4)
_END = b"\x7f\xff\4\0"
_NUL = b"\0\0"


class EfiVariables:
    """The variables in the file system open as `directory`."""

    def __init__(self, directory: int) -> None:
        self._directory = directory

    def names(self, namespace: str = GLOBAL) -> list[str]:
        """Return the names of all variables of a namespace, sorted."""
        end = f"-{namespace}"
        return sorted(name.removesuffix(end) for name in os.listdir(self._directory) if name.endswith(end))

    def read(self, name: str, namespace: str = GLOBAL) -> bytes | None:
        """Return the value of a variable, None if there is none."""
        try:
            fd = self._open(f"{name}-{namespace}", os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return os.read(fd, _MAXIMUM_BYTES)[len(_ATTRIBUTES) :]
        finally:
            os.close(fd)

    def write(self, name: str, value: bytes, namespace: str = GLOBAL) -> None:
        """
        Write a variable, which the firmware does as a whole; an unchanged value is not written again.

        UpdateError if the firmware refuses the value.
        """
        if self.read(name, namespace) == value:
            return
        try:
            with self._writable(f"{name}-{namespace}") as path:
                fd = self._open(path, os.O_WRONLY | os.O_CREAT)
                try:
                    os.write(fd, _ATTRIBUTES + value)
                finally:
                    os.close(fd)
        except OSError as error:
            raise UpdateError(f"the firmware does not take its variable {name}: {describe(error)}") from error

    def _open(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o644, dir_fd=self._directory)

    @contextmanager
    def _writable(self, path: str) -> Iterator[str]:
        try:
            fd = self._open(path, os.O_RDONLY)
        except FileNotFoundError:
            yield path
            return
        try:
            flags = int.from_bytes(fcntl.ioctl(fd, _FS_IOC_GETFLAGS, bytes(_FLAGS_BYTES)), "little")
            if flags & _FS_IMMUTABLE_FL:
                _set_flags(fd, flags & ~_FS_IMMUTABLE_FL)
            try:
                yield path
            finally:
                _set_flags(fd, flags)
        finally:
            os.close(fd)


@contextmanager
def open_variables() -> Iterator[EfiVariables]:
    """Open the variables of the firmware; UpdateError without a firmware, or if this kernel cannot write them."""
    if not os.path.isdir(_FIRMWARE):
        raise UpdateError("no EFI firmware has started this machine: nothing can tell it which slot to boot")
    read_modules().load_filesystem(_FSTYPE)
    try:
        directory = _open_filesystem()
        try:
            if os.fstatvfs(directory).f_flag & os.ST_RDONLY:
                raise UpdateError("the firmware's variables cannot be written while Linux runs")
            yield EfiVariables(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise UpdateError(f"the firmware's variables ({_FSTYPE}): {describe(error)}") from error


def _open_filesystem() -> int:
    context = syscalls.fsopen(_FSTYPE)
    try:
        syscalls.fsconfig_create(context)
        mount = syscalls.fsmount(context)
    finally:
        os.close(context)
    try:
        # O_PATH only names the directory.
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount)
    finally:
        os.close(mount)


def _set_flags(fd: int, flags: int) -> None:
    fcntl.ioctl(fd, _FS_IOC_SETFLAGS, flags.to_bytes(_FLAGS_BYTES, "little"))


class SlotEntry(Value):
    """A slot's entry for the firmware: the partition to boot from, the `program` there, and a title."""

    title: str
    partition: PartitionEntry
    program: str

    def option(self) -> bytes:
        """Return the value of a variable Boot####, an EFI_LOAD_OPTION."""
        path = _encode(self.program)
        part = self.partition
        devices = _HARD_DRIVE.pack(
            *_HARD_DRIVE_NODE, part.number, part.start_sector, part.sectors, part.identifier, _GPT, _GUID
        )
        devices += _NODE.pack(*_FILE_NODE, _NODE.size + len(path)) + path + _END
        return _OPTION.pack(_ACTIVE, len(devices)) + _encode(self.title) + devices

    def is_in(self, option: bytes) -> bool:
        """Tell whether an entry of the firmware is for the same slot; title and place of the partition may differ."""
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
    """The numbers of the slots' entries, the entries to write, and the order of all entries."""

    numbers: Mapping[str, int]
    options: Mapping[int, bytes]
    order: tuple[int, ...]


def plan_entries(
    slots: Mapping[str, SlotEntry], found: Mapping[int, bytes], order: Sequence[int], current: int | None, first: str
) -> BootPlan:
    """
    Return the writes after which the firmware has an entry for each slot, the entry of `first` before the other.

    `found` are the firmware's entries, `order` is their order, and `current` the booted entry. Other entries stay, in
    their order: an entry before the disk's stays before the disk's.
    """
    numbers: dict[str, int] = {}
    for slot, entry in slots.items():
        own = sorted(number for number, option in found.items() if entry.is_in(option))
        taken = {*found, *numbers.values(), *order}
        numbers[slot] = own[0] if own else next(number for number in _NUMBERS if number not in taken)
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
    """Return the slot of the firmware's first entry of a slot, None without such an entry."""
    for number in order:
        for slot, entry in slots.items():
            if entry.is_in(found.get(number, b"")):
                return slot
    return None


def _encode(text: str) -> bytes:
    # UTF-16 in little-endian order, of ASCII; the interpreter of an image has no codec for UTF-16.
    return b"".join(bytes((letter, 0)) for letter in text.encode("ascii")) + _NUL


def _end_of_text(data: bytes, start: int) -> int:
    for place in range(start, len(data), len(_NUL)):
        if data[place : place + len(_NUL)] == _NUL:
            return place + len(_NUL)
    raise ValueError
