"""minit.supervisor.root.attachvolumes: parts of volumes in which somebody else moves things about."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

import pytest

from minit.supervisor.root.attachvolumes import clone_part

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="directories of two owners need root")

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_SOMEBODY = 1000
_ATTEMPTS = 300


def _exchange_for_ever(one: Path, other: Path) -> int:
    """Start a process that exchanges two names as soon as both are there, and return its pid."""
    libc = ctypes.CDLL(None)
    words = (_AT_FDCWD, bytes(one), _AT_FDCWD, bytes(other), _RENAME_EXCHANGE)
    pid = os.fork()
    if pid == 0:
        while libc.renameat2(*words):
            pass
        os._exit(0)
    return pid


def test_a_directory_that_is_exchanged(tmp_path: Path) -> None:
    """The owner of a volume does not become that of another directory in it, moved to where one is made."""
    for attempt in range(_ATTEMPTS):
        volume = tmp_path / str(attempt)
        root_only = volume / "root's"
        root_only.mkdir(parents=True, mode=0o700)
        (root_only / "secret").touch()
        os.chown(volume, _SOMEBODY, _SOMEBODY)
        pid = _exchange_for_ever(root_only, volume / "part")
        os.close(clone_part(str(volume), "part"))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        [secret] = volume.glob("*/secret")
        assert secret.parent.stat().st_uid == 0
