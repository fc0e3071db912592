"""
A disk of the session's own, an ext4 in memory: what tests write and delete waits for no device.

It is a disk rather than a tmpfs, so that overlays, attributes and owners are what they are on one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from minit.linux import syscalls
from tests.support.claims import claim

_AROUND = Path("/var/tmp")
_PREFIX = "minit-session-"
_SIZE = "8G"  # of which memory holds what is written


class OwnDisk:
    """The disk, to be at `path`; `claim` makes `around` this session's as long as somebody has it open."""

    def __init__(self) -> None:
        claimed = None
        while claimed is None:
            self.around = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_AROUND))
            claimed = claim(self.around)
        self.claim: int = claimed
        # Another directory: who sees this one mounted would look for the claim on the disk.
        self.path = self.around / "disk"
        self.path.mkdir()

    def mount(self) -> None:
        """Mount the disk for this process and those it starts; the directory of /var/tmp goes without if that fails."""
        image = self.path / "image"
        syscalls.mount("tmpfs", str(self.path), "tmpfs", 0)
        # Without a journal each new file looks at all inodes that were freed lately (recently_deleted() of ext4).
        make = ["mkfs.ext4", "-q", "-J", "size=64", "-E", "nodiscard", str(image), _SIZE]
        # The image is below what it is mounted on, so that one path is all there is.
        mount = ["mount", "-t", "ext4", "-o", "loop,noatime,discard", str(image), str(self.path)]
        with suppress(OSError, subprocess.CalledProcessError):
            for command in (make, mount):
                subprocess.run(command, check=True, capture_output=True)
            return
        syscalls.umount2(str(self.path), 0)

    def unmount(self) -> None:
        """Take it away with all that is on it; who still has something open there keeps that."""
        with suppress(OSError):
            while True:
                syscalls.umount2(str(self.path), syscalls.MNT_DETACH)


def remove_stale_disks() -> None:
    """Remove what is left of the disks of sessions that nobody is left of: their mounts have ended with them."""
    for around in _AROUND.glob(f"{_PREFIX}*"):
        fd = claim(around)
        if fd is not None:
            remove_disk(around)
            os.close(fd)


def remove_disk(around: Path) -> None:
    """Remove what a disk was mounted in, with what was written there for lack of one."""
    shutil.rmtree(around, ignore_errors=True)
