"""
Machines in qemu, of which minit, BusyBox, s6 or systemd is the first program: the same kernel, memory and app.

The kernel executes a program that prints the time and becomes the init; the app prints the time at its first
instruction, and once the machine has come to rest, how much memory is in use. The time is taken again with a clock that
counts instructions, one in a nanosecond, which does not mind what else the measuring machine does. systemd is measured
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

from benchmarks.bootimages import make_images
from benchmarks.table import Measure, compare
from tests.support.machine import X86_64
from tests.support.stage0_world import REPOSITORY

RUNS = 5
_MEMORY_RUNS = 2
_MEMORY_MIB = 256
_PEERS = REPOSITORY / "build/peers"
_BOOT_SECONDS = 60.0
# Between these the least memory that boots is looked for, to this precision.
_LEAST_MIB, _MOST_MIB, _STEP_MIB = 60, 124, 2
# Of the kernel, when it has ended a process for want of memory.
_OUT_OF_MEMORY = b"Out of memory"


def main() -> None:
    """Print the tables."""
    _compare(
        ("init to first app", "ms", _time, RUNS),
        _COUNTED,
        ("memory in use, of 256 MiB", "MiB", _memory, _MEMORY_RUNS),
        ("least memory that boots", "MiB", _least_memory, 1),
        ("initial file system, gzip", "MiB", lambda _, image: image.stat().st_size / (1 << 20), 1),
    )


def main_counted() -> None:
    """Print the table that has a goal, which takes a minute instead of many."""
    _compare(_COUNTED)


def _compare(*tables: tuple[str, str, Callable[[Path, Path], float], int]) -> None:
    """Print tables of these titles, units, measures and numbers of runs."""
    kernels = sorted(X86_64.directory.glob("**/vmlinuz-*"))
    if not kernels or not _PEERS.is_dir() or shutil.which(X86_64.qemu[0]) is None:
        print("\nboot: needs qemu, build/kernel and build/peers: make build/kernel build/peers")
        return
    root = Path(tempfile.mkdtemp(prefix="minit-bench-", dir="/var/tmp"))
    try:
        images = make_images(root, _PEERS)
        for title, unit, measure, runs in tables:
            measures: dict[str, Measure | str] = {
                name: lambda image=image, measure=measure: measure(kernels[-1], image)  # type: ignore[misc]
                for name, image in images.items()
            }
            compare(title, unit, measures, runs)
    finally:
        shutil.rmtree(root)


def _time(kernel: Path, image: Path, *options: str) -> float:
    said = _boot(kernel, image, _MEMORY_MIB, "app", *options)
    return (said["app"] - said["start"]) / 1e6


def _counted_time(kernel: Path, image: Path) -> float:
    return _time(kernel, image, "-icount", "shift=0,sleep=off")


_COUNTED = ("init to first app, 10⁹ instructions/s", "ms", _counted_time, 1)


def _memory(kernel: Path, image: Path) -> float:
    return _boot(kernel, image, _MEMORY_MIB, "used")["used"] / 1024


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
    command = [
        *X86_64.qemu,
        "-nographic",
        "-no-reboot",
        "-nic",
        "none",
        "-accel",
        "tcg",
        "-m",
        str(memory_mib),
        *options,
    ]
    command += ["-kernel", os.fspath(kernel), "-initrd", os.fspath(image)]
    # As a ramfs the initial file system may take more than half of the memory.
    command += ["-append", "console=ttyS0 quiet panic=-1 rdinit=/bench/start rootfstype=ramfs"]
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
