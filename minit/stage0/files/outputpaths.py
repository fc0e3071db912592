"""
Files and directories that the user asked for: there whole or not at all, and nothing replaced unless asked for.

Both are made under another name beside their own and renamed at the end.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from minit.base.errors import StoreError
from minit.stage0.files.diskerrors import disk_errors
from minit.stage0.files.durable import sync_directory
from minit.stage0.files.emptying import remove_content

_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755


@contextmanager
def output_file(path: Path, *, overwrite: bool, exists: str) -> Iterator[BinaryIO]:
    """Yield a file that becomes `path`, 0644, when the with block ends well; StoreError `exists` if there is one."""
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

    The old file goes only then. A mount below it is an error, and stays.
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
            _remove(scratch)


def _remove(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        remove_content(fd)
    except OSError as error:
        raise StoreError(f"cannot remove what was replaced, it is in {directory} now: {error.strerror}") from error
    finally:
        os.close(fd)
    os.rmdir(directory)
