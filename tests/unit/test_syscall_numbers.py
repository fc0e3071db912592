"""System calls in minit.syscalls and the programs in C have the numbers that libseccomp knows for each architecture."""

from __future__ import annotations

import ctypes
import os
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from minit import syscalls
from minit.image import stage1
from minit.libseccomp import LIBRARY
from tests.support.bpf import AARCH64, X86_64

ARCHITECTURES = {"x86_64": X86_64, "aarch64": AARCH64}


def wrong_numbers(machine: str, numbers: dict[str, int]) -> dict[str, int]:
    """Return those of the calls that have another number on a kind of machine."""
    resolve = ctypes.CDLL(LIBRARY).seccomp_syscall_resolve_name_arch
    architecture = ctypes.c_uint32(ARCHITECTURES[machine])
    return {name: value for name, value in numbers.items() if resolve(architecture, name.encode()) != value}


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_numbers_of_python(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    """Every call of minit.syscalls has the number that it has on the machine."""
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine))
    names = runpy.run_path(str(syscalls.__file__))
    numbers = {name.removeprefix("_SYS_").lower(): value for name, value in names.items() if name.startswith("_SYS_")}
    assert len(numbers) > 20
    assert wrong_numbers(machine, numbers) == {}


@pytest.mark.parametrize("name", ["launcher.c", "disk/openroot.c"])
@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_numbers_of_programs_in_c(machine: str, name: str) -> None:
    """Every call of a first program in C has the number that it has on the machine."""
    text = (Path(stage1.__file__).parent / name).read_text()
    common, *parts = re.split(r"^#(?:el)?if defined\(__(\w+)__\)$", text, flags=re.MULTILINE)
    own = dict(zip(parts[::2], parts[1::2], strict=True))[machine]
    numbers = {name: int(value) for name, value in re.findall(r"\bSYS_(\w+) = (\d+)", common + own)}
    assert len(numbers) > 10
    assert wrong_numbers(machine, numbers) == {}
