"""
Copies the running Python interpreter so that the copy works at any path, also after a rename of that path.

    ld.so       the dynamic loader, run by its path: the kernel would look for one at a path of the host
    bin/        the interpreter
    lib/        the shared libraries, and python3.X/ with the modules
    seccomp/    the filters that apps get by default, compiled by the copy

Where the copy can be dumped, all but the filters is one program, bin/minit. `require_all` names everything that the
build needs and the machine lacks, with the command that installs it, before a build begins.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from minit.base.errors import ImageError, describe
from minit.image.dump.program import LINKED_IN, REPLACED, Recipe, build_dump, static_library
from minit.image.libraries import LibrarySearch
from minit.image.pythonmodules import Module, compile_modules, landmark
from minit.image.toolchain import DEBIAN_PACKAGES, find_tool, run_tool

LOADED_LIBRARIES = {"libudev.so.1": "libudev1"}
"""The library that pyudev loads by name, with the package of Debian."""

_PROGRAMS = ("cc", "strip", "nm", "objcopy", "patchelf")
_HEADER = "stdlib.h"

_LOADER = Path("ld.so")
_PROGRAM = Path("bin/python3")
_DUMP = Path("bin/minit")
_LIBRARIES = Path("lib")
_MODULES = Path(sys.platlibdir, Path(os.__file__).parent.name)
_EXTENSIONS = _MODULES / "lib-dynload"
_FILTERS = Path("seccomp")

_IMPORT_ALL = """\
import sys
for name in sys.argv[1:]:
    __import__(name)
import pyudev
pyudev.Context()
"""
_WRITE_FILTERS = """\
import sys
from minit.launcher.start.filterprograms import write_default_filters
write_default_filters(sys.argv[1])
"""
_PRINT_FILES = """\
with open("/proc/self/maps") as file:
    mapped = {line.split(maxsplit=5)[5].strip() for line in file if "/" in line}
# libffi has memory by that name.
print(*(name for name in mapped if not name.startswith("/memfd:")), sep="\\n")
"""


def loaded_libraries() -> dict[str, Path]:
    """Return the libraries that are loaded by name only; ImageError as `require_all`."""
    libraries = _find_libraries()
    if len(libraries) != len(LOADED_LIBRARIES):
        require_all()
    return libraries


def require_all() -> None:
    """Raise ImageError if the machine lacks anything for building the image."""
    missing = {name: DEBIAN_PACKAGES[name] for name in _PROGRAMS if find_tool(name) is None}
    if not _has_header():
        missing[_HEADER] = "libc6-dev"
    present = _find_libraries()
    missing |= {name: package for name, package in LOADED_LIBRARIES.items() if name not in present}
    if not missing:
        return
    packages = list(dict.fromkeys(" ".join(missing.values()).split()))
    # Not needed, but pods start faster with a dump, and the next message would ask for the library.
    if sys.base_prefix == "/usr" and not static_library().exists():
        packages.append("libpython3-dev")
    raise ImageError(
        f"the stage1 image has to be built, for which this machine lacks {', '.join(missing)}: "
        f"install them (Debian: apt install {' '.join(packages)})"
    )


def _has_header() -> bool:
    compiler = find_tool("cc")
    if compiler is None:
        return False
    command = [compiler, "-fsyntax-only", "-x", "c", "-"]
    done = subprocess.run(command, input=f"#include <{_HEADER}>\n".encode(), capture_output=True, check=False)
    return done.returncode == 0


def _find_libraries() -> dict[str, Path]:
    search = LibrarySearch()
    found = {name: search.find(name, Path(sys.executable).resolve()) for name in LOADED_LIBRARIES}
    return {name: library.path.resolve() for name, library in found.items() if library is not None}


def copy_interpreter(directory: Path, modules: Sequence[Module]) -> None:
    """Make the copy in the new directory `directory`, with `modules` and every required shared library."""
    search = LibrarySearch()
    interpreter = Path(sys.executable).resolve()
    extensions = [module for module in modules if module.is_extension]
    loader = search.elf(interpreter).interpreter
    if loader is None:
        raise ImageError(f"{interpreter} is a static program: use another Python")

    objects = {_PROGRAM: interpreter}
    objects |= {_extension_path(extension): extension.source for extension in extensions}
    objects |= {_LIBRARIES / name: path for name, path in loaded_libraries().items()}
    libraries = search.closure(objects.values())
    # The running loader serves a library that needs the loader by name.
    loader_name = search.elf(Path(loader)).soname
    objects |= {_LIBRARIES / library.name: library.path for library in libraries if library.name != loader_name}

    directory.mkdir(parents=True)
    _copy_loader(Path(loader), directory / _LOADER)
    for place, source in sorted(objects.items()):
        _make_parents(directory, place)
        _copy_object(source, directory / place)
        if any(_LIBRARIES / name in objects for name in search.elf(source).needed):
            _set_search_path(directory / place, directory / _LIBRARIES)
    (directory / _EXTENSIONS).mkdir(parents=True, exist_ok=True)  # one of the two landmarks of getpath

    sources = [landmark(), *(module for module in modules if not module.is_extension)]
    for module in sources:
        _make_parents(directory, _MODULES / module.bytecode_name)
    compile_modules(sources, directory / _MODULES)


def dump_interpreter(copy: Path, directory: Path, modules: Sequence[Module], seed: int, scratch: Path) -> None:
    """
    Make one program of a copy, in the new directory `directory`; ImageError if the program cannot be made.

    Files are left behind in the empty directory `scratch`. `seed` is the seed of the hashes of strings.
    """
    search = LibrarySearch()
    objects = {copy / _extension_path(module) for module in modules if module.is_extension}
    pending = [*objects, *(copy / _LIBRARIES / name for name in LOADED_LIBRARIES)]
    while pending:
        path = pending.pop()
        objects.add(path)
        pending += [copy / _LIBRARIES / name for name in search.elf(path).needed if not name.startswith(LINKED_IN)]
    (directory / _DUMP).parent.mkdir(parents=True)
    # First the modules that run a pod: the objects lie together, so that a start reads and writes fewer pages.
    names = ["entrypoints.run", *(module.name for module in modules if module.name != REPLACED)]
    recipe = Recipe(
        seed=seed,
        modules="/proc/self/cwd",  # no path of this machine
        arguments=("", *names, *LOADED_LIBRARIES),
        scratch=scratch,
        directory=copy / _MODULES,
    )
    build_dump(directory / _DUMP, recipe, names, objects)


def check_interpreter(directory: Path, names: Iterable[str]) -> None:
    """Import modules with only the copy in `directory`; ImageError for an insufficient copy."""
    _try_interpreter(directory, _IMPORT_ALL, *names)


def compile_filters(directory: Path) -> None:
    """Compile the filters that apps get by default, with only the copy in `directory`."""
    _try_interpreter(directory, _WRITE_FILTERS, str(directory / _FILTERS))


def _try_interpreter(directory: Path, code: str, *arguments: str) -> None:
    loader, program, dump = (str(directory / place) for place in (_LOADER, _PROGRAM, _DUMP))
    start = [loader, "--inhibit-cache", "--argv0", program, program, "-I", "-S", "-B", "-X", "utf8"]
    command = [*([dump] if os.path.exists(dump) else start), "-c", code + _PRINT_FILES, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env={"LC_ALL": "C"}, check=False)
    except PermissionError as error:
        raise ImageError(f"{describe(error)} (is TMPDIR mounted noexec? name another)") from error
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ImageError(f"its interpreter does not work: {reason}")
    for path in done.stdout.splitlines():
        if not path.startswith(f"{directory}/"):
            raise ImageError(f"its interpreter uses {path} of this machine")


def _copy_loader(source: Path, copy: Path) -> None:
    # Libraries in /etc/ld.so.preload of a host are built for the host's C library. No file has an empty path.
    copy.write_bytes(source.read_bytes().replace(b"/etc/ld.so.preload", bytes(len("/etc/ld.so.preload"))))
    copy.chmod(0o755)


def _copy_object(source: Path, copy: Path) -> None:
    shutil.copyfile(source, copy)
    copy.chmod(0o755)
    # Symbols and debugging information are two thirds of a Python built from source.
    run_tool("strip", "--strip-unneeded", str(copy))


def _set_search_path(path: Path, libraries: Path) -> None:
    # Every object needs a path relative to the object: the loader remembers the program's directory by the name before
    # pivot_root. DT_RPATH rather than DT_RUNPATH, which comes after LD_LIBRARY_PATH.
    to_libraries = os.path.relpath(libraries, path.parent)
    run_tool("patchelf", "--force-rpath", "--set-rpath", f"$ORIGIN/{to_libraries}", str(path))


def _extension_path(module: Module) -> Path:
    parent = module.name.rpartition(".")[0]
    return (_MODULES / parent.replace(".", "/") if parent else _EXTENSIONS) / module.source.name


def _make_parents(directory: Path, place: Path) -> None:
    (directory / place).parent.mkdir(parents=True, exist_ok=True)
