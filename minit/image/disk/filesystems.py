"""The file systems of a machine's disk, each in a file of its own, by programs of Debian: the same bytes each time."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from minit.image.toolchain import run_tool
from minit.value import Value

BLOCK_BYTES = 4096
# In the superblock of veritysetup, which is no part of what is hashed.
_UUID_OFFSET, _UUID_BYTES = 16, 16
_KIB = 1 << 10


class VerifiedRoot(Value):
    """A root with its hash tree behind it, in `path`; `root_hash` is of the tree, in hexadecimal, `blocks` of 4 KiB."""

    path: Path
    root_hash: str
    blocks: int


def make_root(root: Path, path: Path, built_seconds: int) -> VerifiedRoot:
    """
    Make a squashfs of a directory, with a hash tree for dm-verity.

    The tree's identifier is the first half of the root hash: by that the machine finds the root that belongs to its
    command line.
    """
    options = ["-noappend", "-no-progress", "-quiet", "-comp", "zstd", "-processors", "1", "-mkfs-time"]
    run_tool("mksquashfs", str(root), str(path), *options, str(built_seconds), environment={"SOURCE_DATE_EPOCH": None})
    size_bytes = -(-path.stat().st_size // BLOCK_BYTES) * BLOCK_BYTES
    os.truncate(path, size_bytes)
    file_of_hash = path.with_suffix(".hash")
    words = ["--salt=-", f"--uuid={uuid.UUID(int=0)}", f"--hash-offset={size_bytes}"]
    run_tool("veritysetup", "format", *words, f"--root-hash-file={file_of_hash}", str(path), str(path))
    root_hash = file_of_hash.read_text().strip()
    with path.open("r+b") as file:
        file.seek(size_bytes + _UUID_OFFSET)
        file.write(bytes.fromhex(root_hash)[:_UUID_BYTES])
    return VerifiedRoot(path=path, root_hash=root_hash, blocks=size_bytes // BLOCK_BYTES)


def make_boot(path: Path, size_bytes: int, program: Path, name: str, identifier: str, built_seconds: int) -> None:
    """Make a FAT32 that has a program with the name under which a firmware looks for it."""
    environment = {"SOURCE_DATE_EPOCH": str(built_seconds), "TZ": "UTC", "MTOOLS_SKIP_CHECK": "1"}
    number = identifier.replace("-", "")[:8]
    # --invariant keeps the time of now out of it.
    options = ["-F", "32", "-s", "1", "-n", "BOOT", "-i", number, "--invariant"]
    run_tool("mkfs.vfat", *options, "-C", str(path), str(size_bytes // _KIB), environment=environment)
    run_tool("mmd", "-i", str(path), "::/EFI", "::/EFI/BOOT", environment=environment)
    run_tool("mcopy", "-i", str(path), str(program), f"::/EFI/BOOT/{name}", environment=environment)


def make_data(path: Path, size_bytes: int, identifier: str, built_seconds: int) -> None:
    """Make an empty ext4 with the label `data`, which can grow some thousandfold."""
    with path.open("wb") as file:
        file.truncate(size_bytes)
    seed = uuid.uuid5(uuid.UUID(identifier), "seed")
    options = ["-q", "-b", str(BLOCK_BYTES), "-J", "size=8", "-m", "0", "-L", "data", "-U", identifier.lower()]
    options += ["-E", f"hash_seed={seed},root_owner=0:0,lazy_itable_init=1,lazy_journal_init=0,nodiscard"]
    environment: Mapping[str, str] = {"E2FSPROGS_FAKE_TIME": str(built_seconds)}
    run_tool("mkfs.ext4", *options, str(path), environment=environment)
