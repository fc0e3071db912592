"""The only waiting in PID 1: every death comes from here, apps and orphans alike."""

from __future__ import annotations

import os

from minit.reaper.exit_status import ExitStatus, from_wait_status, from_waitid

# A batch is bounded so that a storm of orphans cannot keep the control socket waiting.
BATCH = 256


def reap(limit: int = BATCH) -> list[tuple[int, ExitStatus]]:
    """
    Reap up to `limit` dead children without blocking and return (pid, status) of each.

    SIGCHLD coalesces, so the caller repeats until a batch is not full. A child that was forked but not yet
    registered cannot be in a batch: fork and registration have no checkpoint between them.
    """
    dead = []
    for _ in range(limit):
        try:
            result = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            break
        if result is None:
            break
        dead.append((result.si_pid, from_waitid(result)))
    return dead


def has_children(pid: int | None = None) -> bool:
    """
    Tell whether there is any child, dead or alive, or the one that is named.

    PID 1's are all processes that nobody else is the parent of.
    """
    which = (os.P_ALL, 0) if pid is None else (os.P_PID, pid)
    try:
        os.waitid(*which, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def read_zombie(pid: int) -> ExitStatus:
    """Return how a process ended that is dead and cannot be reaped yet: its exit code in proc_pid_stat(5)."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return from_wait_status(int(file.read().split()[-1]))
