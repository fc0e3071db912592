"""Machines of their own, emulated by qemu, for what the kernel that runs the tests cannot show."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from minit.base.value import Value
from minit.image.foreign import ARM64
from tests.support.pods import BUSYBOX

BOOT_SECONDS = 300
_BUILD = Path(__file__).parents[2] / "build"
_FIRMWARE = _BUILD / "firmware/usr"
_STUBS = "lib/systemd/boot/efi"
_MEMORY_MIB = 1024


class Processor(Value):
    """
    A processor of machines in qemu, by uname(2)'s name and appc's.

    `qemu` are the program and the options that all its machines have, `power_button` those of one that has such a
    button. `words` are for the kernel. What is plugged in while a machine runs is on `hotplug_bus`. `directory` has
    the unpacked package of a kernel. `firmware` are files of its code and its variables, `stub` is what it starts.
    """

    name: str
    appc_name: str
    qemu: tuple[str, ...]
    words: str
    directory: Path
    hotplug_bus: str
    firmware: tuple[Path, Path]
    stub: Path
    power_button: tuple[str, ...] = ()


X86_64 = Processor(
    name="x86_64",
    appc_name="amd64",
    qemu=("qemu-system-x86_64",),
    # On a busy host the emulated timer is too late for a kernel that tries it, and that gives up then.
    words="console=ttyS0 no_timer_check",
    directory=_BUILD / "kernel",
    hotplug_bus="pci.0",
    firmware=(_FIRMWARE / "share/OVMF/OVMF_CODE_4M.fd", _FIRMWARE / "share/OVMF/OVMF_VARS_4M.fd"),
    stub=_FIRMWARE / _STUBS / "linuxx64.efi.stub",
)
AARCH64 = Processor(
    name="aarch64",
    appc_name="aarch64",
    qemu=(*ARM64.qemu, "-device", "pcie-root-port,id=socket"),
    words=f"console={ARM64.console}",
    directory=_BUILD / "arm64",
    hotplug_bus="socket",
    # Of Debian's qemu-efi-aarch64, which is for whatever processor emulates a machine.
    firmware=(Path("/usr/share/AAVMF/AAVMF_CODE.fd"), Path("/usr/share/AAVMF/AAVMF_VARS.fd")),
    stub=_BUILD / "arm64/kernel/usr" / _STUBS / "linuxaa64.efi.stub",
    # A firmware with ACPI: to the kernel without one it is a key, and that kernel has no driver for keys.
    power_button=("-bios", "/usr/share/qemu-efi-aarch64/QEMU_EFI.fd"),
)


class Kernel(Value):
    """A kernel to boot, and the unpacked package with its modules."""

    path: Path
    modules: Path
    processor: Processor

    def command(self, words: str = "") -> list[str]:
        """Return the beginning of a command of qemu that boots it, with words of the kernel's command line."""
        command = [*self.processor.qemu, "-accel", "tcg", "-no-reboot", "-kernel", str(self.path)]
        return [*command, "-append", f"{self.processor.words} quiet panic=-1 {words}".strip()]


class Firmware(Value):
    """A firmware that boots from a disk, as a file of its code and one of its variables."""

    code: Path
    variables: Path
    processor: Processor

    def command(self, words: str = "") -> list[str]:
        """Return the beginning of a command of qemu that starts it; the words for the kernel are on the disk."""
        assert not words
        flash = "if=pflash,format=raw"
        command = [
            *self.processor.qemu,
            "-accel",
            "tcg",
            "-no-reboot",
            "-drive",
            f"{flash},readonly=on,file={self.code}",
        ]
        return [*command, "-drive", f"{flash},file={self.variables}"]


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


HERE = next((processor for processor in (X86_64, AARCH64) if processor.name == os.uname().machine), None)
"""That of the machine that runs the tests."""
NO_KERNEL = "no qemu, or no kernel for it in build/kernel"
NO_ARM64_KERNEL = "no qemu-system-aarch64, or no kernel and disk for it in build/arm64"


def find_kernel(processor: Processor | None = HERE) -> Kernel:
    """Return a kernel to boot; skip the test if there is none."""
    kernels = [] if processor is None else sorted(processor.directory.glob("**/boot/vmlinuz-*"))
    if processor is None or not kernels or shutil.which(processor.qemu[0]) is None:
        pytest.skip(NO_ARM64_KERNEL if processor is AARCH64 else NO_KERNEL)
    return Kernel(path=kernels[-1], modules=kernels[-1].parents[1], processor=processor)


def run_on_machine(kernel: Kernel, directory: Path, script: str, work: Path) -> list[str]:
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
    command = [*kernel.command(), "-nographic", "-nic", "none", "-m", str(_MEMORY_MIB), "-initrd", str(archive)]
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
