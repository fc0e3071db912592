"""
The name that a user gives a pod: its rule, and the file of the pod directory that holds it.

The file is the only record, so a name moves and goes with its pod. `poddirectory` sees to it that no two pods have one.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from minit.base.errors import PodError

NAME_FORM = "letters, digits and inner . _ -, at most 63 of them"

_FILE = "minit-name"
_NEW_FILE = ".minit-name.new"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_WHOLE_UUID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}", re.IGNORECASE)


def is_whole_uuid(text: str) -> bool:
    """Return whether a text is a UUID to its end, with or without hyphens."""
    return _WHOLE_UUID.fullmatch(text) is not None


def check_name(name: str) -> None:
    """Raise PodError for what cannot be a pod's name."""
    if not _NAME.fullmatch(name):
        raise PodError(f'the name of a pod is {NAME_FORM}: got "{name}"')
    if is_whole_uuid(name):
        raise PodError(f'the name of a pod cannot be a UUID: got "{name}"')


def read_name(directory: int | str) -> str | None:
    """Return the name of the pod with this directory, by descriptor or path; None if it has none."""
    # By path in one call: a look-up by name asks every pod.
    at = {"dir_fd": directory} if isinstance(directory, int) else {}
    path = _FILE if isinstance(directory, int) else f"{directory}/{_FILE}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, **at)
    except OSError:
        return None
    try:
        text = os.read(fd, 80).decode("ascii", "replace").removesuffix("\n")
    finally:
        os.close(fd)
    return text if _NAME.fullmatch(text) else None


def write_name(directory: int, name: str) -> None:
    """Record the name of the pod with this directory for good."""
    with suppress(FileNotFoundError):
        os.unlink(_NEW_FILE, dir_fd=directory)  # of somebody who was killed
    fd = os.open(_NEW_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=directory)
    try:
        os.write(fd, f"{name}\n".encode("ascii"))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(_NEW_FILE, _FILE, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)
