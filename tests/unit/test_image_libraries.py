"""Finding libraries the way the dynamic loader does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minit.base.errors import ImageError
from minit.image.libraries import LibrarySearch
from tests.support.elf import elf_bytes


def write_elf(path: Path, **fields: Any) -> Path:
    """Write a made-up ELF file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(elf_bytes(**fields))
    return path


def test_the_closure_is_what_ldd_shows() -> None:
    """The libraries of the interpreter are those ldd lists, found where it finds them."""
    interpreter = Path(sys.executable).resolve()
    listed = subprocess.run(["ldd", interpreter], capture_output=True, text=True, check=True).stdout
    expected = {name: Path(path).resolve() for name, path in re.findall(r"(\S+) => (/\S+)", listed)}
    libraries = LibrarySearch().closure([interpreter])
    loader = LibrarySearch().elf(Path(LibrarySearch().elf(interpreter).interpreter or "")).soname
    assert {found.name: found.path.resolve() for found in libraries if found.name != loader} == expected


def test_runpath_holds_for_one_object_only(tmp_path: Path) -> None:
    """A library does not inherit the DT_RUNPATH of its user."""
    program = write_elf(tmp_path / "program", needed=["liba.so"], runpath="$ORIGIN/lib")
    write_elf(tmp_path / "lib/liba.so", needed=["libb-of-test.so"])
    write_elf(tmp_path / "lib/libb-of-test.so")
    with pytest.raises(ImageError, match=r"liba\.so needs libb-of-test\.so, which is not on this machine"):
        LibrarySearch().closure([program])


def test_rpath_holds_for_the_libraries_too(tmp_path: Path) -> None:
    """A library inherits the DT_RPATH of its user, unless it has a DT_RUNPATH."""
    program = write_elf(tmp_path / "program", needed=["liba.so"], rpath="${ORIGIN}/lib")
    write_elf(tmp_path / "lib/liba.so", needed=["libb-of-test.so"])
    write_elf(tmp_path / "lib/libb-of-test.so")
    assert [library.name for library in LibrarySearch().closure([program])] == ["liba.so", "libb-of-test.so"]

    write_elf(tmp_path / "lib/liba.so", needed=["libb-of-test.so"], runpath="/nowhere")
    with pytest.raises(ImageError, match=r"libb-of-test\.so"):
        LibrarySearch().closure([program])


def test_a_library_of_another_machine_is_passed_over(tmp_path: Path) -> None:
    """The search goes on where a file of the name has the wrong word size or machine."""
    program = write_elf(tmp_path / "program", needed=["liba.so"], runpath="$ORIGIN/32:$ORIGIN/arm:$ORIGIN/ok")
    write_elf(tmp_path / "32/liba.so", wide=False)
    write_elf(tmp_path / "arm/liba.so", machine=183)
    write_elf(tmp_path / "ok/liba.so")
    (library,) = LibrarySearch().closure([program])
    assert library.path == tmp_path / "ok/liba.so"


def test_two_users_of_a_library_get_it_once(tmp_path: Path) -> None:
    """A diamond of needs ends, with each library in it once."""
    fields = {"runpath": "$ORIGIN"}
    program = write_elf(tmp_path / "program", needed=["liba.so", "libb.so"], **fields)
    write_elf(tmp_path / "liba.so", needed=["libc-of-test.so"], **fields)
    write_elf(tmp_path / "libb.so", needed=["libc-of-test.so", "liba.so"], **fields)
    write_elf(tmp_path / "libc-of-test.so", needed=["liba.so"], **fields)
    assert [library.name for library in LibrarySearch().closure([program])] == [
        "liba.so",
        "libb.so",
        "libc-of-test.so",
    ]
