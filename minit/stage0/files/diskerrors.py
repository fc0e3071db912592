"""Messages about a failing disk or file system: one line with the problem, its place and the remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minit.base.errors import StoreError, describe, reason_of

_FULL = (errno.ENOSPC, errno.EDQUOT)
_ANOTHER = "use another one (--dir)"


@contextmanager
def disk_errors(action: str, place: Path, remedy: str = _ANOTHER) -> Iterator[None]:
    """
    Turn an OSError of the with block, which does `action` on the file system of `place`, into a StoreError.

    Where the error names a file, that may be on another one; what is below `place` often is.
    """
    try:
        yield
    except OSError as error:
        raise disk_error(action, _named_place(error) or place, error, remedy) from error


def disk_error(action: str, place: Path, error: OSError, remedy: str) -> StoreError:
    """Return the StoreError that says why `action` failed on the file system of `place`."""
    if error.errno in _FULL:
        real = Path(os.path.realpath(place))
        mount_point = next(path for path in (real, *real.parents) if os.path.ismount(path))
        return StoreError(
            f"{action}: {reason_of(error.errno)}: free some on the file system at {mount_point}, or {remedy}"
        )
    return StoreError(f"{action}: {describe(error)}")


def _named_place(error: OSError) -> Path | None:
    """Return where the file is that an error names, if that is not relative to something."""
    name = error.filename2 or error.filename
    if not isinstance(name, (str, bytes)) or not os.path.isabs(name):
        return None
    # A link to it is no part of it.
    return Path(os.fsdecode(name)).parent
