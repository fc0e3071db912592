"""
The ids of user namespaces: those that this one has, and ids of the host for pods with a user namespace, of processes,
and of files by idmapped mounts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from minit.base.errors import LaunchError, describe
from minit.base.idrange import SUBORDINATE_REMEDY, HeldIds, IdRange
from minit.linux import syscalls
from minit.linux.forks import USER_NAMESPACE_HOLDER, clone

_ALL_IDS = ["0", "0", str((1 << 32) - 1)]
_EVERY_RANGE = ((0, (1 << 32) - 1),)


def in_user_namespace() -> bool:
    """Tell whether this process is in another user namespace than the first, user_namespaces(7)."""
    # Not kept: the command enters such a namespace.
    with open("/proc/self/uid_map", encoding="ascii") as file:
        return file.read().split() != _ALL_IDS


def read_held_ids(process: int | str = "self") -> HeldIds | None:
    """
    Return the ids that the user namespace of a process has; None for every id, as in the first namespace.

    A process of another namespace than this one is of a pod with --private-users.
    """
    users, groups = (_read_map(f"/proc/{process}/{kind}_map") for kind in ("uid", "gid"))
    if users == groups == _EVERY_RANGE:
        return None
    is_own = os.path.samestat(os.stat(f"/proc/{process}/ns/user"), os.stat("/proc/self/ns/user"))
    with open(f"/proc/{process}/setgroups", encoding="ascii") as file:
        return HeldIds(
            users=users,
            groups=groups,
            sets_groups=file.read().strip() == "allow",
            remedy=SUBORDINATE_REMEDY if is_own else "the pod has no more ids, by --private-users",
        )


def _read_map(path: str) -> tuple[tuple[int, int], ...]:
    """Return the ranges of a map, in order, joined where one follows the other."""
    with open(path, encoding="ascii") as lines:
        found = sorted((int(first), int(count)) for first, _, count in map(str.split, lines))
    ranges: list[tuple[int, int]] = []
    for first, count in found:
        if ranges and sum(ranges[-1]) == first:
            first, count = ranges[-1][0], ranges.pop()[1] + count
        ranges.append((first, count))
    return tuple(ranges)


def map_ids(pid: int, mapped: IdRange) -> None:
    """Map the ids of a process's new user namespace; LaunchError if the kernel refuses."""
    try:
        for kind in ("uid", "gid"):
            with open(f"/proc/{pid}/{kind}_map", "w", encoding="ascii") as file:
                file.write(f"0 {mapped.shift} {mapped.count}\n")
    except OSError as error:
        raise LaunchError(f"failed to map the ids of --private-users={mapped}: {describe(error)}") from error


def open_user_namespace(mapped: IdRange) -> int:
    """Return a user namespace with a mapping of these ids, and without a process."""
    until, end = os.pipe()
    try:
        # The child waits in the new namespace until this process has opened the namespace, or has ended.
        pid, pidfd = clone(USER_NAMESPACE_HOLDER, lambda: _wait(until), {"pipe": until}, flags=syscalls.CLONE_NEWUSER)
    except OSError as error:
        # ENOSPC is of no disk: user.max_user_namespaces in sysctl(8) is reached.
        raise LaunchError(f"failed to make a user namespace: {describe(error)}") from error
    os.close(until)
    try:
        map_ids(pid, mapped)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(end)
        os.close(pidfd)
        os.waitpid(pid, 0)


@contextmanager
def idmapped(directory: str, mapped: IdRange) -> Iterator[int]:
    """
    Yield a detached mount of a directory, with the files' owners mapped: an id of the host is the same id in a pod.

    OSError if its filesystem cannot map owners.
    """
    namespace = open_user_namespace(mapped)
    try:
        tree = syscalls.open_tree(syscalls.AT_FDCWD, directory, syscalls.OPEN_TREE_CLONE)
    except BaseException:
        os.close(namespace)
        raise
    try:
        syscalls.mount_setattr(
            tree, set=syscalls.MOUNT_ATTR_IDMAP, user_namespace=namespace, propagation=syscalls.MS_PRIVATE
        )
        yield tree
    finally:
        os.close(tree)
        os.close(namespace)


def _wait(until: int) -> None:
    os.read(until, 1)
