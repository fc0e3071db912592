"""The only waiting in PID 1: every death comes from here, apps and orphans alike."""

from __future__ import annotations

import os

from minit.reaper.exit_status import ExitStatus, from_wait_status

# A batch is bounded so that a storm of orphans cannot keep the control socket waiting: some 5 milliseconds.
BATCH = 1024
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT
_CORE_DUMPED = 0x80
_PF_FORKNOEXEC = 0x40


def reap(known: set[int], dead: list[tuple[int, int]], limit: int = BATCH) -> int:
    """
    Reap up to `limit` dead children without blocking; return the count of all.

    (pid, status in the form of wait(2)) of `known` children that are not in `dead` yet are added. This comes before the
    reaping: the kernel tells nobody again, and an error in between, for want of memory say, would lose the status.

    All others are orphans, perhaps thousands, for which no object is made. SIGCHLD coalesces, so the caller repeats
    until a batch is not full. A child that was forked but not yet registered cannot be in a batch: fork and
    registration have no checkpoint between them. A dead child is taken out of `known`, as another process may have its
    pid from now on.
    """
    known.difference_update([pid for pid, _ in dead])
    for count in range(limit):
        try:
            found = os.waitid(os.P_ALL, 0, _LOOK)
        except ChildProcessError:
            return count
        if found is None:
            return count
        pid = found.si_pid
        if pid in known:
            known.remove(pid)
            dead.append((pid, _wait_status(found)))
        os.waitpid(pid, os.WNOHANG)
    return limit


def _wait_status(found: os.waitid_result) -> int:
    if found.si_code == os.CLD_EXITED:
        return found.si_status << 8
    return found.si_status | (_CORE_DUMPED if found.si_code == os.CLD_DUMPED else 0)


def has_children(pid: int | None = None) -> bool:
    """
    Tell whether there is any child, dead or alive, or the given child.

    Children of PID 1 are all processes without another parent.
    """
    which = (os.P_ALL, 0) if pid is None else (os.P_PID, pid)
    try:
        os.waitid(*which, _LOOK)
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
