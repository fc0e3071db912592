"""A machine of its own, emulated by qemu, for what the kernel that runs the tests cannot show."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.support.pods import BUSYBOX

QEMU = "qemu-system-x86_64"
# What `make test` unpacks there from a package of Debian.
KERNELS = Path(__file__).parents[2] / "build/kernel"
BOOT_SECONDS = 300
# On a busy host the emulated timer is too late for a kernel that tries it, and that gives up then.
KERNEL_WORDS = "console=ttyS0 quiet panic=-1 no_timer_check"
_MEMORY_MIB = 1024
# The first program runs in the initial file system, out of which no pivot_root(2) leads; so it moves everything.
_INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /new
mount -t tmpfs -o size=80% none /new
for name in /bin /machine; do cp -a $name /new; done
mkdir -p /new/dev /new/proc /new/sys /new/tmp /new/etc /new/run /new/var
exec switch_root /new /bin/sh /machine/start
"""
_START = """
mount -t devtmpfs none /dev
mount -t proc none /proc
mount -t sysfs none /sys
# The firmware has left the terminal in the middle of a line.
echo
sh /machine/script
poweroff -f
"""


def find_kernel() -> Path:
    """Return a kernel to boot, or skip the test."""
    kernels = sorted(KERNELS.glob("**/vmlinuz-*"))
    # What it runs is built for this machine.
    if os.uname().machine != "x86_64" or not kernels or shutil.which(QEMU) is None:
        pytest.skip("no qemu, or no kernel for it in build/kernel")
    return kernels[-1]


def run_on_machine(kernel: Path, directory: Path, script: str, work: Path) -> list[str]:
    """
    Boot a machine with one processor that has a directory at /machine, and return what a shell script said on it.

    It has no modules, no disk and no network. `work` is where its initial file system is made.
    """
    archive = work / "initial.cpio"
    with archive.open("wb") as file:
        for name in ("bin", "dev"):
            _add(file, name, stat.S_IFDIR | 0o755)
        _add(file, "dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
        _add(file, "bin/busybox", stat.S_IFREG | 0o755, BUSYBOX.read_bytes())
        _add(file, "init", stat.S_IFREG | 0o755, _INIT.encode())
        _add_tree(file, "machine", directory)
        _add(file, "machine/start", stat.S_IFREG | 0o644, _START.encode())
        _add(file, "machine/script", stat.S_IFREG | 0o644, script.encode())
        _add(file, "TRAILER!!!", 0)
    command = [QEMU, "-nographic", "-no-reboot", "-nic", "none", "-m", str(_MEMORY_MIB), "-accel", "tcg"]
    command += ["-kernel", str(kernel), "-initrd", str(archive), "-append", KERNEL_WORDS]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=BOOT_SECONDS, check=True)
    return done.stdout.decode(errors="replace").replace("\r", "").splitlines()


def _add_tree(file: BinaryIO, name: str, directory: Path) -> None:
    _add(file, name, directory.stat().st_mode)
    for path in _below(directory):
        status = path.lstat()
        content = b""
        if path.is_symlink():
            content = os.fsencode(os.readlink(path))
        elif stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        _add(file, f"{name}/{path.relative_to(directory)}", status.st_mode, content)


def _below(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)


def _add(file: BinaryIO, name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
    # The kernel's initramfs buffer format: the "newc" archive of cpio.
    encoded = os.fsencode(name) + b"\0"
    fields = [0, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(encoded), 0]
    header = b"070701" + b"".join(b"%08x" % field for field in fields)
    for part in (header + encoded, content):
        file.write(part + bytes(-len(part) % 4))
