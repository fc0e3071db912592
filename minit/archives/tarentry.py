"""An entry of a tar archive as a value, and the extended attributes that entries of images keep."""

from __future__ import annotations

import os
from enum import Enum
from typing import NamedTuple

CAPABILITIES = "security.capability"


class Kind(Enum):
    """The kind of file that an entry creates."""

    FILE = "regular file"
    HARD_LINK = "hard link"
    SYMLINK = "symbolic link"
    CHARACTER_DEVICE = "character device"
    BLOCK_DEVICE = "block device"
    DIRECTORY = "directory"
    FIFO = "fifo"


class Entry(NamedTuple):
    """One entry, its numbers checked, its path cleaned and relative (empty for the top directory)."""

    path: str
    kind: Kind
    mode: int  # permission, set-id and sticky bits
    uid: int
    gid: int
    size_bytes: int  # of the file, holes included
    mtime_ns: int
    atime_ns: int  # mtime_ns if the archive records none
    link_target: str = ""  # as written for a symbolic link, cleaned and relative for a hard link
    device: int = 0  # as mknod(2) takes it
    xattrs: tuple[tuple[str, bytes], ...] = ()
    hole_bytes: int = 0  # of size_bytes those that the archive does not have: the holes of a sparse file


class LayerEntry(NamedTuple):
    """Of an entry of a layer what decides which entries of an image count."""

    path: str
    kind: Kind
    link_target: str


def is_kept_attribute(name: str) -> bool:
    """Return whether images keep an extended attribute of this name; the same two kinds as in rkt."""
    return name == CAPABILITIES or name.startswith("user.")


def kept_attributes(fd: int) -> tuple[tuple[str, bytes], ...]:
    """Return the extended attributes of an open file that images keep, in the order of their names."""
    try:
        names = os.listxattr(fd)
    except OSError:
        return ()  # the filesystem has none
    return tuple((name, os.getxattr(fd, name)) for name in sorted(filter(is_kept_attribute, names)))
