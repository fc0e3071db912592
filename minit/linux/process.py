"""Steps of a process on its way to be confined: mounts, groups, score, attributes, limits, imports, signals."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import minit.linux.importedlate  # noqa: F401
from minit.base.errors import EXIT_FAILURE, describe
from minit.linux import syscalls
from minit.linux.attributes import UNLIMITED, Attributes, Limit, narrower

_UNBLOCKABLE = (signal.SIGKILL, signal.SIGSTOP)
_LAST_SIGNAL = 64
_RESOURCES = 16  # RLIM_NLIMITS of Linux
# Whoever makes a user namespace bounds the sum of these there by the own soft limits, create_user_ns of the kernel.
_SUMMED = (
    resource.RLIMIT_NPROC,
    resource.RLIMIT_MSGQUEUE,
    resource.RLIMIT_SIGPENDING,
    resource.RLIMIT_MEMLOCK,
)
_MOST_OPEN_FILES = "/proc/sys/fs/nr_open"
_SCHED_DEADLINE = 6
_COREDUMP_FILTER = "/proc/self/coredump_filter"
_NUMBER_BYTES = 32


def enter_own_mounts(propagation: int) -> None:
    """
    Make the root of the mount namespace this process's root and working directory, and set the propagation of mounts.

    The caller may be in a chroot(2). There other mounts would keep on propagating, pivot_root(2) would not lead out,
    and a process that joins the namespace later would be above the chroot.
    """
    own = os.pidfd_open(os.getpid())
    syscalls.setns(own, syscalls.CLONE_NEWNS)
    os.close(own)
    syscalls.mount(None, "/", None, syscalls.MS_REC | propagation)


@contextmanager
def ended_on_failure(child: int) -> Iterator[None]:
    """Have a child process end, and wait for the end, if the with block fails."""
    try:
        yield
    except BaseException:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
        raise


def ending_with_caller(number: int = signal.SIGKILL) -> Callable[[], None]:
    """
    Return a function for a child before its exec: the child then gets a signal when this process ends in any way.

    The signal comes at the end of the forking thread, prctl(2), so only a process with one thread may use this. No exec
    of minit's clears the setting.
    """
    caller = os.getpid()

    def ask_for_signal() -> None:
        syscalls.set_parent_death_signal(number)
        if os.getppid() != caller:
            os._exit(EXIT_FAILURE)  # the caller has ended before

    return ask_for_signal


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
    Set the addend to the score of the OOM killer, in place of PID 1's own: from -1000, never killed, to 1000.

    Returns False if this process may not lower the addend so far, without CAP_SYS_RESOURCE.
    """
    fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"%d" % adjustment)
    except PermissionError:
        return False
    finally:
        os.close(fd)
    return True


def read_attributes() -> Attributes:
    """Return the attributes of this process."""
    return Attributes(**{name: read() for name, (read, _) in _ATTRIBUTES.items()})


def take_attributes(attributes: Attributes) -> None:
    """
    Give this process these attributes, as far as its rights allow.

    To be called after the process has joined its control groups: a move to another cpuset changes the affinity.
    """
    for name, (read, write) in _ATTRIBUTES.items():
        value = getattr(attributes, name)
        if value != read():
            try:
                write(value)
            except OSError:
                pass  # not without CAP_SYS_NICE, or not on these processors


def leave_realtime() -> None:
    """
    Be scheduled as an ordinary process, even if the caller has a real-time policy.

    A group of the v1 controller cpu has no time for real-time processes, and refuses them.
    """
    policy = os.sched_getscheduler(0)
    ordinary = policy & ~os.SCHED_RESET_ON_FORK
    if ordinary in (os.SCHED_FIFO, os.SCHED_RR, _SCHED_DEADLINE):
        ordinary = os.SCHED_OTHER
    if ordinary != policy:
        _set_policy(ordinary)


def read_limits() -> list[Limit]:
    """Return the resource limits of this process."""
    return [(number, *resource.getrlimit(number)) for number in range(_RESOURCES)]


def raise_limits(*, for_users: bool = False) -> None:
    """
    Raise the hard limits of this process as far as allowed, and the soft limit of open files to the caller's hard one.

    Children then can have any limit that this process could give. With `for_users` this process makes a user namespace.
    """
    raised = []
    for number, soft, hard in read_limits():
        if number == resource.RLIMIT_NOFILE:
            raised.append((number, hard, max(hard, _read_number(_MOST_OPEN_FILES) or 0)))
        else:
            raised.append((number, UNLIMITED if for_users and number in _SUMMED else soft, UNLIMITED))
    hold_limits(raised)


def raise_open_files() -> None:
    """Let this process have as many files open as its hard limit permits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def admit_limits(limits: Sequence[Limit]) -> None:
    """Raise hard limits of this process to those of `limits`, as far as its rights allow, and no soft limit."""
    for number, _, hard in limits:
        own_soft, own_hard = resource.getrlimit(number)
        if narrower(hard, own_hard) != hard:
            try:
                resource.setrlimit(number, (own_soft, hard))
            except (PermissionError, ValueError):
                pass  # not without CAP_SYS_RESOURCE


def hold_limits(limits: Sequence[Limit]) -> bool:
    """
    Give this process these limits, against changes by prlimit(2); return whether any limit has changed now.

    Without CAP_SYS_RESOURCE no limit can be wider than the present hard limit.
    """
    has_changed = False
    for number, soft, hard in limits:
        before = resource.getrlimit(number)
        if before == (soft, hard):
            continue
        try:
            resource.setrlimit(number, (soft, hard))
        except (PermissionError, ValueError):
            # Python says ValueError to EPERM.
            resource.setrlimit(number, (narrower(soft, before[1]), narrower(hard, before[1])))
        has_changed |= resource.getrlimit(number) != before
    return has_changed


def _set_policy(policy: int) -> None:
    os.sched_setscheduler(0, policy, os.sched_param(0))


def _read_affinity() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))


def _read_coredump_filter() -> int | None:
    return _read_number(_COREDUMP_FILTER, 16)


def _read_number(path: str, base: int = 10) -> int | None:
    """Return the number in a file of the kernel, None without the file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return int(os.read(fd, _NUMBER_BYTES), base)
    finally:
        os.close(fd)


def _write_coredump_filter(bits: int | None) -> None:
    if bits is None:
        return
    fd = os.open(_COREDUMP_FILTER, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"%#x" % bits)
    finally:
        os.close(fd)


def forget_imports() -> None:
    """Make any later import fail: files of the image move, and other files come from an app's image."""
    sys.path[:] = []
    sys.meta_path[:] = []
    sys.path_hooks[:] = []


def reset_signals() -> None:
    """Give the new program default dispositions and an empty mask; Python ignores SIGPIPE and SIGXFSZ."""
    # The interpreter looked at all signals at its start, but for two that the C library keeps for itself.
    # Python calls these two None. They are ignored in a program that posix_spawn(3) started, by make(1) say.
    for number in range(1, _LAST_SIGNAL + 1):
        if number not in _UNBLOCKABLE and signal.getsignal(number) != signal.SIG_DFL:
            syscalls.reset_signal(number)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def wait_channel(pid: int) -> str:
    """Return the place in the kernel where a process waits, proc_pid_wchan(5), or a reason why it is unknown."""
    try:
        with open(f"/proc/{pid}/wchan", encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        return describe(error)


# The reader and the setter of each attribute, in a possible order of setting.
_ATTRIBUTES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "policy": (lambda: os.sched_getscheduler(0), _set_policy),
    "nice": (lambda: os.getpriority(os.PRIO_PROCESS, 0), lambda nice: os.setpriority(os.PRIO_PROCESS, 0, nice)),
    "affinity": (_read_affinity, lambda processors: os.sched_setaffinity(0, processors)),
    "io_priority": (syscalls.io_priority, syscalls.set_io_priority),
    "personality": (syscalls.personality, syscalls.set_personality),
    "timer_slack_ns": (syscalls.timer_slack_ns, syscalls.set_timer_slack_ns),
    "thp_disable": (syscalls.thp_disable, syscalls.set_thp_disable),
    "coredump_filter": (_read_coredump_filter, _write_coredump_filter),
}
