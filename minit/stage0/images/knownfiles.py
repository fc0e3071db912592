"""
A record of the store's image for each file, so that one that is the same as before need not be read again.

`$DATA/minit/cas/files` has a line for each file: device, inode, size, times of the last changes, and the image's ID. It
only saves time: without it, or with a damaged one, or where it cannot be written, files are imported as ever.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from minit.base.errors import MinitError
from minit.stage0.files.temporary import scratch_directory

# Two changes within the clock tick of a file system leave the same time; that of vfat is the slowest.
_CLOCK_TICK_NS = 2_000_000_000
_MAX_FILES = 100
_MAX_BYTES = _MAX_FILES * 256


class KnownFiles:
    """The record of known files; `scratch` is a directory on the same file system."""

    def __init__(self, path: Path, scratch: Path) -> None:
        self._path = path
        self._scratch = scratch

    def recall(self, status: os.stat_result) -> str | None:
        """Return the ID of the image that a file with this status was, None if that is not known."""
        return self._read().get(identity(status))

    def remember(self, status: os.stat_result, read_since_ns: int, image_id: str) -> None:
        """Note the image of a file that was read since then, unless it might change and keep its status."""
        if not is_settled(status, read_since_ns):
            return
        known = self._read()
        known.pop(identity(status), None)
        self._write({**known, identity(status): image_id})

    def forget_gone(self, has_image: Callable[[str], bool]) -> None:
        """Forget the files of images that there are no longer."""
        known = self._read()
        left = {file: image for file, image in known.items() if has_image(image)}
        if left:
            self._write(left)
        else:
            with suppress(OSError):
                self._path.unlink()

    def _write(self, known: Mapping[str, str]) -> None:
        lines = [f"{file} {image}\n" for file, image in known.items()]
        with suppress(OSError, MinitError), scratch_directory(self._scratch) as scratch:
            (scratch / "files").write_text("".join(lines[-_MAX_FILES:]))
            os.rename(scratch / "files", self._path)

    def _read(self) -> dict[str, str]:
        try:
            with open(self._path, "rb") as file:
                lines = file.read(_MAX_BYTES).decode("ascii", "replace").splitlines()
        except OSError:
            return {}
        pairs = [line.split(" ") for line in lines]
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def identity(status: os.stat_result) -> str:
    """Return a word that changes with the file, and with another one in its place."""
    numbers = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return ":".join(map(str, numbers))


def is_settled(status: os.stat_result, read_since_ns: int) -> bool:
    """Tell whether a file that was read since then has another identity after its next change."""
    return max(status.st_mtime_ns, status.st_ctime_ns) + _CLOCK_TICK_NS <= read_since_ns
