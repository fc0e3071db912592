"""How a failing disk or file system is told to the user: one line with what, where and what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minit.errors import StoreError, describe, reason_of

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def disk_errors(action: str, place: Path) -> Iterator[None]:
    """Turn an OSError of the with block, which does `action` somewhere below `place`, into a StoreError."""
    try:
        yield
    except OSError as error:
        raise disk_error(action, place, error) from error


def disk_error(action: str, place: Path, error: OSError) -> StoreError:
    """Return the StoreError that says why `action` failed below `place`."""
    if error.errno in _FULL:
        mount_point = next(path for path in (place.absolute(), *place.absolute().parents) if os.path.ismount(path))
        return StoreError(
            f"{action}: {reason_of(error.errno)}:"
            f" free some on the file system at {mount_point}, or use another one (--dir)"
        )
    return StoreError(f"{action}: {describe(error)}")
