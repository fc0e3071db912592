"""
Memory that is compressed: a swap device in memory, by the kernel's zram, and what is cold written to it.

Most of a root in memory is never read again once the apps run, and so is much of what a process has set up. The
kernel's Documentation/admin-guide/blockdev/zram.rst and cgroup-v2.rst (memory.reclaim) have the files that are used.
"""

from __future__ import annotations

import errno
import os
import struct
import time

from minit.base.errors import describe
from minit.launcher.cgroups import write_group_file
from minit.linux import syscalls
from minit.linux.stdio import complain_at_once
from minit.machine.modules import Modules
from minit.machine.mounts import CGROUPS
from minit.manifest.machineconfig import Swap

_DEVICE = "/dev/zram0"
_SETTINGS = "/sys/block/zram0"
# A third of zstd's work for a quarter more memory. Kernels that are built without it have LZ4 by default.
_ALGORITHM = "lzo-rle"
# As linux/swap.h has it, behind 1 KiB that are left to others: version, last page; the magic ends the first page.
_HEADER = struct.Struct("1024x2I")
_VERSION = 1
_MAGIC = b"SWAPSPACE2"
# When the apps have started, and a machine has come to rest.
_REST_SECONDS = 3.0
_TMPFS = 0x01021994  # linux/magic.h
# At once: PID 1 asks meanwhile whether the helper hangs.
_STEP_BYTES = 4 << 20


class CompressedSwap:
    """
    Turns swap on at `deadline`, of the monotonic clock, then has the kernel write out as much as the root takes.

    A root that is not in a tmpfs cannot be written out: then it is the kernel's matter alone what is, and when.
    """

    def __init__(self, swap: Swap, modules: Modules) -> None:
        self._swap = swap
        self._modules = modules
        self._left_bytes: int | None = None
        self.deadline: float | None = time.monotonic() + _REST_SECONDS

    def filenos(self) -> list[int]:
        """Return the descriptors that it waits for: none."""
        return []

    def turn(self) -> None:
        """Do the next step if it is due; what fails is said once, and left."""
        if self.deadline is None or time.monotonic() < self.deadline:
            return
        self.deadline = None
        try:
            if self._left_bytes is None:
                _turn_on(self._swap.size_mib << 20, self._modules)
                self._left_bytes = _root_bytes()
            else:
                write_group_file(f"{CGROUPS}/memory.reclaim", str(min(_STEP_BYTES, self._left_bytes)))
                self._left_bytes -= _STEP_BYTES
        except OSError as error:
            # There is no more, or a kernel before 5.19, which writes out what it likes when memory is short.
            if self._left_bytes is None or error.errno not in (errno.EAGAIN, errno.ENOENT):
                complain_at_once(f"minit: swap: {describe(error)}")
        else:
            self.deadline = time.monotonic() if self._left_bytes > 0 else None


def _turn_on(size_bytes: int, modules: Modules) -> None:
    # The kernel would call modprobe for it.
    modules.load_for([f"crypto-{_ALGORITHM}"])
    modules.load("zram")
    try:
        write_group_file(f"{_SETTINGS}/comp_algorithm", _ALGORITHM)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    write_group_file(f"{_SETTINGS}/disksize", str(size_bytes))
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    header = _HEADER.pack(_VERSION, size_bytes // page_bytes - 1)
    device = os.open(_DEVICE, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(device, header.ljust(page_bytes - len(_MAGIC), b"\0") + _MAGIC)
        os.fsync(device)
    finally:
        os.close(device)
    syscalls.swapon(_DEVICE)


def _root_bytes() -> int:
    """Return how much the root takes of a tmpfs, 0 for a root elsewhere."""
    if syscalls.filesystem_type("/") != _TMPFS:
        return 0
    status = os.statvfs("/")
    return (status.f_blocks - status.f_bfree) * status.f_frsize
