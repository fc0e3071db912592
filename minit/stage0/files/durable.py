"""Files and directories that survive a crash whole or not at all, and messages about a failing disk."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minit.base.errors import StoreError, describe, reason_of

_FULL = (errno.ENOSPC, errno.EDQUOT)
_ANOTHER = "use another one (--dir)"


def make_directory(path: Path, mode: int) -> None:
    """
    Make `path` with exactly `mode`, and parents likewise; an existing directory stays unchanged.

    An inherited set-group-ID bit stays: packages of hosts mark rkt's directories so.
    """
    try:
        try:
            os.mkdir(path, 0o700)
        except FileNotFoundError:
            make_directory(path.parent, mode)
            # Where nothing can be made, as in /proc, this is FileNotFoundError again.
            os.mkdir(path, 0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    os.chmod(path, mode | (os.stat(path).st_mode & stat.S_ISGID))


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def create_file(path: Path, data: bytes, mode: int) -> None:
    """Write a new file with exactly `mode` and make the content durable; FileExistsError for an existing file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(fd, "wb") as file:
        os.fchmod(fd, mode)
        file.write(data)
        file.flush()
        os.fsync(fd)


def move_into_place(source: Path, target: Path) -> None:
    """Rename `source`, which must be durable, over `target` and make the new name durable."""
    os.rename(source, target)
    sync_directory(target.parent)


def remove_file(path: Path) -> None:
    """Remove a file for good; no error if there is none."""
    with suppress(FileNotFoundError):
        os.unlink(path)
        sync_directory(path.parent)


@contextmanager
def disk_errors(action: str, place: Path, remedy: str = _ANOTHER) -> Iterator[None]:
    """
    Turn an OSError of the with block, which does `action` on the file system of `place`, into a StoreError.

    A file that the error names may be on another file system; files below `place` often are.
    """
    try:
        yield
    except OSError as error:
        raise disk_error(action, _named_place(error) or place, error, remedy) from error


def disk_error(action: str, place: Path, error: OSError, remedy: str) -> StoreError:
    """Return the StoreError for a failure of `action` on the file system of `place`."""
    if error.errno in _FULL:
        real = Path(os.path.realpath(place))
        mount_point = next(path for path in (real, *real.parents) if os.path.ismount(path))
        return StoreError(
            f"{action}: {reason_of(error.errno)}: free some on the file system at {mount_point}, or {remedy}"
        )
    return StoreError(f"{action}: {describe(error)}")


def _named_place(error: OSError) -> Path | None:
    """Return the directory of the file that an error names, None for a relative name."""
    name = error.filename2 or error.filename
    if not isinstance(name, (str, bytes)) or not os.path.isabs(name):
        return None
    # A link may be at the end of the name.
    return Path(os.fsdecode(name)).parent
