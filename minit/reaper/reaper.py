"""The only waiting in PID 1: every death comes from here, apps and orphans alike."""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct

from minit.linux.syscalls import take_ends
from minit.reaper.exit_status import ExitStatus, from_wait_status

# A batch is bounded so that a storm of orphans cannot keep the control socket waiting: some 3 milliseconds.
BATCH = 1024
_COUNT = Struct("i")
_END = Struct("ii")
_NONE = bytes(_COUNT.size)
# What the kernel tells once only is here until `dead` has it.
_ends = bytearray(_COUNT.size + BATCH * _END.size)
_PF_FORKNOEXEC = 0x40


def reap(known: set[int], dead: list[tuple[int, int]]) -> int:
    """
    Reap up to BATCH dead children without blocking; return the count of all.

    (pid, status in the form of wait(2)) of `known` children that are not in `dead` yet are added. An error in between,
    for want of memory say, loses nothing: the next call adds what the last one took from the kernel and did not add.

    All others are orphans, perhaps thousands. SIGCHLD coalesces, so the caller repeats until a batch is not full. A
    child that was forked but not yet registered cannot be in a batch: fork and registration have no checkpoint between
    them. A dead child is taken out of `known`, as another process may have its pid from now on.
    """
    known.difference_update([pid for pid, _ in dead])
    take_ends(_ends)
    count: int = _COUNT.unpack_from(_ends)[0]
    for pid, status in _taken():
        if pid in known:
            known.remove(pid)
            dead.append((pid, status))
    _ends[: _COUNT.size] = _NONE
    return count


def rescue_ends(dead: list[tuple[int, int]]) -> None:
    """Add what a call of `reap` that failed took from the kernel and did not add, orphans too."""
    dead += [(pid, status) for pid, status in _taken() if (pid, status) not in dead]
    _ends[: _COUNT.size] = _NONE


def _taken() -> Iterator[tuple[int, ...]]:
    [count] = _COUNT.unpack_from(_ends)
    return _END.iter_unpack(memoryview(_ends)[_COUNT.size :][: count * _END.size])


def has_children(pid: int | None = None) -> bool:
    """
    Tell whether there is any child, dead or alive, or the given child.

    Children of PID 1 are all processes without another parent.
    """
    which = (os.P_ALL, 0) if pid is None else (os.P_PID, pid)
    try:
        os.waitid(*which, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def died_before_exec(pid: int, *, is_dying: bool = False) -> bool:
    """
    Tell whether a child is dead, or known to be dying, and never executed a program.

    For a child before its reaping: the answer is in the flags of proc_pid_stat(5), PF_FORKNOEXEC.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False  # nobody can tell
    return (is_dying or fields[0] == b"Z") and bool(int(fields[6]) & _PF_FORKNOEXEC)


def read_zombie(pid: int) -> ExitStatus:
    """Return the end of a dead process that cannot be reaped yet: the exit code in proc_pid_stat(5)."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return from_wait_status(int(file.read().split()[-1]))
