"""
What a process that was forked for an image tells its parent, by a pipe: lines of a word, a space and the rest.

A process that ends without DONE or a fault was killed.
"""

from __future__ import annotations

import os
from contextlib import suppress

from minit.base.errors import ImageError

PROGRESS = "progress"  # numbers, as the work has them
DONE = "done"  # a number, as the work has it
_IMAGE_FAULT = "image-fault"  # an ImageError's text
_DISK_FAULT = "disk-fault"  # an errno, a space, the file
_DEFECT = "defect"  # an exception nobody expected


class DefectError(Exception):
    """An exception in the process that nobody expected."""


def tell(report: int, word: str, *numbers: int) -> None:
    """Write PROGRESS or DONE; nothing is said to a parent that does not listen."""
    _write(report, " ".join([word, *map(str, numbers)]))


def tell_error(report: int, error: BaseException, file: str = "") -> None:
    """Write what ended the work; `file` is named if the error of a disk names none."""
    if isinstance(error, ImageError):
        _write(report, f"{_IMAGE_FAULT} {error}")
    elif isinstance(error, OSError):
        _write(report, f"{_DISK_FAULT} {error.errno} {error.filename or file}")
    else:
        _write(report, f"{_DEFECT} {type(error).__name__}: {error}")


def numbers_of(line: str) -> tuple[str, list[int]]:
    """Return the word of a line and its numbers; ImageError, OSError or DefectError if it tells of one."""
    word, _, rest = line.rstrip("\n").partition(" ")
    if word == _IMAGE_FAULT:
        raise ImageError(rest)
    if word == _DISK_FAULT:
        number, _, file = rest.partition(" ")
        raise OSError(int(number), os.strerror(int(number)), file or None)
    if word == _DEFECT:
        raise DefectError(f"{rest}: a defect of minit, please report it")
    return word, [int(number) for number in rest.split()]


def _write(report: int, line: str) -> None:
    with suppress(BrokenPipeError):
        os.write(report, line.replace("\n", " ").encode("utf-8", "backslashreplace") + b"\n")
