"""Faults at chosen system calls of a pod's processes: an error in place of the call, or SIGKILL."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("faults.c")

LAUNCHER = "0"
PID_1 = "0.0"
KILL = 0  # in place of an errno


class Call(NamedTuple):
    """The `nth` call of that name by one process; see faults.c for how processes are called."""

    who: str
    name: str
    nth: int


def build_faults(output: Path) -> None:
    """Compile the tracer, linked statically."""
    subprocess.run(["cc", "-static", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(output), str(SOURCE)], check=True)


def _numbers() -> dict[str, int]:
    header = subprocess.run(
        ["cc", "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"],
        check=True,
        capture_output=True,
        text=True,
    )
    return {name: int(number) for name, number in re.findall(r"^#define __NR_(\w+) (\d+)$", header.stdout, re.M)}


class Faults:
    """The tracer, and the two ways to use it: recording what is called, and one fault."""

    def __init__(self, tracer: Path, execs: int) -> None:
        """`execs` is how many programs the traced process executes until it is the launcher's interpreter."""
        self._tracer = tracer
        self._execs = execs
        self._numbers = _numbers()
        self._names = {number: name for name, number in self._numbers.items()}

    def recording(self, fd: int) -> list[str]:
        """Return the words before a command that have its calls written to `fd`."""
        return [str(self._tracer), str(fd), str(self._execs), "--"]

    def fault(self, fd: int, call: Call, errno: int) -> list[str]:
        """Return the words before a command that make one call fail; a line on `fd` says that it was reached."""
        number = -1 if call.name == "any" else self._numbers[call.name]
        words = [call.who, str(number), str(call.nth), str(errno)]
        return [str(self._tracer), str(fd), str(self._execs), *words, "--"]

    def read_calls(self, lines: Iterable[str]) -> list[tuple[str, str]]:
        """Return who called what, in order."""
        calls = (line.split() for line in lines)
        return [(who, self._names.get(int(number), number)) for who, number in calls]
