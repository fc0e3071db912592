"""System calls have the numbers of libseccomp and of the kernel's headers: in Python, in programs in C, in filters."""

from __future__ import annotations

import ctypes
import os
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from minit.image import stage1
from minit.linux import syscalls
from minit.manifest.seccomp import ANCIENT_CALLS, CALL_SETS, CAPABILITY_CALLS, DEFAULT_CALLS, MINIMUM_CALLS
from minit.plan.rights.syscallnumbers import multiplexed_calls, numbers_of
from tests.support.bpf import AARCH64, ARM, I386, X86_64
from tests.support.libseccomp import LIBRARY
from tests.support.stage0_world import REPOSITORY

ARCHITECTURES = {"x86_64": X86_64, "aarch64": AARCH64}


def wrong_numbers(machine: str, numbers: dict[str, int]) -> dict[str, int]:
    """Return those of the calls that have another number on a kind of machine."""
    resolve = ctypes.CDLL(LIBRARY).seccomp_syscall_resolve_name_arch
    architecture = ctypes.c_uint32(ARCHITECTURES[machine])
    return {name: value for name, value in numbers.items() if resolve(architecture, name.encode()) != value}


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_numbers_of_python(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    """Every call of minit.linux.syscalls has the number that it has on the machine."""
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine))
    names = runpy.run_path(str(syscalls.__file__))
    numbers = {name.removeprefix("_SYS_").lower(): value for name, value in names.items() if name.startswith("_SYS_")}
    assert len(numbers) > 20
    assert wrong_numbers(machine, numbers) == {}


@pytest.mark.parametrize("name", ["launcher.c", "openroot.c"])
@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_numbers_of_programs_in_c(machine: str, name: str) -> None:
    """Every call of a first program in C has the number that it has on the machine."""
    text = (Path(stage1.__file__).parent / name).read_text()
    common, *parts = re.split(r"^#(?:el)?if defined\(__(\w+)__\)$", text, flags=re.MULTILINE)
    own = dict(zip(parts[::2], parts[1::2], strict=True))[machine]
    numbers = {name: int(value) for name, value in re.findall(r"\bSYS_(\w+) = (\d+)", common + own)}
    assert len(numbers) > 10
    assert wrong_numbers(machine, numbers) == {}


@pytest.mark.parametrize(("name", "architecture"), [*ARCHITECTURES.items(), ("i386", I386), ("arm", ARM)])
def test_the_numbers_of_filters(name: str, architecture: int) -> None:
    """A filter has every call that the library knows, by its number, and newer ones."""
    library = ctypes.CDLL(LIBRARY)
    library.seccomp_syscall_resolve_num_arch.restype = ctypes.c_char_p
    own = numbers_of(name)
    for number in (*range(600), *range(0xF0000, 0xF0010)):
        known = library.seccomp_syscall_resolve_num_arch(ctypes.c_uint32(architecture), number)
        assert known is None or own[known.decode()] == number, (known, number)
    assert own["mseal"] == 462


def test_the_numbers_of_the_headers() -> None:
    """The tables have the numbers of this machine's headers, and each call of the headers that a named set has."""
    read_headers = runpy.run_path(str(REPOSITORY / "contrib/syscallnumbers.py"))["read_headers"]
    named = ANCIENT_CALLS.union(DEFAULT_CALLS, MINIMUM_CALLS, *CALL_SETS.values(), *CAPABILITY_CALLS.values())
    read = {name: read_headers(name) for name in (*ARCHITECTURES, "i386", "arm")}
    assert len(read["aarch64"]) > 300, "no headers of the kernel"
    for architecture, numbers in read.items():
        own = numbers_of(architecture)
        assert {name: own[name] for name in numbers if name in own or name in named} == {
            name: number for name, number in numbers.items() if name in own or name in named
        }


def test_the_calls_within_others() -> None:
    """The library gives those of i386 numbers below zero, in which their own are."""
    resolve = ctypes.CDLL(LIBRARY).seccomp_syscall_resolve_name_arch
    for name, (multiplexer, number) in multiplexed_calls().items():
        base = {"socketcall": -100, "ipc": -200}[multiplexer]
        assert resolve(ctypes.c_uint32(I386), name.encode()) == base - number, name
