"""Small files: those of an administrator or of another program, and those that plugins leave to themselves."""

from __future__ import annotations

import os
import stat

from minit.base.errors import NetworkError
from minit.podfiles.boundedfile import read_bounded

_MAX_BYTES = 1 << 20
_NEW = ".new"
_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600


def read_file(path: str) -> bytes:
    """Return the content of a regular file; OSError if it cannot be read, NetworkError if it is something else."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NetworkError(f"{path}: expected a regular file")
    return read_bounded(fd, path, _MAX_BYTES)


def write_file(path: str, data: bytes, *, durable: bool = False) -> None:
    """
    Write a file that is never seen without its content, and its directory if there is none.

    A `durable` one is on the disk when this returns.
    """
    os.makedirs(os.path.dirname(path), _DIRECTORY_MODE, exist_ok=True)
    new = f"{path}{_NEW}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
    try:
        try:
            while data:
                data = data[os.write(fd, data) :]
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(new, path)
    except OSError:
        _unlink(new)
        raise


def remove_file(path: str) -> None:
    """Remove a file and what a writer was killed over; no error if there is neither."""
    _unlink(path)
    remove_leftover(path)


def remove_leftover(path: str) -> None:
    """Remove what a writer of this file was killed over."""
    _unlink(f"{path}{_NEW}")


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
