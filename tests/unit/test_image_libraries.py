"""ELF files, and finding libraries the way the dynamic loader does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ImageError
from minit.image.libraries import LibrarySearch, is_elf, parse_elf, read_elf
from tests.support.elf import elf_bytes

names = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters=":"), min_size=1)


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
    assert [library.name for library in LibrarySearch().closure([program])] == ["liba.so", "libb.so", "libc-of-test.so"]


@given(
    needed=st.lists(names, max_size=5),
    soname=st.none() | names,
    interpreter=st.none() | names,
    runpath=st.lists(names, max_size=3),
    rpath=st.lists(names, max_size=3),
    wide=st.booleans(),
    order=st.sampled_from("<>"),
)
def test_every_field_is_read_back(
    needed: list[str],
    soname: str | None,
    interpreter: str | None,
    runpath: list[str],
    rpath: list[str],
    wide: bool,
    order: str,
) -> None:
    """A file's headers about its loading are read in both word sizes and both byte orders."""
    data = elf_bytes(
        needed=needed,
        soname=soname,
        interpreter=interpreter,
        runpath=":".join(runpath),
        rpath=":".join(rpath),
        wide=wide,
        order=order,
    )
    elf = parse_elf(data, "file")
    assert elf.needed == tuple(needed)
    assert (elf.soname, elf.interpreter) == (soname, interpreter)
    assert (elf.runpath, elf.rpath) == (tuple(runpath), tuple(rpath))
    assert elf.machine == (2 if wide else 1, 62, order)


@given(st.data())
def test_a_damaged_file_is_an_image_error(data: st.DataObject) -> None:
    """With any bytes changed or cut off the answer is a result or one ImageError that names the file."""
    damaged = bytearray(elf_bytes(needed=["libc.so.6"], interpreter="/lib/ld.so", runpath="$ORIGIN"))
    for _ in range(data.draw(st.integers(0, 4))):
        damaged[data.draw(st.integers(4, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    try:
        parse_elf(bytes(damaged), "/lib/broken.so")
    except ImageError as error:
        assert str(error).startswith("/lib/broken.so: ")


def test_an_offset_beyond_what_the_machine_can_address() -> None:
    """A program header table at 2**63 is outside the file like any other offset."""
    damaged = bytearray(elf_bytes(needed=["libc.so.6"]))
    damaged[32:40] = (2**63).to_bytes(8, "little")
    with pytest.raises(ImageError, match="points outside the file"):
        parse_elf(bytes(damaged), "/lib/broken.so")


def test_a_file_of_another_kind_is_refused() -> None:
    """A file without the magic number is not an ELF file."""
    with pytest.raises(ImageError, match="^/bin/script: not an ELF file$"):
        parse_elf(b"#!/bin/sh\n", "/bin/script")
    assert not is_elf(Path(__file__))


def test_the_running_interpreter_is_read() -> None:
    """A real program names its loader and needs the C library."""
    elf = read_elf(Path(sys.executable).resolve())
    assert elf.interpreter is not None
    assert Path(elf.interpreter).exists()
    assert "libc.so.6" in elf.needed
