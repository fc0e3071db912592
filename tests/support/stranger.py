"""
A second user among the processes of another one: `python -m tests.support.stranger PID...` tries to look into each
process and to change each, and prints a line for whatever works.

Arguments, control groups and mounts are left out, which the kernel shows to everybody.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator

_LIBC = ctypes.CDLL(None, use_errno=True)
_FILES = ("auxv", "environ", "io", "maps", "mem", "pagemap", "smaps", "stack", "syscall")
_LINKS = ("cwd", "exe", "root", "ns/cgroup", "ns/ipc", "ns/mnt", "ns/net", "ns/pid", "ns/user", "ns/uts")
_LISTS = ("fd", "fdinfo", "map_files", "root/", "cwd/")
_WRITABLE = ("clear_refs", "comm", "coredump_filter", "mem", "oom_score_adj", "setgroups", "uid_map")
_NAMESPACES = {"user": 0x10000000, "mnt": 0x00020000, "net": 0x40000000, "pid": 0x20000000}
_PTRACE_ATTACH, _PTRACE_SEIZE = 16, 0x4206
_PIDFD_GETFD = 438


class _Vector(ctypes.Structure):
    """The struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _call(name: str, *arguments: object) -> None:
    """Call a function of the C library; OSError if the call fails."""
    if getattr(_LIBC, name)(*arguments) == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _read(path: str) -> None:
    with open(path, "rb") as file:
        file.read(1)


def _by_pidfd(pid: int, use: Callable[[int], None]) -> None:
    pidfd = os.pidfd_open(pid)
    try:
        use(pidfd)
    finally:
        os.close(pidfd)


def _move_memory(name: str, pid: int) -> None:
    buffer = ctypes.create_string_buffer(8)
    vector = _Vector(ctypes.addressof(buffer), 8)
    _call(name, pid, ctypes.byref(vector), 1, ctypes.byref(vector), 1, 0)


def _tries(pid: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the names of all tries, and the tries."""
    top = f"/proc/{pid}"
    for name in _FILES:
        yield f"read {name}", lambda name=name: _read(f"{top}/{name}")  # type: ignore[misc]
    for name in _LINKS:
        yield f"follow {name}", lambda name=name: os.readlink(f"{top}/{name}")  # type: ignore[misc]
    for name in _LISTS:
        yield f"list {name}", lambda name=name: os.listdir(f"{top}/{name}")  # type: ignore[misc]
    for name in _WRITABLE:
        yield f"open {name} for writing", lambda name=name: os.close(os.open(f"{top}/{name}", os.O_WRONLY))  # type: ignore[misc]
    for name, flag in _NAMESPACES.items():
        yield f"open ns/{name}", lambda name=name: os.close(os.open(f"{top}/ns/{name}", os.O_RDONLY))  # type: ignore[misc]
        yield f"join {name}", lambda flag=flag: _by_pidfd(pid, lambda fd: _call("setns", fd, flag))  # type: ignore[misc]
    yield "open the root", lambda: os.close(os.open(f"{top}/root", os.O_PATH))
    yield "trace", lambda: _call("ptrace", _PTRACE_SEIZE, pid, None, None)
    yield "stop and trace", lambda: _call("ptrace", _PTRACE_ATTACH, pid, None, None)
    yield "read memory", lambda: _move_memory("process_vm_readv", pid)
    yield "write memory", lambda: _move_memory("process_vm_writev", pid)
    yield "take a descriptor", lambda: _by_pidfd(pid, lambda fd: _call("syscall", _PIDFD_GETFD, fd, 0, 0))
    yield "signal", lambda: os.kill(pid, 0)
    yield "signal by pidfd", lambda: _by_pidfd(pid, lambda fd: signal.pidfd_send_signal(fd, 0))
    yield "signal the group", lambda: os.killpg(os.getpgid(pid), 0)
    yield "set a limit", lambda: resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    yield "set a priority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19)
    yield "set processors", lambda: os.sched_setaffinity(pid, {0})
    yield "set a scheduler", lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


def main() -> None:
    """Try everything with each process of the arguments."""
    for pid in map(int, sys.argv[1:]):
        tried = 0
        for name, attempt in _tries(pid):
            tried += 1
            try:
                attempt()
            except PermissionError:
                continue
            except OSError as error:
                print(f"{pid}: {name}: {error}")
            else:
                print(f"{pid}: {name}")
        print(f"{pid}: tried {tried}")


if __name__ == "__main__":
    main()
