"""
The advisory locks that stage0 programs share on rkt's data directory.

Every lock is a BSD flock(2) on a close-on-exec descriptor opened read-only, and is released when the last copy of the
descriptor is closed. A non-blocking call that meets a holder raises BlockingIOError.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from minit.base.errors import StoreError
from minit.stage0.files.durable import make_directory

_KEY_LOCK_RETRIES = 3  # as rkt's
_KEY_DIRECTORY_MODE = 0o660  # rkt's own choice for `locks`; only root, who needs no x bit, gets in
_KEY_FILE_MODE = 0o660


def flock(fd: int, *, exclusive: bool, blocking: bool = True) -> None:
    """Lock the open file `fd`, flock(2)."""
    operation = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    fcntl.flock(fd, operation if blocking else operation | fcntl.LOCK_NB)


def lock_directory(path: Path, *, exclusive: bool, blocking: bool = True) -> int:
    """Lock a directory and return the descriptor that holds the lock; the caller closes it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flock(fd, exclusive=exclusive, blocking=blocking)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def directory_lock(path: Path, *, exclusive: bool, blocking: bool = True) -> Iterator[int]:
    """Hold the lock of a directory for the length of a with block; yields the descriptor."""
    fd = lock_directory(path, exclusive=exclusive, blocking=blocking)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def key_lock(directory: Path, name: str, *, exclusive: bool, blocking: bool = True) -> Iterator[int]:
    """
    Hold the lock file `name` in `directory` for the length of a with block; yields the descriptor.

    File and directory are made when missing. Other processes may delete and recreate the file while this one waits: a
    lock on a deleted file excludes nobody, so the name is looked up again afterwards.
    """
    fd = _lock_key(directory, name, exclusive, blocking)
    try:
        yield fd
    finally:
        os.close(fd)


def drop_key_locks(directory: Path, is_needed: Callable[[str], bool]) -> None:
    """Remove the lock files in `directory` that nobody needs or holds any more."""
    for name in os.listdir(directory) if directory.exists() else []:
        if not is_needed(name):
            try:
                with key_lock(directory, name, exclusive=True, blocking=False):
                    if not is_needed(name):
                        (directory / name).unlink(missing_ok=True)
            except BlockingIOError:
                continue


def _lock_key(directory: Path, name: str, exclusive: bool, blocking: bool) -> int:
    path = directory / name
    for _ in range(1 + _KEY_LOCK_RETRIES):
        try:
            fd = _open_key(path)
        except FileNotFoundError:
            make_directory(directory, _KEY_DIRECTORY_MODE)
            fd = _open_key(path)
        try:
            flock(fd, exclusive=exclusive, blocking=blocking)
            if _is_still(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise StoreError(f"lock {path}: the file was replaced {1 + _KEY_LOCK_RETRIES} times while waiting; try again")


def _open_key(path: Path) -> int:
    # Without O_NONBLOCK a FIFO of the name would hold up everything.
    return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, _KEY_FILE_MODE)


def _is_still(path: Path, fd: int) -> bool:
    try:
        now = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(now, os.fstat(fd))
