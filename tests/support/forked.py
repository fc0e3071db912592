"""Doing something in a process of its own, which leaves no descriptors behind."""

from __future__ import annotations

import ctypes
import gc
import os
import traceback
from collections.abc import Callable

_HUGE_PAGE = 1 << 21
_MADV_COLLAPSE = 25  # madvise(2), since Linux 6.1


def in_child(action: Callable[[], object]) -> int:
    """Do something in a process of its own and return its pid; its exit code is 1 after an exception."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return pid


def succeed_in_child(action: Callable[[], object]) -> None:
    """Do something in a process of its own, which must not fail."""
    assert os.waitstatus_to_exitcode(os.waitpid(in_child(action), 0)[1]) == 0


def make_forks_cheap() -> None:
    """
    Make the memory of this process, which thousands of tests fill, cheap to fork.

    Huge pages have no tables that a fork copies. A child's garbage collection does not write to frozen objects, and so
    does not copy them. A page that this process writes while a child lives becomes small pages again.
    """
    gc.collect()
    gc.freeze()
    madvise = ctypes.CDLL(None).madvise
    with open("/proc/self/maps") as lines:
        mappings = [line.split() for line in lines]
    for addresses, rights, _offset, _device, inode, *name in mappings:
        start, end = (int(address, 16) for address in addresses.split("-"))
        start, end = -(-start // _HUGE_PAGE) * _HUGE_PAGE, end // _HUGE_PAGE * _HUGE_PAGE
        if "w" in rights and inode == "0" and name in ([], ["[heap]"]) and start < end:
            # Where the kernel cannot, forks cost more.
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_COLLAPSE)
