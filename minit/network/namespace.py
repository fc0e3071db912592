"""
The network namespace of a pod, which has a name on the host, as those of `ip netns` (ip-netns(8)).

The name is made of the pod's UUID: it is found even if nothing recorded it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from minit.base.errors import NetworkError, StrandedError, describe
from minit.linux import syscalls
from minit.podfiles.usersdirectory import network_namespaces, user_network

T = TypeVar("T")

_OWN = "/proc/self/ns/net"


def namespace_path(uuid: str) -> str:
    """Return where the network namespace of a pod is mounted."""
    return f"{network_namespaces()}/cni-{uuid}"


def make_namespace(path: str) -> None:
    """Make a network namespace and mount it at `path`; this process stays in its own namespace."""
    with own_namespace() as own:
        try:
            become_namespace(path)
        finally:
            return_to(own)


def become_namespace(path: str) -> None:
    """Make a network namespace, mount it at `path`, and leave this process in it."""
    try:
        _share_directory()
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0))
        syscalls.unshare(syscalls.CLONE_NEWNET)
        syscalls.mount(_OWN, path, None, syscalls.MS_BIND)
    except OSError as error:
        raise NetworkError(f"cannot make a network namespace: {describe(error)}") from error


@contextmanager
def own_namespace() -> Iterator[int]:
    """Open the network namespace of this process."""
    own = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield own
    finally:
        os.close(own)


def return_to(own: int) -> None:
    """Put this process back into the network namespace of a descriptor; StrandedError if the kernel refuses."""
    try:
        syscalls.setns(own, syscalls.CLONE_NEWNET)
    except OSError as error:
        raise StrandedError(f"cannot return to the host's network: {describe(error)}") from error


def remove_namespace(path: str) -> None:
    """Take the name from a network namespace, which ends with its last process; no error if it has no name."""
    try:
        syscalls.umount2(path, syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)
    except FileNotFoundError:
        return
    except OSError as error:
        # EINVAL: nothing is mounted, as after a reboot or an interrupted start.
        if error.errno != errno.EINVAL:
            raise
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def is_namespace(path: str) -> bool:
    """Tell whether `path` leads to a namespace: a mounted namespace, or a file of proc_pid_ns(5)."""
    try:
        return os.stat(path).st_dev == os.stat(_OWN).st_dev
    except OSError:
        return False


def is_own_namespace(path: str) -> bool:
    """Tell whether `path` leads to the network namespace of this process."""
    try:
        return os.path.samestat(os.stat(path), os.stat(_OWN))
    except OSError:
        return False


def _share_directory() -> None:
    """Make the directory a shared mount, so that an unmount there reaches other mount namespaces too."""
    path = network_namespaces()
    os.makedirs(path, 0o755, exist_ok=True)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # As ip(8) does: two processes that find no mount would mount the directory twice.
        fcntl.flock(directory, fcntl.LOCK_EX)
        try:
            syscalls.mount(None, path, None, syscalls.MS_SHARED | syscalls.MS_REC)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            syscalls.mount(path, path, None, syscalls.MS_BIND | syscalls.MS_REC)
            syscalls.mount(None, path, None, syscalls.MS_SHARED | syscalls.MS_REC)
    finally:
        os.close(directory)


def open_namespace(path: str) -> int:
    """Return a descriptor of the network namespace at `path`; FileNotFoundError if there is none."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        run_in_namespace(fd, bool)
    except OSError as error:
        os.close(fd)
        if error.errno != errno.EINVAL:
            raise
        # A reboot leaves the file that a namespace was bound on.
        raise FileNotFoundError(errno.ENOENT, "no network namespace", path) from error
    return fd


def run_in_namespace(namespace: int, function: Callable[[], T]) -> T:
    """Call `function` in the network namespace of a descriptor, return its result, and come back."""
    with own_namespace() as own:
        syscalls.setns(namespace, syscalls.CLONE_NEWNET)
        try:
            return function()
        finally:
            return_to(own)


def enter_user_network() -> None:
    """
    Put this process of a user without root into the network namespace with the bridges and rules of the user's pods.

    Where there is none any more, an empty new namespace has the place: nothing of the machine's network, which may have
    links of the same names, is meant. Nothing for root.
    """
    path = user_network()
    if path is None:
        return
    if not is_namespace(path):
        syscalls.unshare(syscalls.CLONE_NEWNET)
        return
    namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.setns(namespace, syscalls.CLONE_NEWNET)
    finally:
        os.close(namespace)
