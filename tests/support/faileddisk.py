"""Directories of a pod that are on a disk which takes nothing, until it is repaired."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from minit.linux import syscalls
from tests.support.forked import succeed_in_child

FAILURES = {"full": errno.ENOSPC, "no inodes": errno.ENOSPC, "read-only": errno.EROFS, "broken": errno.EIO}
_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, _IOR('X', 125, __u32)
_NO_LOG_FLUSH = 2
_BLOCK_BYTES = 4096


@contextmanager
def failed_disk(kind: str, pid: int, places: Sequence[str], scratch: Path, file: str) -> Iterator[None]:
    """Have PID 1 of a pod find its directories on such a disk in the block, with this file, and its own after it."""
    disk = scratch / f"disk-{kind.replace(' ', '-')}"
    disk.mkdir()
    _mount(kind, disk, scratch, file)
    trees = [syscalls.open_tree(syscalls.AT_FDCWD, str(disk), syscalls.OPEN_TREE_CLONE) for _ in places]
    syscalls.umount2(str(disk))
    namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)

    def cover() -> None:
        syscalls.setns(namespace, syscalls.CLONE_NEWNS)
        for tree, place in zip(trees, places):
            syscalls.move_mount(tree, syscalls.AT_FDCWD, "", place)
            try:
                Path(place, "try").write_text("x")
            except OSError as error:
                assert error.errno == FAILURES[kind], error
            else:
                raise AssertionError(f"{place} can be written")

    def uncover() -> None:
        syscalls.setns(namespace, syscalls.CLONE_NEWNS)
        for place in places:
            syscalls.umount2(place, syscalls.MNT_DETACH)

    try:
        succeed_in_child(cover)
        yield
        succeed_in_child(uncover)
    finally:
        for fd in (*trees, namespace):
            os.close(fd)


def _mount(kind: str, disk: Path, scratch: Path, file: str) -> None:
    if kind != "broken":
        # The directory has one of the inodes.
        room = f"size={_BLOCK_BYTES}" if kind == "full" else "nr_inodes=2"
        syscalls.mount("tmpfs", str(disk), "tmpfs", 0, room)
        (disk / file).touch()
    if kind == "full":
        (disk / "filler").write_bytes(bytes(_BLOCK_BYTES))
    elif kind == "read-only":
        syscalls.mount(None, str(disk), None, syscalls.MS_REMOUNT | syscalls.MS_RDONLY)
    elif kind == "broken":
        image = scratch / "image"
        with open(image, "wb") as empty:
            empty.truncate(1 << 20)
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, disk], check=True)
        (disk / file).touch()
        directory = os.open(disk, os.O_RDONLY)
        fcntl.ioctl(directory, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        os.close(directory)
