"""
Scratch directories of the stores, which outlive neither a failure nor, for long, a killed process.

Each is flocked by its user. One that nobody holds was left by a process that died: the next user of the same
parent removes it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minit.stage0.files.durable import make_directory
from minit.stage0.files.emptying import remove_content
from minit.stage0.files.locks import directory_lock, lock_directory

# rkt's own temporary directory holds other programs' files too; only this prefix is ours.
_PREFIX = "minit-"


@contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """Yield a new directory (mode 0700) in `parent`, which is made when missing; remove it at the end."""
    make_directory(parent, 0o770)
    # The parent is locked, lest somebody collects the new directory between mkdir and flock.
    with directory_lock(parent, exclusive=True):
        _collect_leftovers(parent)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = lock_directory(path, exclusive=True)
    try:
        yield path
    finally:
        _remove(path)
        os.close(lock)


def collect_leftovers(parent: Path) -> None:
    """Remove the scratch directories in `parent` whose users have died; nothing if there is no such directory."""
    with suppress(FileNotFoundError), directory_lock(parent, exclusive=True):
        _collect_leftovers(parent)


def _collect_leftovers(parent: Path) -> None:
    for path in parent.glob(_PREFIX + "*"):
        try:
            with directory_lock(path, exclusive=True, blocking=False):
                _remove(path)
        except (BlockingIOError, FileNotFoundError):
            continue


def _remove(path: Path) -> None:
    """Remove a directory, whatever a pod has left in it; a mount point in it stays, with what leads to it."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            remove_content(fd)
        finally:
            os.close(fd)
        os.rmdir(path)
