"""
The files that an ELF file is loaded with: its interpreter, libraries and search paths.

System V ABI, chapters 4 and 5; only the fields a loader looks at before it maps anything.
"""

from __future__ import annotations

import struct
from pathlib import Path

from minit.base.errors import ImageError
from minit.base.value import Value

MAGIC = b"\x7fELF"

_CLASS_64 = 2
_BYTE_ORDERS = {1: "<", 2: ">"}
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 0, 1, 5, 10, 14, 15, 29


class ElfFile(Value):
    """The loader's view of one ELF file; search paths are as written, `$ORIGIN` not replaced."""

    machine: tuple[int, int, str]
    """Word size class, EM_ number and byte order: only files of one machine can be loaded together."""
    interpreter: str | None = None
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()


class _Segment(Value):
    kind: int
    offset: int
    address: int
    size: int


def read_elf(path: Path) -> ElfFile:
    """Read an ELF file; ImageError if it is not one, or a broken one."""
    return parse_elf(path.read_bytes(), str(path))


def is_elf(path: Path) -> bool:
    """Tell whether a file begins as an ELF file does."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def parse_elf(data: bytes, source: str) -> ElfFile:
    """Parse the bytes of an ELF file; `source` names it in the ImageError of a broken one."""
    if not data.startswith(MAGIC):
        raise ImageError(f"{source}: not an ELF file")
    try:
        return _parse(data)
    except (struct.error, IndexError, KeyError, ValueError, OverflowError) as error:
        raise ImageError(f"{source}: broken ELF file: a header points outside the file") from error


def _parse(data: bytes) -> ElfFile:
    word_class, order = data[4], _BYTE_ORDERS[data[5]]
    wide = word_class == _CLASS_64
    (elf_machine,) = struct.unpack_from(f"{order}H", data, 18)
    machine = (word_class, elf_machine, order)
    segments = _segments(data, order, wide)

    interpreter = None
    dynamic: list[tuple[int, int]] = []
    for segment in segments:
        if segment.kind == _PT_INTERP:
            interpreter = _string(data, segment.offset, segment.offset + segment.size)
        elif segment.kind == _PT_DYNAMIC:
            dynamic = _dynamic_entries(data, order, wide, segment)

    values = dict(reversed(dynamic))
    if _DT_STRTAB not in values:
        return ElfFile(machine=machine, interpreter=interpreter)
    table = _file_offset(segments, values[_DT_STRTAB])
    table_end = table + values[_DT_STRSZ]

    def text(tag: int) -> str | None:
        return _string(data, table + values[tag], table_end) if tag in values else None

    def search_path(tag: int) -> tuple[str, ...]:
        return tuple(part for part in (text(tag) or "").split(":") if part)

    return ElfFile(
        machine=machine,
        interpreter=interpreter,
        soname=text(_DT_SONAME),
        needed=tuple(_string(data, table + value, table_end) for tag, value in dynamic if tag == _DT_NEEDED),
        rpath=search_path(_DT_RPATH),
        runpath=search_path(_DT_RUNPATH),
    )


def _segments(data: bytes, order: str, wide: bool) -> list[_Segment]:
    table_format, table_at, count_at = ("Q", 32, 54) if wide else ("I", 28, 42)
    (table,) = struct.unpack_from(order + table_format, data, table_at)
    entry_size, count = struct.unpack_from(f"{order}HH", data, count_at)
    segments = []
    for at in range(table, table + entry_size * count, entry_size or 1):
        if wide:
            kind, _flags, offset, address, _physical, size = struct.unpack_from(f"{order}IIQQQQ", data, at)
        else:
            kind, offset, address, _physical, size = struct.unpack_from(f"{order}IIIII", data, at)
        segments.append(_Segment(kind=kind, offset=offset, address=address, size=size))
    return segments


def _dynamic_entries(data: bytes, order: str, wide: bool, segment: _Segment) -> list[tuple[int, int]]:
    entry = struct.Struct(order + ("qQ" if wide else "iI"))
    entries = []
    for at in range(segment.offset, segment.offset + segment.size, entry.size):
        tag, value = entry.unpack_from(data, at)
        if tag == _DT_NULL:
            break
        entries.append((tag, value))
    return entries


def _file_offset(segments: list[_Segment], address: int) -> int:
    for segment in segments:
        if segment.kind == _PT_LOAD and segment.address <= address < segment.address + segment.size:
            return address - segment.address + segment.offset
    raise ValueError("address is in no segment")


def _string(data: bytes, start: int, limit: int) -> str:
    return data[start : data.index(b"\0", start, limit)].decode()
