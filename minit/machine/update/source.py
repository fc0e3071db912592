"""The sources of an update: a file, a block device, standard input, or a server of HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from minit.errors import UpdateError, describe
from minit.machine.update.download import open_download
from minit.manifest.httpurl import is_url, parse_url

Read = Callable[[int], bytes]
"""Returns at most so many bytes, and none at the end."""

_STANDARD_INPUT = "-"


@contextmanager
def open_source(source: str) -> Iterator[Read]:
    """Open a source; UpdateError if that is not possible."""
    if is_url(source):
        try:
            url = parse_url(source)
        except ValueError as error:
            raise UpdateError(f"{source}: {error}") from error
        with open_download(url, source) as read:
            yield read
        return
    try:
        fd = os.dup(0) if source == _STANDARD_INPUT else os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UpdateError(f"cannot read the update: {describe(error)}") from error
    try:
        yield lambda size_bytes: _read(fd, size_bytes, source)
    finally:
        os.close(fd)


def read_fully(read: Read, size_bytes: int) -> bytes:
    """Return so many bytes, or less at the end."""
    pieces, missing = [], size_bytes
    while missing and (piece := read(missing)):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _read(fd: int, size_bytes: int, source: str) -> bytes:
    try:
        return os.read(fd, size_bytes)
    except OSError as error:
        raise UpdateError(f"cannot read the update: {source}: {describe(error)}") from error
