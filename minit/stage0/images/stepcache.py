"""
The steps of builds that were done before: by a key of all that a step depends on, the layer or the image of the step.

A record is a file named by the SHA-256 of the key; the file's time is the last use. Layers with a record stay in the
store without an image, until `image gc` forgets records that nobody has used for long.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from minit.stage0.files.durable import create_file, make_directory
from minit.stage0.files.temporary import scratch_directory

NOTHING = "nothing"
"""The record of a step that changed no file."""

_LIMIT_BYTES = 1 << 10


class StepCache:
    """Records in the directory `path`; `scratch` is a directory on the same file system."""

    def __init__(self, path: Path, scratch: Path) -> None:
        self._path = path
        self._scratch = scratch

    def recall(self, key: str) -> str | None:
        """Return the digest of the layer, the id of the image, or NOTHING; None for an unknown step."""
        path = self._place(key)
        try:
            os.utime(path)
            return _read(path)
        except FileNotFoundError:
            return None

    def remember(self, key: str, result: str) -> None:
        """Record a step; a record of the same key is replaced."""
        make_directory(self._path, 0o700)
        with scratch_directory(self._scratch) as scratch:
            create_file(scratch / "step", result.encode("ascii"), 0o600)
            os.rename(scratch / "step", self._place(key))

    def results(self) -> set[str]:
        """Return the results of all steps."""
        return {_read(path) for path in self._records()}

    def forget(self, before_ns: int) -> None:
        """Remove the records that were last used before a time."""
        for path in self._records():
            with suppress(FileNotFoundError):
                if path.stat().st_mtime_ns < before_ns:
                    path.unlink()

    def _records(self) -> list[Path]:
        with suppress(FileNotFoundError):
            return list(self._path.iterdir())
        return []

    def _place(self, key: str) -> Path:
        return self._path / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _read(path: Path) -> str:
    with suppress(FileNotFoundError), path.open("rb") as file:
        return file.read(_LIMIT_BYTES).decode("ascii", "replace")
    return ""
