"""
Faults at chosen system calls of a pod's processes: an error in place of the call, SIGKILL, or no return from it.

faults.c says why not strace, but for calls of a running process that go wrong by their names. A start makes the same
calls in the same order nearly every time, so a recorded call is met again in the next start.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.processes import status_of
from tests.support.waiting import wait_for

SOURCE = Path(__file__).with_name("faults.c")

LAUNCHER = "0"
# In place of an errno.
KILL = 0
HANG = -1
ANY = "any"  # in place of a name

# Calls that cannot fail, that the C library and the interpreter make for their own memory and at their own forks, or
# that end the process. Which there are is a matter of their versions.
NEVER_FAIL = {
    *("brk", "close", "exit_group", "geteuid", "getpid", "getppid", "gettid", "lseek", "mmap", "mprotect", "mremap"),
    *("munmap", "rseq", "rt_sigprocmask", "set_robust_list", "umask"),
}
# What stat(3) is to one C library or another: it looks at files that decide nothing, before a mkdir(2) say.
LOOKS = {"fstat", "newfstatat", "statx"}


class Call(NamedTuple):
    """The `nth` system call of that name, from 1 on, by one process, called `who` as faults.c calls it."""

    who: str
    name: str
    nth: int


class Faults:
    """The tracer: what to put before a command to record its calls, or to have one of them go wrong."""

    def __init__(self, directory: Path, execs: int, *, alone: bool = False) -> None:
        """
        Build it in `directory`; `execs` is how many programs the command executes up to the first that counts.

        What it forks may outlive it if it is traced `alone`.
        """
        self._program = directory / "faults"
        self._execs = -execs if alone else execs
        if not self._program.exists():
            flags = ("-static", "-O1", "-Wall", "-Wextra", "-Werror")
            subprocess.run(["cc", *flags, "-o", str(self._program), str(SOURCE)], check=True)
        header = ["cc", "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"]
        text = subprocess.run(header, check=True, capture_output=True, text=True).stdout
        pairs = re.findall(r"^#define __NR_(\w+) (\d+)$", text, re.MULTILINE)
        self._numbers = {name: int(number) for name, number in pairs}
        self._names = {number: name for name, number in self._numbers.items()}

    def recording(self, fd: int) -> list[str]:
        """Return the words before a command whose calls are written to `fd`, for `read_calls`."""
        return [str(self._program), str(fd), str(self._execs), "--"]

    def fault(self, fd: int, call: Call, errno: int) -> list[str]:
        """Return the words before a command of which one call goes wrong; a line on `fd` says when it is reached."""
        return [str(self._program), str(fd), str(self._execs), *self._where(call, errno), "--"]

    def fault_of(self, pid: int, fd: int, call: Call, errno: int) -> list[str]:
        """Return the command that has a call of a process go wrong which runs already and is LAUNCHER here."""
        return [str(self._program), str(fd), "1", *self._where(call, errno), "-p", str(pid)]

    def _where(self, call: Call, errno: int) -> tuple[str, ...]:
        number = -1 if call.name == ANY else self._numbers[call.name]
        return call.who, str(number), str(call.nth), str(errno)

    def read_calls(self, lines: Iterable[str]) -> list[Call]:
        """Return the recorded calls in their order."""
        seen: Counter[tuple[str, str]] = Counter()
        calls = []
        for line in lines:
            who, number = line.split()
            name = self._names.get(int(number), number)
            seen[who, name] += 1
            calls.append(Call(who, name, seen[who, name]))
        return calls


class Roles:
    """The roles of the processes of a recorded start."""

    def __init__(self, calls: Iterable[Call]) -> None:
        calls = list(calls)
        [self.pid_1] = {call.who for call in calls if call.name == "sethostname"}
        own = {call.who for call in calls if call.who.rpartition(".")[0] == LAUNCHER}
        self.network_helper = next(iter({call.who for call in calls if call.name == "unshare"} & own), None)
        below = {call.who for call in calls if call.who.rpartition(".")[0] == self.pid_1}
        self.apps = sorted({call.who for call in calls if call.name == "pivot_root"} & below)
        executed = {call.who for call in calls if call.name == "execve"}
        self.first_processes = sorted({call.who for call in calls if call.name == "setsid"} & below - executed)
        self.handlers = sorted({call.who for call in calls if call.name == "setns"} & below)
        [self.spawner] = {call.who for call in calls if call.name == "clone3"} & below
        self.sidecars = sorted({call.who for call in calls if call.who.rpartition(".")[0] == self.spawner})


@contextmanager
def mistaken(pid: int, mistake: str) -> Iterator[None]:
    """Have calls of a running process go wrong in the block, by the words of strace(1) behind `inject=`."""
    words = ["strace", "-qq", "-e", f"inject={mistake}", "-p", str(pid)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as tracer:
        try:
            wait_for(lambda: status_of(pid)["TracerPid"] == str(tracer.pid), "the tracer")
            yield
        finally:
            tracer.terminate()
