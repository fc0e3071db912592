"""A reader of seccomp filters: runs a program of classic BPF on a system call, as the kernel would."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence

from minit.plan.rights.syscallnumbers import numbers_of

X86_64 = 0xC000003E  # AUDIT_ARCH_X86_64
I386 = 0x40000003
ARM = 0x40000028
AARCH64 = 0xC00000B7
X32_BIT = 0x40000000
_NAMES = {X86_64: "x86_64", I386: "i386", ARM: "arm", AARCH64: "aarch64"}

_JUMPS: dict[int, Callable[[int, int], bool]] = {
    0x15: lambda a, k: a == k,
    0x25: lambda a, k: a > k,
    0x35: lambda a, k: a >= k,
    0x45: lambda a, k: bool(a & k),
}


class Program:
    """A filter as an array of struct sock_filter."""

    def __init__(self, data: bytes) -> None:
        self.instructions = list(struct.iter_unpack("=HBBI", data))

    def run(self, architecture: int, number: int, arguments: Sequence[int] = ()) -> int:
        """Return what it answers to a system call."""
        words = [*arguments, *[0] * (6 - len(arguments))]
        data = struct.pack("=IIQ6Q", number & 0xFFFFFFFF, architecture, 0, *words)
        accumulator, at = 0, 0
        memory = [0] * 16
        while True:
            code, if_true, if_false, value = self.instructions[at]
            at += 1
            if code == 0x06:
                return int(value)
            if code == 0x20:
                [accumulator] = struct.unpack_from("=I", data, value)
            elif code == 0x54:
                accumulator &= value
            elif code == 0x05:
                at += value
            elif code == 0x02:
                memory[value] = accumulator
            elif code == 0x60:
                accumulator = memory[value]
            else:
                at += if_true if _JUMPS[code](accumulator, value) else if_false


def answer(programs: Sequence[Program], architecture: int, number: int, arguments: Sequence[int] = ()) -> int:
    """Return what several filters answer together: the action that comes first in the kernel's order, seccomp(2)."""
    # As signed numbers, the smaller is the more severe, SECCOMP_RET_KILL_PROCESS the most.
    answers = [program.run(architecture, number, arguments) for program in programs]
    return min(answers, key=lambda action: action - (1 << 32) if action >> 31 else action)


class Calls:
    """The system calls of an architecture, by number."""

    def __init__(self, architecture: int) -> None:
        self.names = {number: name for name, number in numbers_of(_NAMES[architecture]).items()}

    def number(self, name: str) -> int:
        """Return the number of a call."""
        return next(number for number, other in self.names.items() if other == name)


NATIVE = Calls({"x86_64": X86_64, "aarch64": AARCH64}[os.uname().machine])


def native(name: str, *arguments: int) -> str:
    """Return a system call of this machine, as the guest is told to make it."""
    return ":".join(["native", str(NATIVE.number(name)), *map(str, arguments)])
