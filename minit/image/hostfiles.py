"""
Collects programs of this machine with all they need to run in a root of their own.

Nothing collected is executed: the needs of a program are read from its `#!` line or its ELF headers. Files that it
opens by itself while it runs (plug-ins, data) are not known, except for a Python interpreter's standard library.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from minit.base.errors import ImageError, reason_of
from minit.image.contents import Contents, Copy, Directory, Symlink
from minit.image.elf import is_elf
from minit.image.libraries import LibrarySearch

# The PATH of an app: what `env` in a `#!` line will search.
_APP_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_PYTHON = re.compile(r"python3\.\d+t?")
_PYTHON_DIRECTORIES_LEFT_OUT = (
    *("test", "idlelib", "turtledemo", "tkinter", "ensurepip", "__pycache__"),
    *("site-packages", "dist-packages"),  # not the standard library's
    "config-",  # to build an interpreter from
)
_PYTHON_EXTENSIONS_LEFT_OUT = ("_tkinter.", "_test", "_xxtest", "xxlimited")

# glibc loads this by name when a thread is ended early, and aborts the program if it is not there.
_THREAD_EXIT_LIBRARY = "libgcc_s.so.1"
_THREAD_EXIT_CALLS = (b"pthread_exit", b"pthread_cancel")


class HostFiles:
    """Adds files of this machine to an image, at the paths they have here, where the image has nothing yet."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._search = LibrarySearch()
        self._programs: set[Path] = set()

    def add_program(self, path: Path) -> None:
        """Add a program, or a script with its interpreter; ImageError says what is missing or no program."""
        path = path.absolute()
        if path in self._programs:
            return
        self._programs.add(path)
        try:
            real_path = self._add_file(path)
            if is_elf(real_path):
                self._add_elf_program(real_path)
            else:
                for program in _script_programs(path):
                    self.add_program(program)
        except OSError as error:
            raise ImageError(f"cannot take {path} from this machine: {reason_of(error.errno or 0)}") from error

    def _add_elf_program(self, path: Path) -> None:
        interpreter = self._search.elf(path).interpreter
        loader = path if interpreter is None else self._add_file(Path(interpreter))
        self._add_libraries(path, loader.parent)
        if _PYTHON.fullmatch(path.name):
            self._add_standard_library(path, loader.parent)

    def _add_libraries(self, user: Path, loader_directory: Path) -> None:
        libraries = self._search.closure([user])
        if any(_ends_threads(path) for path in (user, *(library.path for library in libraries))):
            extra = self._search.find(_THREAD_EXIT_LIBRARY, user)
            libraries += [] if extra is None else [extra]
        for library in libraries:
            self._add_file(library.path)
            if library.configured:
                # The image has no /etc/ld.so.cache; the loader's own directory is always searched.
                link = PurePosixPath(loader_directory, library.name)
                self._contents.add(link, Symlink(target=str(library.path)))

    def _add_standard_library(self, interpreter: Path, loader_directory: Path) -> None:
        for path in _standard_library_files(interpreter):
            if path.suffix == ".so":
                try:
                    self._add_libraries(path, loader_directory)
                except ImageError:
                    continue  # an optional module whose library is not here either
            self._add_file(path)

    def _add_file(self, path: Path) -> Path:
        """Add a regular file with the directories and symlinks on its path; return where it really is."""
        real_path = Path(os.path.realpath(path, strict=True))
        mode = real_path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise ImageError(f"cannot take {path} from this machine: not a regular file")
        done, pending = Path("/"), list(reversed(path.parts[1:]))
        while pending:
            part = pending.pop()
            here = done.parent if part == ".." else done / part
            if here.is_symlink():
                target = here.readlink()
                self._contents.add(PurePosixPath(here), Symlink(target=str(target)))
                pending += reversed(target.parts[1:] if target.is_absolute() else target.parts)
                done = Path("/") if target.is_absolute() else done
            else:
                done = here
                if done != real_path:
                    self._contents.add(PurePosixPath(done), Directory())
        self._contents.add(PurePosixPath(real_path), Copy(source=real_path, mode=stat.S_IMODE(mode)))
        if PurePosixPath(path) not in self._contents:
            # The image has a directory of its own where this machine has a symlink: /bin, /lib64.
            self._contents.add(PurePosixPath(path), Symlink(target=str(real_path)))
        return real_path


def _ends_threads(path: Path) -> bool:
    if path.name.startswith(("libc.", "libpthread.")):
        return False  # it is where the functions are
    data = path.read_bytes()
    return any(call in data for call in _THREAD_EXIT_CALLS)


def _script_programs(path: Path) -> Iterator[Path]:
    """Yield the interpreter of a script, and what `env` runs if it is that."""
    with path.open("rb") as file:
        line = file.readline(256)  # the kernel reads no more
    words = os.fsdecode(line[2:]).split()
    if not line.startswith(b"#!") or not words:
        raise ImageError(f"cannot take {path} from this machine: neither an ELF file nor a #! script")
    yield Path(words[0])
    if Path(words[0]).name == "env":
        command = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        found = shutil.which(command[0], path=_APP_PATH) if command else None
        if found is None:
            raise ImageError(f"cannot take {path} from this machine: its program is not in {_APP_PATH}: {line!r}")
        yield Path(found)


def _standard_library_files(interpreter: Path) -> Iterator[Path]:
    candidates = [interpreter.parent.parent / lib / interpreter.name for lib in ("lib64", "lib")]
    directories = [directory for directory in candidates if (directory / "os.py").exists()]
    if not directories:
        raise ImageError(f"no standard library of {interpreter} in {candidates[-1]}: install it")
    for parent, names, files in os.walk(directories[0]):
        names[:] = sorted(name for name in names if not name.startswith(_PYTHON_DIRECTORIES_LEFT_OUT))
        for name in sorted(files):
            path = Path(parent, name)
            if not name.startswith(_PYTHON_EXTENSIONS_LEFT_OUT) and path.is_file():
                yield path
