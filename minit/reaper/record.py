"""
Files that must be either old or new after any crash: `rkt/status/APP` and minit's own state beside that file.

A status file means to stage0 that the app has ended, so the file appears complete or not at all.
"""

from __future__ import annotations

import errno
import os

from minit.base import jsontext
from minit.podfiles import paths

_MODE = 0o644


def write_durably(path: str, data: bytes) -> None:
    """Replace the file at `path` so that a crash or power loss leaves the old or the new content."""
    _write_whole(path, data, is_durable=True)


def _write_whole(path: str, data: bytes, *, is_durable: bool = False) -> None:
    """Replace the file at `path` so that readers see the old or the new content."""
    directory, name = os.path.split(path)
    directory_fd = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        temporary = f".{name}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, _MODE, dir_fd=directory_fd)
        try:
            try:
                os.fchmod(fd, _MODE)
                while data:
                    data = data[os.write(fd, data) :]
                if is_durable:
                    os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
        except OSError as error:
            os.unlink(temporary, dir_fd=directory_fd)
            error.filename = path
            raise
        if is_durable:
            os.fsync(directory_fd)
    finally:
        os.close(directory_fd)


def write_file(path: str, data: bytes) -> None:
    """Write a file that may be lost with the machine: a marker, or a file that the next start writes anew."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
    try:
        # A disk that becomes full accepts a part.
        while data:
            data = data[os.write(fd, data) :]
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(fd)


def remove_file(path: str) -> None:
    """Remove a file that may be gone, also after stage0's removal in the overlay's upper directory."""
    try:
        os.unlink(path)
    except OSError as error:
        # The mount still knows such a file, and can write and read, but not remove the file.
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise


def record_exit(app: str, number: int) -> None:
    """Write the status of `app` for rkt; OSError if the file could not be made durable."""
    write_durably(paths.status_file(app), b"%d\n" % number)


def record_state(app: str, state: dict[str, object]) -> None:
    """Write minit's own record of how `app` ended; OSError as above."""
    write_durably(paths.state_file(app), jsontext.dump(state) + b"\n")


def note_state(app: str, state: dict[str, object]) -> None:
    """Write minit's own record of `app`, which readers see whole; a loss of power may lose the record."""
    _write_whole(paths.state_file(app), jsontext.dump(state) + b"\n")
