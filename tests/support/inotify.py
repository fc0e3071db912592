"""Events of a directory in the order they happened, inotify(7)."""

from __future__ import annotations

import ctypes
import os
import select
import struct
from pathlib import Path
from types import TracebackType

CREATE = 0x100
DELETE = 0x200
MODIFY = 0x2
MOVED_TO = 0x80
_MOVED_FROM = 0x40
_WATCHED = CREATE | DELETE | MODIFY | MOVED_TO | _MOVED_FROM
_HEADER = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """Collects (name, event) pairs of a directory until it is closed; its descriptor is readable when there are any."""

    def __init__(self, directory: Path, watched: int = _WATCHED) -> None:
        self._fd: int = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if _libc.inotify_add_watch(self._fd, os.fsencode(directory), watched) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch", str(directory))
        self._events: list[tuple[str, int]] = []

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def events(self) -> list[tuple[str, int]]:
        """Return all events so far."""
        while select.select([self._fd], [], [], 0)[0]:
            data = os.read(self._fd, 1 << 16)
            at = 0
            while at < len(data):
                _, mask, _, size = _HEADER.unpack_from(data, at)
                name = data[at + _HEADER.size : at + _HEADER.size + size].rstrip(b"\0")
                self._events.append((os.fsdecode(name), mask))
                at += _HEADER.size + size
        return self._events
