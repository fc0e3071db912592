"""
Machines in qemu, of which minit, BusyBox, s6 or systemd is the first program: the same kernel, memory and app.

The kernel executes a program that prints the time and becomes the init; the app prints the time at its first
instruction, and once the machine has come to rest, how much memory is left. systemd is measured twice: as it is, and
with the daemons that do of minit's work what systemd itself does not, the log and the devices.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.bootimages import make_images
from benchmarks.table import Measure, compare
from tests.support.machine import KERNELS, QEMU
from tests.support.stage0_world import REPOSITORY

RUNS = 7
_MEMORY_MIB = 256
_PEERS = REPOSITORY / "build/peers"
_BOOT_SECONDS = 120.0
_MEMORY_RUNS = 3
# Between these the least memory that boots is looked for, to this precision.
_LEAST_MIB, _STEP_MIB = 24, 2


def main() -> None:
    """Print the tables."""
    kernels = sorted(KERNELS.glob("**/vmlinuz-*"))
    if not kernels or not _PEERS.is_dir() or shutil.which(QEMU) is None:
        print("\nboot: needs qemu, build/kernel and build/peers: make build/kernel build/peers")
        return
    root = Path(tempfile.mkdtemp(prefix="minit-bench-", dir="/var/tmp"))
    try:
        _measure(kernels[-1], make_images(root, _PEERS))
    finally:
        shutil.rmtree(root)


def _measure(kernel: Path, images: dict[str, Path]) -> None:
    def every(measure: str) -> dict[str, Measure | str]:
        return {name: partial(_figure, kernel, image, measure) for name, image in images.items()}

    compare(f"init to first app, {_MEMORY_MIB} MiB of memory", "ms", every("milliseconds"), RUNS)
    compare("memory in use after boot, without the kernel's own", "MiB", every("used"), _MEMORY_RUNS)
    least: dict[str, Measure | str] = {name: partial(_least_memory, kernel, image) for name, image in images.items()}
    compare("least memory that boots", "MiB", least, 1)


def _figure(kernel: Path, image: Path, name: str) -> float:
    figures = boot(kernel, image, _MEMORY_MIB, rests=name == "used")
    if figures is None:
        raise RuntimeError(f"{image.name} does not boot with {_MEMORY_MIB} MiB")
    return figures[name]


def _least_memory(kernel: Path, image: Path) -> float:
    low, high = _LEAST_MIB, _MEMORY_MIB
    while high - low > _STEP_MIB:
        middle = (low + high) // 2
        low, high = (low, middle) if boot(kernel, image, middle, rests=True) else (middle, high)
    return high


def boot(kernel: Path, image: Path, memory_mib: int, *, rests: bool) -> dict[str, float] | None:
    """
    Boot a machine until its app runs, or `rests`, and return what it printed; None if it does not come so far.

    `milliseconds` are those from the init's first instruction to the app's, `used` are mebibytes.
    """
    command = [QEMU, "-nographic", "-no-reboot", "-nic", "none", "-accel", "tcg", "-m", str(memory_mib)]
    command += ["-kernel", os.fspath(kernel), "-initrd", os.fspath(image)]
    command += ["-append", "console=ttyS0 quiet panic=-1 rdinit=/bench/start rootfstype=ramfs"]
    said: dict[str, float] = {}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as qemu:
        assert qemu.stdout is not None
        until, data = time.monotonic() + _BOOT_SECONDS, b""
        while "used" not in said and (rests or "app" not in said) and (left := until - time.monotonic()) > 0:
            readable, _, _ = select.select([qemu.stdout], [], [], left)
            more = os.read(qemu.stdout.fileno(), 1 << 16) if readable else b""
            if not more:
                break
            *lines, data = (data + more).split(b"\n")
            for line in lines:
                # The firmware leaves the terminal in the middle of a line; minit puts the app's name before one.
                words = line.partition(b"bench ")[2].split()
                if len(words) == 2:
                    said[words[0].decode()] = float(words[1])
        qemu.kill()
    if "app" not in said or (rests and "used" not in said):
        return None
    return {"milliseconds": (said["app"] - said["start"]) / 1e6, "used": said.get("used", 0.0) / 1024}
