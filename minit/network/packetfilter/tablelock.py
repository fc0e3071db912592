"""The lock of all who change tables of the packet filter that others may want as well."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from minit.base.errors import NetworkError, describe

_LOCK_DIRECTORY = "/run/minit"
_LOCK = f"{_LOCK_DIRECTORY}/firewall.lock"


@contextlib.contextmanager
def firewall_lock() -> Iterator[None]:
    """Hold the lock for the length of a with block; NetworkError if it cannot be had."""
    try:
        os.makedirs(_LOCK_DIRECTORY, 0o755, exist_ok=True)
        lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise NetworkError(f"cannot lock the firewall: {describe(error)}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
