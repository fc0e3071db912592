"""The processes of a PID namespace, seen from a namespace around it in /proc, pid_namespaces(7)."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

_READ_BYTES = 4096
_LIST_BYTES = 1 << 20
# Of proc_pid_stat(5), counted behind the name.
_STATE, _PARENT, _THREADS = 0, 4 - 3, 20 - 3
_DEAD = (b"Z", b"X")
_NS_GET_PARENT = 0xB702  # linux/nsfs.h


def members_of(init: int, namespace: int) -> list[int]:
    """
    Return the living processes of the namespace with the inode number `namespace`, but for the first process `init`.

    Processes of namespaces inside are members too.
    """
    # Processes that fork and end all the time may be missing from a list of /proc, but one of them is always a child of
    # the first process.
    members = set(children_of(init))
    inside = {init, *members}
    # By the inode number: whether a namespace is this one, or inside. A command that enters has its parent outside.
    known = {namespace: True}
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == init:
            continue
        # Of processes of others nobody may see the namespace.
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            fields = read_stat(int(name))
            if int(fields[_PARENT]) in inside or _is_within(f"/proc/{name}/ns/pid", namespace, known):
                inside.add(int(name))
                if fields[_STATE] not in _DEAD or int(fields[_THREADS]) > 1:
                    members.add(int(name))
    return sorted(members)


def _is_within(path: str, namespace: int, known: dict[int, bool]) -> bool:
    """Tell whether a PID namespace is `namespace`, or inside of it, ioctl_nsfs(2); `known` is what was found before."""
    own = os.stat(path).st_ino
    if own not in known:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        is_within = False
        try:
            # Of a namespace around the one of this process the kernel says nothing.
            with suppress(PermissionError):
                while not is_within:
                    parent = fcntl.ioctl(fd, _NS_GET_PARENT)
                    os.close(fd)
                    fd = parent
                    is_within = os.fstat(fd).st_ino == namespace
        finally:
            os.close(fd)
        known[own] = is_within
    return known[own]


def children_of(pid: int) -> list[int]:
    """Return the children of a process without threads; none of a kernel that does not list them."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return [*map(int, _read(f"/proc/{pid}/task/{pid}/children", _LIST_BYTES).split())]
    return []


def read_stat(pid: int) -> list[bytes]:
    """Return the fields of proc_pid_stat(5) behind the name; FileNotFoundError or ProcessLookupError if it is gone."""
    return _read(f"/proc/{pid}/stat", _READ_BYTES).rpartition(b") ")[2].split()


def _read(path: str, size_bytes: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, size_bytes)
    finally:
        os.close(fd)
