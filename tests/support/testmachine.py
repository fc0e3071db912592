"""
Tests of this project on another kernel than the one that runs them: pytest is a program of a machine in qemu.

The machine has an interpreter with its standard library, the packages that such tests import, the programs that they
call, and the project; of `tests/conftest.py` it has nothing. It has no disk and no network.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from minit.base.errors import ImageError
from minit.image.cpio import write_cpio
from minit.image.kernelmodules import collect_modules
from minit.image.libraries import LibrarySearch
from minit.image.pythonmodules import PACKAGES
from tests.support.bootmachine import QemuMachine
from tests.support.machine import Kernel
from tests.support.pods import BUSYBOX
from tests.support.stage0_world import REPOSITORY

_MEMORY_MIB = 640  # the initial file system is there twice while it is unpacked
_PROGRAMS = ("ip", "bridge", "nft", "nsenter")
_PACKAGES = (*PACKAGES, "pytest", "_pytest", "iniconfig", "packaging", "pluggy", "py.py", "pygments")
_PROJECT = ("minit", "tests")
# Of the standard library: what is large and not imported, and the packages of others.
_LEFT_OUT = ("test", "idlelib", "lib2to3", "tkinter", "turtledemo", "ensurepip", "config-*", "*-packages")
_PYTEST = ["-m", "pytest", "-v", "-rs", "--tb=short", "--color=no", "--no-header", "--noconftest"]
_PYTEST += ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir=."]
_END = "the tests have ended with "
# The firmware has left the terminal in the middle of a line.
_INIT = """#!/bin/sh
export PATH=/bin PYTHONPATH=/project LD_LIBRARY_PATH=/libraries
for place in proc/proc sysfs/sys devtmpfs/dev tmpfs/tmp tmpfs/run; do
    busybox mount -t ${place%%/*} none /${place#*/}
done
echo
while read module; do busybox insmod /modules/$module.ko || echo no module $module; done < /modules/order
busybox ip link set lo up
cd /project
PYTEST
echo "ENDED$?"
busybox poweroff -f
"""


def run_tests(kernel: Kernel, directory: Path, modules: Sequence[str], tests: Sequence[str]) -> list[str]:
    """
    Boot a machine that has kernel modules, and return what pytest says there of tests, which are its arguments.

    AssertionError if any of them fails. The directory is for the machine's files.
    """
    root = directory / "root"
    _make_root(root, kernel, modules, tests)
    initial = directory / "initial.cpio"
    with initial.open("wb") as file:
        write_cpio(root, file)
    shutil.rmtree(root)
    with QemuMachine(kernel, directory, initial, memory_mib=_MEMORY_MIB) as machine:
        seen = 0
        while not machine.wait_for_line("", after=seen).startswith(_END):
            seen += 1
        machine.wait()
    assert f"{_END}0" in machine.lines, "\n".join(machine.lines)
    return machine.lines


def _make_root(root: Path, kernel: Kernel, modules: Sequence[str], tests: Sequence[str]) -> None:
    for name in ("bin", "dev", "libraries", "modules", "proc", "project", "run", "sys", "tmp"):
        (root / name).mkdir(parents=True)
    programs = [BUSYBOX, *map(_find_program, _PROGRAMS)]
    for program in programs:
        shutil.copy2(program, root / "bin")
    (root / "bin/sh").symlink_to(BUSYBOX.name)
    interpreter = _add_interpreter(root)
    _add_libraries(root, [Path(interpreter), *programs])
    packages = Path(sysconfig.get_path("purelib"))
    for source in (*(packages / name for name in _PACKAGES), *(REPOSITORY / name for name in _PROJECT)):
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, root / "project" / source.name)
    collected = collect_modules(kernel.modules, modules).modules
    for module in collected:
        (root / f"modules/{module.name}.ko").write_bytes(module.data)
    (root / "modules/order").write_text("".join(f"{module.name}\n" for module in collected))
    command = shlex.join([interpreter, *_PYTEST, *tests])
    (root / "init").write_text(_INIT.replace("PYTEST", command).replace("ENDED", _END))
    (root / "init").chmod(0o755)


def _add_interpreter(root: Path) -> str:
    """Add what finds its library by the place that both have, and return it."""
    interpreter, library = os.path.realpath(sys.executable), sysconfig.get_path("stdlib")
    for path in (interpreter, library):
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(interpreter, root / interpreter[1:])
    # The links of a distribution lead elsewhere.
    shutil.copytree(library, root / library[1:], symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    return interpreter


def _add_libraries(root: Path, programs: list[Path]) -> None:
    search = LibrarySearch()
    found = search.closure(programs)
    for extension in Path(sysconfig.get_path("stdlib")).glob("lib-dynload/*.so"):
        with suppress(ImageError):  # of an optional module whose library is not here either
            found += search.closure([extension])
    for library in found:
        shutil.copy2(library.path, root / "libraries" / library.name)
    for loader in filter(None, (search.elf(program).interpreter for program in programs)):
        (root / loader[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(loader, root / loader[1:])


def _find_program(name: str) -> Path:
    path = shutil.which(name)
    assert path is not None, f"no {name} on PATH"
    return Path(path)
