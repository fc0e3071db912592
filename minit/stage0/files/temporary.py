"""
Files and directories that are made under a temporary name: scratch directories of the stores, and outputs of the user.

A scratch directory is flocked by its user. A scratch directory without a lock was left by a process that died: the next
user of the same parent removes the directory. An output is made beside its place and renamed at the end, so that the
output is there whole or not at all, and nothing is replaced unless the user asks for that.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from minit.base.errors import StoreError
from minit.stage0.files.durable import disk_errors, make_directory, sync_directory
from minit.stage0.files.locks import directory_lock, lock_directory
from minit.stage0.files.untrusted import remove_content

# rkt's own temporary directory holds files of other programs too; only files with this prefix are minit's.
_PREFIX = "minit-"

_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755


@contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """Yield a new directory (mode 0700) in `parent`, which is made when missing; remove the directory at the end."""
    make_directory(parent, 0o770)
    # The parent is locked, lest another process collects the new directory between mkdir and flock.
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
    """Remove a directory, whatever a pod has left there; a mount point stays, with the directories above."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            remove_content(fd)
        finally:
            os.close(fd)
        os.rmdir(path)


@contextmanager
def output_file(path: Path, *, overwrite: bool, exists: str) -> Iterator[BinaryIO]:
    """Yield a file that becomes `path`, 0644, when the with block ends well; StoreError `exists` for an old file."""
    target = Path(os.path.realpath(path))
    if target.exists() and not overwrite:
        raise StoreError(exists)
    if target.exists() and not target.is_file():
        raise StoreError(f"cannot write {target}: not a regular file")
    with disk_errors(f"write {target}", target.parent, "write to another one"):
        fd, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with open(fd, "wb") as file:
                yield file
                file.flush()
                os.fchmod(fd, _FILE_MODE)
                os.fsync(fd)
            if target.exists() and not overwrite:
                raise StoreError(exists)
            os.rename(temporary, target)
            sync_directory(target.parent)
        except BaseException:
            os.unlink(temporary)
            raise


@contextmanager
def output_directory(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """
    Yield an empty directory, 0755, that becomes `path` when the with block ends well; parents are made.

    The old file goes only then. A mount below the old file is an error, and stays.
    """
    target = Path(os.path.abspath(path))
    if os.path.lexists(target) and not overwrite:
        raise StoreError("output directory exists (try --overwrite)")
    if os.path.lexists(target) and os.path.samestat(os.lstat(target), os.lstat("/")):
        raise StoreError("this would delete your root filesystem. Refusing.")
    with disk_errors(f"write {target}", target.parent, "write to another one"):
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            new, old = scratch / "new", scratch / "old"
            new.mkdir()
            new.chmod(_DIRECTORY_MODE)
            yield new
            if os.path.lexists(target):
                if not overwrite:
                    raise StoreError("output directory exists (try --overwrite)")
                os.rename(target, old)
            try:
                os.rename(new, target)
            except OSError:
                with suppress(FileNotFoundError):
                    os.rename(old, target)
                raise
            sync_directory(target.parent)
        finally:
            _remove_replaced(scratch)


def _remove_replaced(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        remove_content(fd)
    except OSError as error:
        raise StoreError(f"cannot remove what was replaced, it is in {directory} now: {error.strerror}") from error
    finally:
        os.close(fd)
    os.rmdir(directory)
