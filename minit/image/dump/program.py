"""
Builds a program that starts with imported modules, from the static library of the running interpreter.

    libpython.a     the library, calling arena.c and objects.c instead of malloc(3), mmap(2) and dlopen(3)
    symbols.s       the program's symbols for extension modules and libraries
    dumper          the interpreter that imports the modules and writes itself

Written memory of a program lies together, so that processes copy fewer pages: CPython counts references to a used
object, and so writes to the object. Used objects would lie anywhere among unused objects, and each use would copy a
page. profile.c finds the memory that a program writes to, noting.py tells likely addresses, and the next dumper puts
the blocks together: those of a sidecar at one place, since a pod has a sidecar for each app, all others at the next.
"""

from __future__ import annotations

import filecmp
import platform
import struct
import subprocess
import sys
import sysconfig
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from minit.base.errors import ImageError
from minit.base.value import Value
from minit.image.toolchain import read_tool, run_tool

_PARTS = Path(__file__).parent
_SOURCES = (
    *("arena.c", "crash.c", "guard.c", "immortal.c", "main.c", "objects.c", "plain.c", "profile.c"),
    *("restore.c", "sha2.c", "sources.c", "syscalls.c", "write.c"),
)
_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fno-pie")
_LINK_FLAGS = (
    *("-static", "-no-pie", "-s", "-Wl,--build-id=none", "-Wl,-z,noexecstack", "-Wl,--no-warn-mismatch"),
    "-Wl,--entry=start_guarded",
)
_VERSIONS = ((3, 11), (3, 12), (3, 13))
"""The versions whose internal names main.c and restore.c know."""

_DUMPER, _OBJECTS = "dumper", "libraries"

_OWN_FUNCTIONS = {
    **{name: f"arena_{name}" for name in ("malloc", "calloc", "realloc", "free", "mmap", "mmap64", "munmap")},
    **{name: f"object_{name}" for name in ("dlopen", "dlsym", "dlclose", "dlerror")},
    **{f"{name}64": f"plain_{name}" for name in ("readdir", "stat", "lstat", "fstat", "fstatat")},
    "clock_gettime": "plain_clock_gettime",
}
"""Functions for CPython and modules in the place of the C library's functions."""

_OWN_SYMBOLS = {
    **_OWN_FUNCTIONS,
    "__tls_get_addr": "thread_variable_address",
    **dict.fromkeys(("getauxval", "__getauxval"), "processor_value"),
}
"""Functions for loaded objects; CPython itself is linked, and does not call the last ones."""

LINKED_IN = ("ld-linux", "libc.", "libdl.", "libm.", "libpthread.", "libpython", "librt.", "libutil.")
"""Prefixes of the names of shared libraries that are linked into the program statically."""


_MISSING, _IN_SHA2 = "python_hashlib_Hacl_", "python_hashlib_Hacl_Hash_SHA2_"
"""Prefixes of the names of functions that a static library may call and lack, and of functions in sha2.c."""

REPLACED = "minit.linux.ctypescalls"
"""The module in whose place a dump has _syscalls."""

ARENA_ADDRESS = 0x10000000
"""The address in layout.ld."""

_GRANULE_BYTES = 16
_MAX_BYTES = 1024
"""A larger block has separate pages in any case."""


class Recipe(Value):
    """
    A program that has run prepare.py with `arguments` in a `directory`, see main.c.

    `seed` is the seed of the hashes of strings, `modules` the search path of imports, `scratch` the directory of
    `link_dumper`.
    """

    seed: int
    modules: str
    arguments: tuple[str, ...]
    scratch: Path
    directory: Path = Path("/")


def obstacle() -> str | None:
    """Return the reason why this interpreter cannot be dumped on this machine, or None."""
    if sys.version_info[:2] not in _VERSIONS:
        return f"Python {sys.version_info[0]}.{sys.version_info[1]} is too new for it"
    for path in needed_files():
        if not path.exists():
            return f"there is no {path} (Debian: apt install libpython3-dev)"
    return None


def needed_files() -> list[Path]:
    """Return the files of the interpreter, with a header, that a dump needs."""
    return [static_library(), Path(sysconfig.get_path("include"), "internal/pycore_runtime.h")]


def static_library() -> Path:
    """Return the path of the interpreter's static library, there or not."""
    return Path(sysconfig.get_config_var("LIBPL") or "/", sysconfig.get_config_var("LIBRARY") or "libpython.a")


def build_dump(output: Path, recipe: Recipe, names: Sequence[str], objects: Iterable[Path]) -> None:
    """
    Write a program to `output` that has imported `names` and goes on from there; ImageError for a broken program.

    `objects` are the files of extension modules, of libraries that modules load by name, and of all dependencies.
    The empty directory `recipe.scratch` is full of files afterwards. Equal input gives equal output.
    """
    scratch = recipe.scratch
    link_dumper(objects, scratch)
    profile, first = scratch / "profile", scratch / "first"
    profile.mkdir()
    write_dump(recipe, first, profile)
    noting, features = ((_PARTS / name).read_text() for name in ("noting.py", "features.py"))
    noted = _run([first, "-c", noting, features, *names], scratch)
    choose_blocks_at(profile, [[int(address) for address in line.split()] for line in noted.splitlines()])
    for path in (output, scratch / "again"):
        write_dump(recipe, path, profile)
    if not filecmp.cmp(output, scratch / "again", shallow=False):
        raise ImageError("the interpreter cannot be dumped: two dumps of it differ")
    _run([output, "-c", features, *names], Path("/"))


def link_dumper(objects: Iterable[Path], scratch: Path) -> None:
    """Make the program that `write_dump` runs, which can load `objects`, in the empty directory `scratch`."""
    objects = sorted(objects)
    _link(scratch / _DUMPER, objects, scratch)
    (scratch / _OBJECTS).mkdir()
    for path in objects:
        (scratch / _OBJECTS / path.name).symlink_to(path.resolve())


def write_dump(recipe: Recipe, output: Path, profile: Path | None = None) -> None:
    """Write a program; a profile of the program's writes decides the layout of the memory."""
    scratch = recipe.scratch
    text = (_PARTS / "prepare.py").read_text()
    _run(
        [
            *(scratch / _DUMPER, output, recipe.seed, scratch / _OBJECTS, recipe.modules, profile or ""),
            *(text, *recipe.arguments),
        ],
        recipe.directory,
        # The module time keeps the zone in variables.
        TZ="UTC0",
    )


def make_profile(recipe: Recipe, train: Callable[[Path], object]) -> Path | None:
    """Return a profile of the writes of a program that `train` runs; None where writes cannot be traced."""
    if not can_trace():
        return None
    profile, traced = recipe.scratch / "profile", recipe.scratch / "traced"
    profile.mkdir()
    (profile / "written").touch()
    write_dump(recipe, traced, profile)
    train(traced)
    return profile if choose_hot_blocks(profile) else None


def can_trace() -> bool:
    """Tell whether writes can be traced on this processor."""
    return platform.machine() == "x86_64"


def choose_hot_blocks(profile: Path) -> bool:
    """
    Turn the profile that a dumper and the dumped program have left in a directory into the file for the next dumper.

    False if the program has noted no writes.
    """
    numbers = array("I", (profile / "numbers").read_bytes())
    try:
        written = (profile / "written").read_bytes()
    except FileNotFoundError:
        return False
    hot = {number for number, is_written in zip(numbers, written, strict=True) if is_written and number}
    granules = Counter(number for number in numbers if number in hot)
    hot = {number for number in hot if granules[number] * _GRANULE_BYTES <= _MAX_BYTES}
    if hot:
        size_bytes = sum(granules[number] for number in hot) * _GRANULE_BYTES
        _write_hot_blocks(profile, dict.fromkeys(hot, 1), [size_bytes, 0])
    return bool(hot)


def choose_blocks_at(profile: Path, addresses: Sequence[Sequence[int]]) -> None:
    """Write the file for the next dumper: the last addresses are for the second place, all before for the first."""
    numbers = array("I", (profile / "numbers").read_bytes())
    hot: dict[int, int] = {}
    for at, group in enumerate(addresses, 1):
        place = 2 if at == len(addresses) else 1
        granules = ((address - ARENA_ADDRESS) // _GRANULE_BYTES for address in group)
        for number in (numbers[granule] for granule in granules if 0 <= granule < len(numbers)):
            hot.setdefault(number, place)
    hot.pop(0, None)
    counts = Counter(hot.get(number) for number in numbers)
    # With room for freed blocks, which are counted only by the granules that no later block took.
    _write_hot_blocks(profile, hot, [counts[place] * _GRANULE_BYTES * 5 // 4 for place in (1, 2)])


def _write_hot_blocks(profile: Path, hot: Mapping[int, int], sizes_bytes: Sequence[int]) -> None:
    """Write the file `hot`: the sizes of both places, and the place for each block, 0 for none."""
    table = bytearray(max(hot, default=0))
    for number, place in hot.items():
        table[number - 1] = place
    (profile / "hot").write_bytes(struct.pack("NN", *sizes_bytes) + table)


def _link(dumper: Path, objects: Sequence[Path], scratch: Path) -> None:
    archive, symbols = scratch / "libpython.a", scratch / "symbols.s"
    redefinitions = [f"--redefine-sym={name}={own}" for name, own in _OWN_FUNCTIONS.items()]
    run_tool("objcopy", "--strip-debug", *redefinitions, str(static_library()), str(archive))
    symbols.write_text(_symbols(objects))
    missing = [f"-Wl,--defsym={name}=missing_function" for name in _missing_functions(archive)]
    includes = [f"-I{sysconfig.get_path(name)}" for name in ("include", "platinclude")]
    wanted = " ".join(str(sysconfig.get_config_var(name) or "") for name in ("MODLIBS", "LIBS", "SYSLIBS"))
    libraries = dict.fromkeys(flag for flag in wanted.split() if flag.startswith("-l"))
    run_tool(
        *("cc", *_FLAGS, *_LINK_FLAGS, *includes, "-o", str(dumper)),
        *(str(_PARTS / name) for name in _SOURCES),
        *(str(symbols), "-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive"),
        *(*missing, *libraries, "-lm", f"-Wl,-T,{_PARTS / 'layout.ld'}"),
    )


def _symbols(objects: Sequence[Path]) -> str:
    """Return the assembler text of the table of the program's symbols for objects."""
    names = sorted(_names(objects, "--undefined-only", weak=False) - _names(objects, "--defined-only", weak=True))
    return "".join(
        [
            ".section .rodata\n.balign 8\n.globl program_symbols\nprogram_symbols:\n",
            *(f".quad name{at}, {_OWN_SYMBOLS.get(name, name)}\n" for at, name in enumerate(names)),
            ".quad 0, 0\n",
            *(f'name{at}: .asciz "{name}"\n' for at, name in enumerate(names)),
            '.section .note.GNU-stack,"",%progbits\n',
        ]
    )


def _missing_functions(archive: Path) -> list[str]:
    lines = [line.split() for line in read_tool("nm", "-P", "-g", str(archive)).splitlines()]
    called = {words[0] for words in lines if words[0].startswith(_MISSING) and words[1] == "U"}
    return sorted(name for name in called - {words[0] for words in lines if len(words) > 2} if _IN_SHA2 not in name)


def _names(objects: Sequence[Path], which: str, *, weak: bool) -> set[str]:
    lines = (line.split() for line in read_tool("nm", "-D", "-P", which, *map(str, objects)).splitlines())
    # NAME KIND [VALUE SIZE]; a small w or v is weak and undefined. A line with a file name ends in a colon.
    return {words[0].partition("@")[0] for words in lines if len(words) > 1 and (weak or words[1] == "U")}


def _run(command: Sequence[object], directory: Path, **environment: str) -> bytes:
    """Return the output of a command with this environment."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=directory,
        env=environment,
        # Pipes: the abilities of a stream are found out once, when the stream is made.
        input=b"",
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = " ".join(lines[-20:]) if lines else f"exit status {done.returncode}"
        raise ImageError(f"the interpreter cannot be dumped: {reason}")
    return done.stdout
