"""
A disk of the session's own, an ext4 in memory: what tests write and delete waits for no device, nor for its journal.

It is a disk rather than a tmpfs, so that overlays, attributes and owners are what they are on one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from minit import syscalls

_AROUND = Path("/var/tmp")
_PREFIX = "minit-test-"
_SIZE = "8G"  # of which memory holds what is written


class OwnDisk:
    """The disk, mounted at `path` for this process and those it starts; a directory of /var/tmp if that fails."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_AROUND))
        image = self.path / "image"
        syscalls.mount("tmpfs", str(self.path), "tmpfs", 0)
        make = ["mkfs.ext4", "-q", "-O", "^has_journal", "-E", "nodiscard", str(image), _SIZE]
        # The image is below what it is mounted on, so that one path is all there is.
        mount = ["mount", "-t", "ext4", "-o", "loop,noatime,discard", str(image), str(self.path)]
        with suppress(OSError, subprocess.CalledProcessError):
            for command in (make, mount):
                subprocess.run(command, check=True, capture_output=True)
            return
        syscalls.umount2(str(self.path), 0)

    def remove(self) -> None:
        """Take it away with all that is on it; who still has something open there keeps that."""
        with suppress(OSError):
            while True:
                syscalls.umount2(str(self.path), syscalls.MNT_DETACH)
        shutil.rmtree(self.path)


def remove_stale_disks() -> None:
    """Remove what is left of the disks of processes that were killed: their mounts have ended with them."""
    for path in _AROUND.glob(f"{_PREFIX}*-*"):
        if not Path("/proc", path.name.split("-")[2]).exists():
            with suppress(OSError):
                path.rmdir()
