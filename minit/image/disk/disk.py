"""Writes a disk that a firmware boots, of the root of a machine and a kernel: the same bytes for the same parts."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from typing import IO

from minit import paths
from minit.errors import ImageError
from minit.image.cpio import write_cpio
from minit.image.disk.filesystems import VerifiedRoot, make_boot, make_data, make_root
from minit.image.disk.layout import ARCHITECTURES, DATA, DATA_BYTES, DiskLayout, EfiNames, plan_disk, sfdisk_script
from minit.image.disk.unifiedkernel import unified_kernel
from minit.image.kernelmodules import KernelModules
from minit.image.toolchain import require_tools, run_tool
from minit.manifest.machineconfig import Disk, Watchdog
from minit.progress import Progress
from minit.value import Value

TOOLS = ("mksquashfs", "veritysetup", "mkfs.vfat", "mmd", "mcopy", "mkfs.ext4", "sfdisk")
ROOT_MODULES = ("dm_verity", "squashfs")
"""The kernel modules that the root needs, beside those of the disk's devices."""

_STUBS = "usr/lib/systemd/boot/efi"
_STEPS = 4
_CHUNK_BYTES = 1 << 16
_DIRECTORIES = ("dev", "proc", "sys", "root", "modules")


class DiskParts(Value):
    """
    What a disk is made of, beside the root: `architecture` is appc's name, `modules` are those that are loaded before
    there is a root, with their `firmware` by its names, and `stub` is what `stub_path` has. The `watchdog` runs from
    then on, if one of them is its driver.
    """

    disk: Disk
    architecture: str
    names: EfiNames
    kernel: bytes
    modules: KernelModules
    stub: bytes
    stub_path: Path
    firmware: tuple[tuple[str, bytes], ...] = ()
    watchdog: Watchdog | None = None


def check_disk(architecture: str) -> EfiNames:
    """Return the names of an architecture; ImageError if it is unknown, or programs are missing that make a disk."""
    if architecture not in ARCHITECTURES:
        raise ImageError(f"no disk can be made for {architecture}: expected one of {', '.join(ARCHITECTURES)}")
    require_tools(TOOLS)
    return ARCHITECTURES[architecture]


def find_stub(names: EfiNames, package: Path) -> Path:
    """Return the stub that is unpacked beside a kernel, or is installed; ImageError if it is neither."""
    places = [place / _STUBS / names.stub for place in (package, Path("/"))]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise ImageError(f"{places[-1]} is missing: Debian's package systemd-boot-efi for that processor has it")
    return found


class Slot(Value):
    """
    A version of a machine in files: its root, and the file system for the firmware in `boot`.

    All of that which is used is in its first `boot_used_bytes`. `layout` is that of a disk for both.
    """

    root: VerifiedRoot
    boot: Path
    boot_used_bytes: int
    layout: DiskLayout
    built_seconds: int


def make_slot(root: Path, parts: DiskParts, scratch: Path, progress: Progress, steps: int) -> Slot:
    """Make a slot of the root that the directory `root` has; `scratch` is an empty directory to work in."""
    names = parts.names
    built_seconds = int((root / paths.MACHINE_CONFIG.lstrip("/")).stat().st_mtime)
    progress("compressing the root", 0, steps)
    verified = make_root(root, scratch / "root", built_seconds)
    progress("making the kernel's program", 1, steps)
    # With the first, a kernel uses the second copy of a table of partitions whose first one was half written.
    words = f"gpt {parts.disk.command_line} minit.root_hash={verified.root_hash} minit.root_blocks={verified.blocks}"
    if parts.watchdog is not None:
        words += f" minit.watchdog={parts.watchdog.device}:{parts.watchdog.timeout_seconds}"
    sections = {
        ".cmdline": words.strip().encode() + b"\0",
        ".linux": parts.kernel,
        ".initrd": _initial_filesystem(root, parts, scratch / "initial", built_seconds),
    }
    program = scratch / names.program
    program.write_bytes(unified_kernel(parts.stub, sections, str(parts.stub_path)))
    layout = plan_disk(parts.disk, names, program.stat().st_size, verified.path.stat().st_size, seed=verified.root_hash)
    boot = layout.partition("boot-a")
    make_boot(scratch / "boot", boot.size_bytes, program, names.program, boot.identifier, built_seconds)
    return Slot(
        root=verified,
        boot=scratch / "boot",
        boot_used_bytes=_used_bytes(scratch / "boot"),
        layout=layout,
        built_seconds=built_seconds,
    )


def write_disk(file: IO[bytes], root: Path, parts: DiskParts, scratch: Path, progress: Progress) -> None:
    """Write a disk with the root that the directory `root` has; `scratch` is an empty directory to work in."""
    slot = make_slot(root, parts, scratch, progress, _STEPS)
    layout = slot.layout
    progress("making file systems", 2, _STEPS)
    make_data(scratch / DATA, DATA_BYTES, layout.partition(DATA).identifier, slot.built_seconds)
    progress("writing the disk", 3, _STEPS)
    file.truncate(layout.size_bytes)
    table = ["--quiet", "--no-reread", "--no-tell-kernel", "--wipe=never"]
    run_tool("sfdisk", *table, f"/proc/{os.getpid()}/fd/{file.fileno()}", standard_input=sfdisk_script(layout))
    for name, source in (("boot-a", slot.boot), ("root-a", slot.root.path), (DATA, scratch / DATA)):
        _copy(source, file, layout.partition(name).start_bytes)


def _initial_filesystem(root: Path, parts: DiskParts, scratch: Path, built_seconds: int) -> bytes:
    scratch.mkdir()
    for name in _DIRECTORIES:
        (scratch / name).mkdir()
    opener = root / paths.MACHINE_POD.lstrip("/") / paths.POD_STAGE1_ROOTFS / paths.MACHINE_ROOT_OPENER
    if not opener.exists():
        raise ImageError(f"the stage1 image has no /{paths.MACHINE_ROOT_OPENER}: it cannot boot from a disk")
    shutil.copyfile(opener, scratch / "init")
    (scratch / "init").chmod(0o755)
    modules = parts.modules.modules
    (scratch / "modules/order").write_text("".join(f"{module.name}\n" for module in modules))
    for module in modules:
        (scratch / f"modules/{module.name}.ko").write_bytes(module.data)
    for name, data in parts.firmware:
        path = scratch / paths.MACHINE_FIRMWARE.lstrip("/") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for path in (scratch, *scratch.rglob("*")):
        os.utime(path, (built_seconds, built_seconds))
    archive = scratch.with_suffix(".cpio")
    with archive.open("wb") as file:
        write_cpio(scratch, file)
    return gzip.compress(archive.read_bytes(), mtime=0)


def _used_bytes(path: Path) -> int:
    """Return how much of a file system is used that has one program in it, and nothing behind that."""
    used = offset = 0
    with path.open("rb") as file:
        while data := file.read(_CHUNK_BYTES):
            if data.count(0) != len(data):
                used = offset + len(data)
            offset += len(data)
    # The zeros at a program's end, which align its last section, are a part of it.
    return min(used + _CHUNK_BYTES, offset)


def _copy(source: Path, target: IO[bytes], offset: int) -> None:
    """Copy a file to an offset of another, whose zeros stay holes."""
    with source.open("rb") as file:
        while data := file.read(_CHUNK_BYTES):
            if data.count(0) != len(data):
                target.seek(offset)
                target.write(data)
            offset += len(data)
