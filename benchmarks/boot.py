"""
Machines in qemu, of which minit, BusyBox, s6 or systemd is the first program: the same kernel, memory and app.

The kernel executes a program that prints the time and becomes the init; the app prints the time at its first
instruction, and once the machine has come to rest, how much memory is in use. The time is taken again with a clock that
counts instructions, one in a nanosecond, which does not mind what else the measuring machine does. The root is in
memory, or on a disk, where only that of it takes memory which is in use. systemd is measured
twice: as it is, and with the daemons that do of minit's work what systemd itself does not, the log and the devices.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.bootimages import DISK_SUFFIX, make_disk, make_images
from benchmarks.table import Measure, compare
from tests.support.machine import X86_64
from tests.support.stage0_world import REPOSITORY

RUNS = 5
_MEMORY_RUNS = 2
_MEMORY_MIB = 256
_PEERS = REPOSITORY / "build/peers"
_MEMORY_TITLE = "memory in use, of 256 MiB"
_BOOT_SECONDS = 60.0
# Between these the least memory that boots is looked for, to this precision.
_LEAST_MIB, _MOST_MIB, _STEP_MIB = 60, 124, 2
# Of the kernel, when it has ended a process for want of memory.
_OUT_OF_MEMORY = b"Out of memory"

_Measure = Callable[[Path, Path], float]
# Title, unit, measure and number of runs.
_Table = tuple[str, str, _Measure, int]


def main() -> None:
    """Print the tables."""
    _compare(
        ("init to first app", "ms", _time, RUNS),
        *_WITH_GOALS,
        ("least memory that boots", "MiB", _least_memory, 1),
    )


def main_goals() -> None:
    """Print the tables that have goals, which take minutes instead of many."""
    _compare(*_WITH_GOALS)


def _compare(*tables: _Table) -> None:
    kernels = sorted(X86_64.directory.glob("**/vmlinuz-*"))
    if not kernels or not _PEERS.is_dir() or shutil.which(X86_64.qemu[0]) is None:
        print("\nboot: needs qemu, build/kernel and build/peers: make build/kernel build/peers")
        return
    root = Path(tempfile.mkdtemp(prefix="minit-bench-", dir="/var/tmp"))
    try:
        images = make_images(root, _PEERS)
        disks = {name: make_disk(image) for name, image in images.items()}
        for table in tables:
            _compare_one(kernels[-1], images, *table)
        _compare_one(kernels[-1], disks, f"{_MEMORY_TITLE}, root on a disk", "MiB", _memory, _MEMORY_RUNS)
    finally:
        shutil.rmtree(root)


def _compare_one(kernel: Path, images: dict[str, Path], title: str, unit: str, measure: _Measure, runs: int) -> None:
    measures: dict[str, Measure | str] = {
        name: lambda image=image: measure(kernel, image)  # type: ignore[misc]
        for name, image in images.items()
    }
    compare(title, unit, measures, runs)


def _time(kernel: Path, image: Path, *options: str) -> float:
    said = _boot(kernel, image, _MEMORY_MIB, "app", *options)
    return (said["app"] - said["start"]) / 1e6


def _counted_time(kernel: Path, image: Path) -> float:
    return _time(kernel, image, "-icount", "shift=0,sleep=off")


def _memory(kernel: Path, image: Path) -> float:
    return _boot(kernel, image, _MEMORY_MIB, "used")["used"] / 1024


def _image_size(_: Path, image: Path) -> float:
    return image.stat().st_size / (1 << 20)


_WITH_GOALS: tuple[_Table, ...] = (
    ("init to first app, 10⁹ instructions/s", "ms", _counted_time, 1),
    (_MEMORY_TITLE, "MiB", _memory, _MEMORY_RUNS),
    ("initial file system, gzip", "MiB", _image_size, 1),
)


def _least_memory(kernel: Path, image: Path) -> float:
    low, high = _LEAST_MIB, _MOST_MIB
    while high - low > _STEP_MIB:
        middle = (low + high) // 2
        low, high = (low, middle) if boot(kernel, image, middle, "used") else (middle, high)
    return high


def _boot(kernel: Path, image: Path, memory_mib: int, last: str, *options: str) -> dict[str, float]:
    said = boot(kernel, image, memory_mib, last, *options)
    if said is None:
        raise RuntimeError(f"{image.name} does not boot with {memory_mib} MiB")
    return said


def boot(kernel: Path, image: Path, memory_mib: int, last: str, *options: str) -> dict[str, float] | None:
    """
    Boot a machine, and return what it has printed when it prints `last`; None if it does not, or runs out of memory.

    `start` and `app` are nanoseconds of its clock, at the first instruction of each; `used` are kibibytes.
    """
    command = [*X86_64.qemu, "-nographic", "-no-reboot", "-nic", "none", "-accel", "tcg", "-m", str(memory_mib)]
    command += [*options, "-kernel", os.fspath(kernel), *_root(image, memory_mib)]
    said: dict[str, float] = {}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as qemu:
        assert qemu.stdout is not None
        until, data = time.monotonic() + _BOOT_SECONDS, b""
        while last not in said and _OUT_OF_MEMORY not in data and (left := until - time.monotonic()) > 0:
            readable, _, _ = select.select([qemu.stdout], [], [], left)
            more = os.read(qemu.stdout.fileno(), 1 << 16) if readable else b""
            if not more:
                break
            data += more
            for line in data.split(b"\n")[:-1]:
                # The firmware leaves the terminal in the middle of a line; minit puts the app's name before one.
                words = line.partition(b"bench ")[2].split()
                if len(words) == 2:
                    said[words[0].decode()] = float(words[1])
        qemu.kill()
    return said if last in said and _OUT_OF_MEMORY not in data else None


def _root(image: Path, memory_mib: int) -> list[str]:
    """Return the options for a root on a disk, or for one in memory, of which there is so much."""
    words = "console=ttyS0 quiet panic=-1"
    if image.suffix != DISK_SUFFIX:
        # As a ramfs the initial file system may take more than half of the memory, and can never be swapped out.
        words += " rootfstype=ramfs" if memory_mib < _MEMORY_MIB else ""
        return ["-initrd", os.fspath(image), "-append", f"{words} rdinit=/bench/start"]
    # Drivers for this one, and for its file system, are in the kernel.
    options = ["-drive", f"file={image},format=raw,if=none,id=root", "-device", "nvme,drive=root,serial=root"]
    return [*options, "-snapshot", "-append", f"{words} root=/dev/nvme0n1 rootwait rw init=/bench/start"]
