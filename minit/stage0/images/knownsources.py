"""
A result that was computed from many files, kept with their identities, so that they need not be read again.

The record has the result, its other inputs, and for each file its path and identity. It only saves time: without it, or
with a damaged one, or where it cannot be written, the result is computed as ever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from minit.base.errors import MinitError
from minit.stage0.files.temporary import scratch_directory
from minit.stage0.images.knownfiles import identity, is_settled

_ABSENT = "absent"
_END = "end"
"""The last word of a record: one that was written in part has another."""


def result_of_sources(
    record: Path, facts: str, sources: Callable[[], Iterable[Path]], compute: Callable[[], str]
) -> str:
    """
    Return what `compute` returns, or returned before with the same `facts`, if none of the `sources` has changed since.

    A source may be a file, a directory, of which the names in it count, or absent. `record` is a file; beside it, in
    `tmp`, it is written.
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
