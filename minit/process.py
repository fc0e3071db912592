"""What a forked process of ours sheds before it becomes another program: groups, score, limits, imports, signals."""

from __future__ import annotations

import _signal
import os
import resource
import sys

from minit import syscalls
from minit.errors import describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_UNBLOCKABLE = (_signal.SIGKILL, _signal.SIGSTOP)
_LAST_SIGNAL = 64
_RESOURCES = 16  # RLIM_NLIMITS of Linux


def join_cgroups(tasks: Sequence[int]) -> None:
    """Move this process into the v1 groups of the `tasks` files; 0 stands for the writer."""
    for fd in tasks:
        os.write(fd, b"0")


def join_v2_group(directory: int) -> None:
    """Move this process into the v2 group of a directory."""
    fd = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.write(fd, b"0")
    finally:
        os.close(fd)


def set_oom_score(adjustment: int) -> bool:
    """
    Set what is added to the score by which the OOM killer chooses, in place of PID 1's own: from -1000, never, to 1000.

    Returns False if it would have to become lower than this process may make it, without CAP_SYS_RESOURCE.
    """
    fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"%d" % adjustment)
    except PermissionError:
        return False
    finally:
        os.close(fd)
    return True


def read_limits(open_files: tuple[int, int]) -> list[tuple[int, int, int]]:
    """
    Return the resource limits of an app of which `open_files` are the RLIMIT_NOFILE: number, soft and hard.

    All others are those of this process, which the launcher and PID 1 never change.
    """
    limits = [(number, *resource.getrlimit(number)) for number in range(_RESOURCES)]
    limits[resource.RLIMIT_NOFILE] = (resource.RLIMIT_NOFILE, *open_files)
    return limits


def set_limits(limits: Sequence[tuple[int, int, int]]) -> None:
    """Set resource limits; without CAP_SYS_RESOURCE none can be wider than this process's own hard limit."""
    for number, soft, hard in limits:
        try:
            resource.setrlimit(number, (soft, hard))
        except (PermissionError, ValueError):
            # Python says ValueError to EPERM.
            own = resource.getrlimit(number)[1]
            resource.setrlimit(number, (_narrower(soft, own), _narrower(hard, own)))


def _narrower(limit: int, other: int) -> int:
    unlimited = resource.RLIM_INFINITY
    return other if limit == unlimited else limit if other == unlimited else min(limit, other)


def forget_imports() -> None:
    """Make any later import fail instead of reading files that the app's image chose."""
    sys.path[:] = []
    sys.meta_path[:] = []
    sys.path_hooks[:] = []


def reset_signals() -> None:
    """Give the new program default dispositions and an empty mask; Python ignores SIGPIPE and SIGXFSZ."""
    # All 64, not just those that the C library hands out: whoever was started by its posix_spawn(3), a command of
    # make(1) say, ignores the two it keeps for itself.
    for number in range(1, _LAST_SIGNAL + 1):
        if number not in _UNBLOCKABLE:
            syscalls.reset_signal(number)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def wait_channel(pid: int) -> str:
    """Return where in the kernel a process waits, proc_pid_wchan(5), or why that is not known."""
    try:
        with open(f"/proc/{pid}/wchan", encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        return describe(error)
