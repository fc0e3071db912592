"""Network namespaces that tests make for themselves: a "host" and pods."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from minit.linux import syscalls
from minit.supervisor.kernelsettings import bring_up_loopback

T = TypeVar("T")


@contextmanager
def own_network() -> Iterator[None]:
    """Put this process into a new network namespace, with `lo` up, and back into its own at the end."""
    before = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        bring_up_loopback()
        yield
    finally:
        syscalls.setns(before, syscalls.CLONE_NEWNET)
        os.close(before)


def make_network(path: Path) -> str:
    """Make a network namespace bound at `path`, which `remove_network` removes."""
    path.touch()
    with own_network():
        syscalls.mount("/proc/self/ns/net", str(path), None, syscalls.MS_BIND)
    return str(path)


def remove_network(path: str) -> None:
    """Take a namespace away, and the links in it as soon as nothing else uses it."""
    syscalls.umount2(path, syscalls.MNT_DETACH)
    os.unlink(path)


def within(path: str, function: Callable[[], T]) -> T:
    """Return what `function` does in the network namespace at `path`; sockets that it makes stay there."""
    before = os.open("/proc/self/ns/net", os.O_RDONLY)
    target = os.open(path, os.O_RDONLY)
    try:
        syscalls.setns(target, syscalls.CLONE_NEWNET)
        return function()
    finally:
        syscalls.setns(before, syscalls.CLONE_NEWNET)
        os.close(target)
        os.close(before)
