"""
Results that were computed from files, kept with the identities of the files, so that these need not be read again.

`$DATA/minit/cas/files` has a line for each imported file: device, inode, size, times of the last changes, and the ID of
the image. A record of sources has one result of many files. Records only save time: without a record, or with a damaged
one, or where none can be written, the files are read as ever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from minit.base.errors import MinitError
from minit.stage0.files.temporary import scratch_directory

# Two changes within the clock tick of a file system leave the same time; vfat has the slowest clock.
_CLOCK_TICK_NS = 2_000_000_000
_MAX_FILES = 100
_MAX_BYTES = _MAX_FILES * 256

_ABSENT = "absent"
_END = "end"
"""The last word of a complete record."""


class KnownFiles:
    """The record of known files; `scratch` is a directory on the same file system."""

    def __init__(self, path: Path, scratch: Path) -> None:
        self._path = path
        self._scratch = scratch

    def recall(self, status: os.stat_result) -> str | None:
        """Return the ID of the image of a file with this status, None for an unknown file."""
        return self._read().get(identity(status))

    def remember(self, status: os.stat_result, read_since_ns: int, image_id: str) -> None:
        """Note the image of a file that was read from `read_since_ns` on, unless a change might keep the status."""
        if not is_settled(status, read_since_ns):
            return
        known = self._read()
        known.pop(identity(status), None)
        self._write({**known, identity(status): image_id})

    def forget_gone(self, has_image: Callable[[str], bool]) -> None:
        """Forget the files of images that are gone."""
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
    """Return a word that changes with the file, and with another file in the same place."""
    numbers = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return ":".join(map(str, numbers))


def is_settled(status: os.stat_result, read_since_ns: int) -> bool:
    """Tell whether a file that was read from `read_since_ns` on has another identity after the next change."""
    return max(status.st_mtime_ns, status.st_ctime_ns) + _CLOCK_TICK_NS <= read_since_ns


def result_of_sources(
    record: Path, facts: str, sources: Callable[[], Iterable[Path]], compute: Callable[[], str]
) -> str:
    """
    Return the result of `compute`, or an earlier result with the same `facts`, if none of the `sources` has changed.

    A source may be a file, a directory, of which the names of entries count, or absent. The file `record` is first
    written in the directory `tmp` beside.
    """
    known = _recall(record, facts)
    if known is not None:
        return known
    read_since_ns = time.time_ns()
    paths = [os.fspath(path) for path in sources()]
    statuses = [_status(path) for path in paths]
    result = compute()
    if all(status is None or is_settled(status, read_since_ns) for status in statuses):
        words = [result, facts]
        for path, status in zip(paths, statuses, strict=True):
            words += [path, _identity(status)]
        words.append(_END)
        with suppress(OSError, MinitError), scratch_directory(record.parent / "tmp") as scratch:
            (scratch / "record").write_bytes(os.fsencode("\0".join(words)))
            os.rename(scratch / "record", record)
    return result


def _recall(record: Path, facts: str) -> str | None:
    try:
        with open(record, "rb") as file:
            result, known_facts, *words, end = os.fsdecode(file.read()).split("\0")
        if known_facts != facts or end != _END:
            return None
        unchanged = all(_identity(_status(path)) == known for path, known in zip(words[::2], words[1::2], strict=True))
    except (OSError, ValueError):
        return None
    return result if unchanged else None


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _identity(status: os.stat_result | None) -> str:
    return _ABSENT if status is None else identity(status)
