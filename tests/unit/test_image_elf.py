"""The ELF reader, on files made here and on the interpreter that runs the tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ImageError
from minit.image.libraries import is_elf, parse_elf, read_elf
from tests.support.elf import elf_bytes

names = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters=":"), min_size=1)


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
