"""
The libraries of a program as the dynamic loader would find them, without running the loader or the program.

The rules of ld.so(8). Directories of `/etc/ld.so.conf` are read in the place of the cache made from them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from glob import glob
from pathlib import Path

from minit.base.errors import ImageError
from minit.base.value import Value
from minit.image.elf import ElfFile, is_elf, read_elf

LD_SO_CONF = Path("/etc/ld.so.conf")

_DEFAULT_DIRECTORIES = tuple(Path(path) for path in ("/lib64", "/usr/lib64", "/lib", "/usr/lib"))


class Library(Value):
    """A library as a program needs it: by this name, found at this path."""

    name: str
    path: Path
    configured: bool
    """Found only thanks to `/etc/ld.so.conf`: a loader that has no cache made from it would not find it."""


class LibrarySearch:
    """Finds libraries on this machine and remembers what it read."""

    def __init__(self) -> None:
        self._files: dict[Path, ElfFile] = {}
        configuration: list[Path] = []
        self._configured = tuple(Path(directory) for directory in _configured_directories(LD_SO_CONF, configuration))
        self.sources = [*configuration, *self._configured, *_DEFAULT_DIRECTORIES]
        """The files and directories that decide where a library is, but for those that its user names."""

    def elf(self, path: Path) -> ElfFile:
        """Return the loader's view of a file."""
        if path not in self._files:
            self._files[path] = read_elf(path)
        return self._files[path]

    def closure(self, programs: Iterable[Path]) -> list[Library]:
        """
        Return every library that `programs` and their libraries need, each name once.

        The interpreter of a program is not in it, unless a library needs it by name. ImageError names the
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
        """Return the library that `user` would get if it loaded `name`."""
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
    # Debian's loader has its multiarch directories built in, and its ld.so.conf.d repeats them.
    return directory in _DEFAULT_DIRECTORIES or (
        directory.parent in _DEFAULT_DIRECTORIES and directory.name.endswith("-linux-gnu")
    )


def _configured_directories(path: Path, configuration: list[Path]) -> Iterator[str]:
    """Yield the directories in order, and note the files, and the directories of files, that say so."""
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
