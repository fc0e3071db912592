"""
The libraries of a program as the dynamic loader would find them, without running the loader or the program.

The rules are those of ld.so(8), of ELF files the fields that a loader reads first (System V ABI, chapters 4 and 5).
Directories of `/etc/ld.so.conf` are read in the place of the cache made from them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from glob import glob
from pathlib import Path

from minit.base.errors import ImageError
from minit.base.value import Value

MAGIC = b"\x7fELF"

_CLASS_64 = 2
_BYTE_ORDERS = {1: "<", 2: ">"}
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 0, 1, 5, 10, 14, 15, 29

LD_SO_CONF = Path("/etc/ld.so.conf")

_DEFAULT_DIRECTORIES = tuple(Path(path) for path in ("/lib64", "/usr/lib64", "/lib", "/usr/lib"))


class ElfFile(Value):
    """The loader's view of one ELF file; search paths have `$ORIGIN` unreplaced."""

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
    """Read an ELF file; ImageError for another or a broken file."""
    return parse_elf(path.read_bytes(), str(path))


def is_elf(path: Path) -> bool:
    """Tell whether a file begins as an ELF file does."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def parse_elf(data: bytes, source: str) -> ElfFile:
    """Parse the bytes of an ELF file; ImageError, with `source`, for a broken file."""
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


class Library(Value):
    """A library that a program needs: by name, found at a path."""

    name: str
    path: Path
    configured: bool
    """True if `/etc/ld.so.conf` has the directory: a loader without the cache would not find the library."""


class LibrarySearch:
    """Finds libraries on this machine and remembers the files that were read."""

    def __init__(self) -> None:
        self._files: dict[Path, ElfFile] = {}
        configuration: list[Path] = []
        self._configured = tuple(Path(directory) for directory in _configured_directories(LD_SO_CONF, configuration))
        self.sources = [*configuration, *self._configured, *_DEFAULT_DIRECTORIES]
        """The files and directories that decide where a library is, without the search paths of users."""

    def elf(self, path: Path) -> ElfFile:
        """Return the loader's view of a file."""
        if path not in self._files:
            self._files[path] = read_elf(path)
        return self._files[path]

    def closure(self, programs: Iterable[Path]) -> list[Library]:
        """
        Return every library that `programs` and libraries need, each name once.

        The interpreter of a program is left out, unless a library needs the interpreter by name. ImageError about the
        first library that is not on this machine.
        """
        found: dict[str, Library] = {}
        pending: list[tuple[Path, ElfFile, tuple[Path, ...]]] = [
            (program, self.elf(program), ()) for program in programs
        ]
        while pending:
            path, elf, inherited = pending.pop(0)
            # DT_RPATH, unlike DT_RUNPATH, also holds for the libraries of a library.
            own = () if elf.runpath else _expand(elf.rpath, path)
            for name in elf.needed:
                if name in found:
                    continue
                library = self._find(name, path, elf, own + inherited)
                if library is None:
                    raise ImageError(f"{path} needs {name}, which is not on this machine: install it")
                found[name] = library
                pending.append((library.path, self.elf(library.path), own + inherited))
        return list(found.values())

    def find(self, name: str, user: Path) -> Library | None:
        """Return the library that `user` would load as `name`."""
        elf = self.elf(user)
        return self._find(name, user, elf, _expand(elf.rpath, user))

    def _find(self, name: str, user: Path, elf: ElfFile, rpath: tuple[Path, ...]) -> Library | None:
        if "/" in name:
            return Library(name=name, path=Path(name), configured=False)
        for directory in (*(() if elf.runpath else rpath), *_expand(elf.runpath, user)):
            if self._fits(directory / name, elf):
                return Library(name=name, path=directory / name, configured=False)
        for directory in (*self._configured, *_DEFAULT_DIRECTORIES):
            if self._fits(directory / name, elf):
                return Library(name=name, path=directory / name, configured=not _is_default(directory))
        return None

    def _fits(self, path: Path, user: ElfFile) -> bool:
        return path.is_file() and is_elf(path) and self.elf(path).machine == user.machine


def _expand(search_path: tuple[str, ...], user: Path) -> tuple[Path, ...]:
    origin = str(user.resolve().parent)
    return tuple(Path(part.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)) for part in search_path)


def _is_default(directory: Path) -> bool:
    # Debian's loader has the multiarch directories built in, and ld.so.conf.d repeats them.
    return directory in _DEFAULT_DIRECTORIES or (
        directory.parent in _DEFAULT_DIRECTORIES and directory.name.endswith("-linux-gnu")
    )


def _configured_directories(path: Path, configuration: list[Path]) -> Iterator[str]:
    """Yield the directories in order, and add the files, and the directories of files, to `configuration`."""
    configuration.append(path)
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        words = line.partition("#")[0].split()
        if words[:1] == ["include"]:
            for pattern in (os.path.join(path.parent, word) for word in words[1:]):
                configuration.append(Path(pattern).parent)
                for included in sorted(glob(pattern)):
                    yield from _configured_directories(Path(included), configuration)
        else:
            yield from words
