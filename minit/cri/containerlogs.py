"""The files of containers' logs, in the directory of their sandbox, where no link is followed."""

from __future__ import annotations

import os
from contextlib import suppress

from minit.linux import syscalls
from minit.podfiles.hostlogs import open_log

_RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


def make_log(directory: str, path: str) -> None:
    """Make a log and the directories that it is in, but for what is there; OSError if there is something else."""
    parent = os.open(directory, _DIRECTORY | os.O_CLOEXEC)
    try:
        *parents, name = path.split("/")
        for each in parents:
            with suppress(FileExistsError):
                os.mkdir(each, 0o755, dir_fd=parent)
            inner = syscalls.openat2(parent, each, _DIRECTORY, resolve=_RESOLVE)
            os.close(parent)
            parent = inner
        os.close(open_log(parent, name, os.O_WRONLY | os.O_CREAT, 0o640))
    finally:
        os.close(parent)
