"""Files of the pod directory that other programs read at any time, the lock of the directory, and locks of all pods."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from minit.base.errors import LaunchError, describe
from minit.podfiles import paths


def write_pod_file(name: str, data: bytes) -> None:
    """Write a file of the pod directory, which readers see whole or not at all; LaunchError names the file."""
    directory, base = os.path.split(name)
    temporary = os.path.join(directory, f".{base}.new")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)
        os.rename(temporary, name)
    except OSError as error:
        raise LaunchError(f"failed to write {name}: {describe(error)}") from error


def record_failure(line: str) -> None:
    """Write down why the pod could not be run, for later questions; a failure of the write is ignored."""
    try:
        write_pod_file(paths.POD_FAILURE, line.encode(errors="replace") + b"\n")
    except LaunchError:
        pass


def remove_pod_file(name: str) -> None:
    """Remove a file of the pod directory; no error if there is none."""
    try:
        os.unlink(name)
    except FileNotFoundError:
        pass


def is_locked(directory: str) -> bool:
    """
    Return whether somebody holds the lock of a pod directory, as launcher and PID 1 do until their ends.

    FileNotFoundError if there is no such directory.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@contextmanager
def file_lock(path: str) -> Iterator[None]:
    """Hold the lock of a file alone for a with block; a missing file is made. OSError without the directory."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
