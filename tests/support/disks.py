"""Disks of machines: file systems in files, looked at without a kernel."""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path


def make_disk(path: Path, label: str, size_mib: int = 32, tree: Path | None = None) -> Path:
    """Make an ext4 in a file, with what a directory has."""
    with path.open("wb") as file:
        file.truncate(size_mib << 20)
    source: list[str | Path] = [] if tree is None else ["-d", tree]
    subprocess.run(["mkfs.ext4", "-q", "-L", label, *source, path], check=True)
    return path


def assert_clean(disk: Path) -> None:
    """AssertionError unless the file system is without faults, and was unmounted."""
    done = subprocess.run(["e2fsck", "-fn", disk], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "Filesystem state:         clean" in _read_superblock(disk)
    assert "needs_recovery" not in _read_superblock(disk)


def replay_journal(disk: Path) -> None:
    """Do what a kernel does first with a file system that was cut off; AssertionError if that leaves a fault."""
    done = subprocess.run(["e2fsck", "-fp", disk], capture_output=True, text=True)
    # e2fsck(8): 1 is that it has corrected something, which the journal alone has to do.
    assert done.returncode in (0, 1), done.stdout
    assert_clean(disk)


def read_disk(disk: Path, path: str) -> bytes:
    """Return a file of the file system."""
    done = subprocess.run(["debugfs", "-R", f"cat {path}", disk], check=True, capture_output=True)
    assert b"File not found" not in done.stderr, path
    return done.stdout


def list_disk(disk: Path, path: str) -> list[str]:
    """Return the names in a directory of the file system, sorted."""
    done = subprocess.run(["debugfs", "-R", f"ls -p {path}", disk], check=True, capture_output=True, text=True)
    names = (line.split("/")[5] for line in done.stdout.splitlines() if line)
    return sorted(set(names) - {".", "..", "lost+found"})


def _read_superblock(disk: Path) -> str:
    return subprocess.run(["dumpe2fs", "-h", disk], check=True, capture_output=True, text=True).stdout


def find_partition(disk: Path, name: str) -> tuple[int, int]:
    """Return where a partition of a disk begins, and its size, in bytes."""
    done = subprocess.run(["sfdisk", "--json", disk], check=True, capture_output=True, text=True)
    found = {part["name"]: part for part in json.loads(done.stdout)["partitiontable"]["partitions"]}
    return found[name]["start"] * 512, found[name]["size"] * 512


def read_section(program: Path, name: str) -> bytes:
    """Return a section of a firmware's program; objcopy(1) reads those of its own processor alone."""
    data = program.read_bytes()
    (header,) = struct.unpack_from("<I", data, 0x3C)
    count, optional_bytes = struct.unpack_from("<6xH12xH", data, header)
    table = data[header + 24 + optional_bytes :]
    for found, size_bytes, start in struct.iter_unpack("<8sI8xI16x", table[: 40 * count]):
        if found.rstrip(b"\0") == name.encode():
            return data[start : start + size_bytes]
    raise AssertionError(f"no {name} in {program}")
