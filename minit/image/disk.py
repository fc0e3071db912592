"""
Disks that a firmware boots, and signed updates of these: the same bytes for the same parts and the same key.

A slot has one program of the firmware, a unified kernel image: the stub of Debian's systemd-boot-efi, which starts a
kernel with an initial file system and a command line. All three are added to the stub as sections (systemd-stub(7), and
Microsoft's "PE Format"); objcopy(1) can add sections only to programs of the architectures it was built for.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from minit.base.errors import ImageError
from minit.base.progress import Progress
from minit.base.value import Value
from minit.image.cpio import write_cpio
from minit.image.disklayout import ARCHITECTURES, DATA, DATA_BYTES, DiskLayout, EfiNames, plan_disk, sfdisk_script
from minit.image.kernelmodules import KernelModules
from minit.image.toolchain import require_tools, run_tool
from minit.manifest.machineconfig import Disk, Update, Watchdog
from minit.manifest.machineupdate import BLOCK_BYTES, UpdateManifest, UpdatePart, dump_update, make_header, signed_bytes
from minit.podfiles import paths

_SIGNATURE = b"PE\0\0"
_POINTER_TO_SIGNATURE = 0x3C
_FILE_HEADER_BYTES = 24  # with the signature
_SECTION = struct.Struct("<8sIIIIIIHHI")
# Offsets in the optional header, which are common to 32-bit and 64-bit programs.
_INITIALIZED_BYTES, _SECTION_ALIGNMENT, _FILE_ALIGNMENT, _IMAGE_BYTES, _HEADERS_BYTES, _CHECKSUM = 8, 32, 36, 56, 60, 64
_INITIALIZED_DATA_READABLE = 0x40000040
_PAGE_BYTES = 4096
_NAME_BYTES = 8

TOOLS = ("mksquashfs", "veritysetup", "mkfs.vfat", "mmd", "mcopy", "mkfs.ext4", "sfdisk")
ROOT_MODULES = ("dm_verity", "squashfs")
"""The kernel modules for the root, beside the modules of the disk's devices."""

_STUBS = "usr/lib/systemd/boot/efi"
_STEPS = 4
_CHUNK_BYTES = 1 << 16
_DIRECTORIES = ("dev", "proc", "sys", "root", "modules")
_BLOCK_BYTES = 4096
# In the superblock of veritysetup, which is not hashed.
_UUID_OFFSET, _UUID_BYTES = 16, 16
_KIB = 1 << 10

_SIGNER = Path(__file__).with_name("sign.py")
_UPDATE_STEPS = 3


def unified_kernel(stub: bytes, sections: Mapping[str, bytes], source: str) -> bytes:
    """Return the stub with `sections` added; ImageError, with the file `source`, if the program is no such stub."""
    try:
        return _with_sections(stub, sections)
    except (struct.error, ValueError) as error:
        raise ImageError(f"{source}: not a stub for a firmware (an .efi.stub)") from error


def _with_sections(stub: bytes, sections: Mapping[str, bytes]) -> bytes:
    (header,) = struct.unpack_from("<I", stub, _POINTER_TO_SIGNATURE)
    if stub[:2] != b"MZ" or stub[header : header + 4] != _SIGNATURE:
        raise ValueError
    (count,) = struct.unpack_from("<H", stub, header + 6)
    (optional_bytes,) = struct.unpack_from("<H", stub, header + 20)
    optional = header + _FILE_HEADER_BYTES
    table = optional + optional_bytes
    alignment, file_alignment = (_read(stub, optional + field) for field in (_SECTION_ALIGNMENT, _FILE_ALIGNMENT))
    if not alignment or not file_alignment:
        raise ValueError
    present = [_SECTION.unpack_from(stub, table + number * _SECTION.size) for number in range(count)]
    address = max(section[2] + section[1] for section in present)
    if table + (count + len(sections)) * _SECTION.size > _read(stub, optional + _HEADERS_BYTES):
        raise ValueError
    program = bytearray(stub)
    added = 0
    for number, (name, data) in enumerate(sections.items(), count):
        program += bytes(-len(program) % file_alignment)
        # The kernel may be started in place.
        address = _align(address, max(alignment, _PAGE_BYTES))
        size = _align(len(data), file_alignment)
        encoded = name.encode().ljust(_NAME_BYTES, b"\0")
        entry = (encoded, len(data), address, size, len(program), 0, 0, 0, 0, _INITIALIZED_DATA_READABLE)
        _SECTION.pack_into(program, table + number * _SECTION.size, *entry)
        program += data.ljust(size, b"\0")
        address += len(data)
        added += size
    struct.pack_into("<H", program, header + 6, count + len(sections))
    initialized = _read(stub, optional + _INITIALIZED_BYTES) + added
    struct.pack_into("<I", program, optional + _INITIALIZED_BYTES, initialized)
    struct.pack_into("<I", program, optional + _IMAGE_BYTES, _align(address, alignment))
    # Firmware checks only the checksum of drivers; 0 is no checksum.
    struct.pack_into("<I", program, optional + _CHECKSUM, 0)
    return bytes(program)


def _read(stub: bytes, offset: int) -> int:
    (value,) = struct.unpack_from("<I", stub, offset)
    assert isinstance(value, int)
    return value


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


class VerifiedRoot(Value):
    """A root followed by a hash tree, in `path`; `root_hash` of the tree is in hexadecimal, `blocks` are of 4 KiB."""

    path: Path
    root_hash: str
    blocks: int


class DiskParts(Value):
    """
    The parts of a disk, beside the root: `architecture` is appc's name, `modules` are loaded before there is a root,
    with `firmware` by names, and `stub` is the content of `stub_path`. The `watchdog` runs as soon as the modules are
    loaded, if one of the modules is the driver.
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
    """Return the names of an architecture; ImageError if the architecture is unknown, or programs are missing."""
    if architecture not in ARCHITECTURES:
        raise ImageError(f"no disk can be made for {architecture}: expected one of {', '.join(ARCHITECTURES)}")
    require_tools(TOOLS)
    return ARCHITECTURES[architecture]


def find_stub(names: EfiNames, package: Path) -> Path:
    """Return the stub that is unpacked beside a kernel, or is installed; ImageError for a missing stub."""
    places = [place / _STUBS / names.stub for place in (package, Path("/"))]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise ImageError(f"{places[-1]} is missing: Debian's package systemd-boot-efi for that processor has it")
    return found


class Slot(Value):
    """
    A version of a machine in files: the root, and the file system for the firmware in `boot`.

    The first `boot_used_bytes` have all data of `boot`. `layout` is the layout of a disk for both files.
    """

    root: VerifiedRoot
    boot: Path
    boot_used_bytes: int
    layout: DiskLayout
    built_seconds: int


def make_slot(root: Path, parts: DiskParts, scratch: Path, progress: Progress, steps: int) -> Slot:
    """Make a slot of the root in the directory `root`; `scratch` is an empty directory to work in."""
    names = parts.names
    built_seconds = int((root / paths.MACHINE_CONFIG.lstrip("/")).stat().st_mtime)
    progress("compressing the root", 0, steps)
    verified = _make_root(root, scratch / "root", built_seconds)
    progress("making the kernel's program", 1, steps)
    # By the word `gpt` a kernel uses the second copy of a table of partitions whose first copy was half written.
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
    _make_boot(scratch / "boot", boot.size_bytes, program, names.program, boot.identifier, built_seconds)
    return Slot(
        root=verified,
        boot=scratch / "boot",
        boot_used_bytes=_used_bytes(scratch / "boot"),
        layout=layout,
        built_seconds=built_seconds,
    )


def write_disk(file: IO[bytes], root: Path, parts: DiskParts, scratch: Path, progress: Progress) -> None:
    """Write a disk with the root in the directory `root`; `scratch` is an empty directory to work in."""
    slot = make_slot(root, parts, scratch, progress, _STEPS)
    layout = slot.layout
    progress("making file systems", 2, _STEPS)
    _make_data(scratch / DATA, DATA_BYTES, layout.partition(DATA).identifier, slot.built_seconds)
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
    """Return the used bytes of a file system with one program, and nothing behind the program."""
    used = offset = 0
    with path.open("rb") as file:
        while data := file.read(_CHUNK_BYTES):
            if data.count(0) != len(data):
                used = offset + len(data)
            offset += len(data)
    # The zeros that align the last section are a part of the program.
    return min(used + _CHUNK_BYTES, offset)


def _copy(source: Path, target: IO[bytes], offset: int) -> None:
    """Copy a file to an offset of another file; zeros stay holes."""
    with source.open("rb") as file:
        while data := file.read(_CHUNK_BYTES):
            if data.count(0) != len(data):
                target.seek(offset)
                target.write(data)
            offset += len(data)


def _make_root(root: Path, path: Path, built_seconds: int) -> VerifiedRoot:
    """
    Make a squashfs of a directory, with a hash tree for dm-verity.

    The identifier of the tree is the first half of the root hash, by which the machine finds the root of the kernel's
    command line.
    """
    options = ["-noappend", "-no-progress", "-quiet", "-comp", "zstd", "-processors", "1", "-mkfs-time"]
    run_tool("mksquashfs", str(root), str(path), *options, str(built_seconds), environment={"SOURCE_DATE_EPOCH": None})
    size_bytes = -(-path.stat().st_size // _BLOCK_BYTES) * _BLOCK_BYTES
    os.truncate(path, size_bytes)
    file_of_hash = path.with_suffix(".hash")
    words = ["--salt=-", f"--uuid={uuid.UUID(int=0)}", f"--hash-offset={size_bytes}"]
    run_tool("veritysetup", "format", *words, f"--root-hash-file={file_of_hash}", str(path), str(path))
    root_hash = file_of_hash.read_text().strip()
    with path.open("r+b") as file:
        file.seek(size_bytes + _UUID_OFFSET)
        file.write(bytes.fromhex(root_hash)[:_UUID_BYTES])
    return VerifiedRoot(path=path, root_hash=root_hash, blocks=size_bytes // _BLOCK_BYTES)


def _make_boot(path: Path, size_bytes: int, program: Path, name: str, identifier: str, built_seconds: int) -> None:
    """Make a FAT32 with a program, under the name that a firmware looks for."""
    environment = {"SOURCE_DATE_EPOCH": str(built_seconds), "TZ": "UTC", "MTOOLS_SKIP_CHECK": "1"}
    number = identifier.replace("-", "")[:8]
    # --invariant leaves out the present time.
    options = ["-F", "32", "-s", "1", "-n", "BOOT", "-i", number, "--invariant"]
    run_tool("mkfs.vfat", *options, "-C", str(path), str(size_bytes // _KIB), environment=environment)
    run_tool("mmd", "-i", str(path), "::/EFI", "::/EFI/BOOT", environment=environment)
    run_tool("mcopy", "-i", str(path), str(program), f"::/EFI/BOOT/{name}", environment=environment)


def _make_data(path: Path, size_bytes: int, identifier: str, built_seconds: int) -> None:
    """Make an empty ext4 with the label `data`, which can grow some thousandfold."""
    with path.open("wb") as file:
        file.truncate(size_bytes)
    seed = uuid.uuid5(uuid.UUID(identifier), "seed")
    options = ["-q", "-b", str(_BLOCK_BYTES), "-J", "size=8", "-m", "0", "-L", "data", "-U", identifier.lower()]
    options += ["-E", f"hash_seed={seed},root_owner=0:0,lazy_itable_init=1,lazy_journal_init=0,nodiscard"]
    environment: Mapping[str, str] = {"E2FSPROGS_FAKE_TIME": str(built_seconds)}
    run_tool("mkfs.ext4", *options, str(path), environment=environment)


def write_update(
    file: IO[bytes],
    root: Path,
    parts: DiskParts,
    update: Update,
    signing_key: Path,
    scratch: Path,
    progress: Progress,
) -> bytes:
    """
    Write an update with the root in the directory `root`, and return the public key of the signature.

    `scratch` is an empty directory to work in.
    """
    slot = make_slot(root, parts, scratch, progress, _UPDATE_STEPS)
    progress("writing the update", 2, _UPDATE_STEPS)
    boot_bytes = slot.layout.partition("boot-a").size_bytes
    manifest = dump_update(
        UpdateManifest(
            model=update.model,
            version=update.version,
            architecture=parts.architecture,
            root_hash=slot.root.root_hash,
            root_blocks=slot.root.blocks,
            root=_part(slot.root.path, slot.root.path.stat().st_size, slot.root.path.stat().st_size),
            boot=_part(slot.boot, slot.boot_used_bytes, boot_bytes),
        )
    )
    key, signature = sign(signing_key, signed_bytes(manifest))
    file.write(make_header(manifest, signature) + manifest)
    for path, size_bytes in ((slot.root.path, slot.root.path.stat().st_size), (slot.boot, slot.boot_used_bytes)):
        with path.open("rb") as part:
            while size_bytes:
                data = part.read(min(_CHUNK_BYTES, size_bytes))
                file.write(data)
                size_bytes -= len(data)
    return key


def sign(key: Path, data: bytes) -> tuple[bytes, bytes]:
    """Return the public key of a private key, and the signature of `data`; ImageError for an unusable key."""
    command = [sys.executable, "-I", "-B", str(_SIGNER), str(key)]
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        raise ImageError(f"cannot sign with {key}: {lines[-1]}")
    public, signature = done.stdout.split()
    return bytes.fromhex(public.decode()), bytes.fromhex(signature.decode())


def _part(path: Path, size_bytes: int, partition_bytes: int) -> UpdatePart:
    assert not size_bytes % BLOCK_BYTES
    digest = hashlib.sha512()
    with path.open("rb") as file:
        while size_bytes > file.tell():
            digest.update(file.read(min(_CHUNK_BYTES, size_bytes - file.tell())))
    return UpdatePart(size_bytes=size_bytes, sha512=digest.hexdigest(), partition_bytes=partition_bytes)
