"""Facts of the host's /proc about a process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_OVERFLOW_UID = 65534  # user_namespaces(7)


def status_of(pid: int) -> dict[str, str]:
    """Return the fields of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def descriptors_of(pid: int) -> dict[int, str]:
    """Return the open descriptors of a process and what they are."""
    targets = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        # One of them was the listing's own, if the process is this one.
        with suppress(FileNotFoundError):
            targets[int(fd)] = os.readlink(f"/proc/{pid}/fd/{fd}")
    return targets


def copy_descriptor(pid: int, fd: int) -> int:
    """Return a descriptor of this process for what another one has open."""
    pidfd = os.pidfd_open(pid)
    copy: int = ctypes.CDLL(None).syscall(438, pidfd, fd, 0)  # pidfd_getfd(2)
    os.close(pidfd)
    assert copy >= 0
    return copy


def children_of(pid: int) -> list[int]:
    """Return the children of a single-threaded process."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    # While one of them ends, others may be left out, proc_pid_task(5).
    before, children = None, path.read_text()
    while before != children:
        before, children = children, path.read_text()
    return [int(child) for child in children.split()]


def named(pids: Iterable[int], *names: str) -> list[int]:
    """Return those of the processes that have one of these names, without any that ends meanwhile."""
    found = []
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            if status_of(pid)["Name"] in names:
                found.append(pid)
    return found


def program_of(pid: int) -> tuple[int, int] | None:
    """Return device and inode of the program of a process, None if the process has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        status = os.stat(f"/proc/{pid}/exe")
        return status.st_dev, status.st_ino
    return None


def programs_of_readers(supervisor: int) -> dict[int, tuple[int, int] | None]:
    """Return the programs of the spawner and the sidecars of a pod."""
    found = {}
    for pid in children_of(supervisor):
        with suppress(FileNotFoundError, ProcessLookupError):
            if status_of(pid)["Name"].startswith(("iottymux-", "minit-spawner")):
                found[pid] = program_of(pid)
    return found


def namespace_of(pid: int | str, kind: str) -> str:
    """Return the identity of a namespace of a process."""
    return os.readlink(f"/proc/{pid}/ns/{kind}")


def own_processes() -> set[int]:
    """Return the living processes of users that this user namespace has, but for this one."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError):
            if os.stat(f"/proc/{name}").st_uid != _OVERFLOW_UID and is_alive(int(name)):
                found.add(int(name))
    return found - {os.getpid()}


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return not status_of(pid)["State"].startswith("Z")
    except (FileNotFoundError, ProcessLookupError):
        return False


def control_groups_of(pid: int) -> dict[str, str]:
    """Return the path of a process in each hierarchy, by controllers; "" is the unified one."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return {names: path for _, names, path in (line.split(":", 2) for line in lines)}
