"""
Standard output and error of the command: what is said there is written, or it is an error that names the stream.

Python's own lose what a descriptor does not take at once: without a buffer (PYTHONUNBUFFERED) a write may be a part of
what was to be written, and one that does not block raises an error where it only had to be waited for.
"""

from __future__ import annotations

import io
import sys
from typing import Any, TextIO

from minit.linux.stdio import await_room

_BUFFER_BYTES = 1 << 16


class _Output(io.BufferedWriter):
    """
    A descriptor that is written to, and stays open.

    Written bytes have been counted when a signal is handled, so that nothing is written twice after Ctrl-C; a raw file
    in Python could not do that.
    """

    def __init__(self, fd: int, name: str) -> None:
        super().__init__(io.FileIO(fd, "w", closefd=False), _BUFFER_BYTES)
        self._name = name

    def write(self, data: Any, /) -> int:
        """Take all of the data, waiting for room."""
        rest = memoryview(data)
        while True:
            try:
                super().write(rest)
                return len(data)
            except BlockingIOError as error:
                rest = rest[error.characters_written :]
                await_room(self.fileno())
            except OSError as error:
                error.filename = self._name
                raise

    def flush(self) -> None:
        """Write all that was taken, waiting for room."""
        while True:
            try:
                super().flush()
                return
            except BlockingIOError:
                await_room(self.fileno())
            except OSError as error:
                error.filename = self._name
                raise


def open_streams() -> None:
    """Put streams of ours in the place of Python's, of which it has none where the caller has closed a descriptor."""
    sys.stdout = _text_stream(1, "standard output", sys.stdout, "strict")
    sys.stderr = _text_stream(2, "standard error", sys.stderr, "backslashreplace")


def abandon_output() -> None:
    """Forget what standard output could not take; Python would try, and complain, once more at the end."""
    buffer = getattr(sys.stdout, "buffer", None)
    if isinstance(buffer, _Output):
        # The layers above a raw file that is closed have nothing left to write.
        buffer.raw.close()
    sys.stdout = None


def _text_stream(fd: int, name: str, like: TextIO | None, errors: str) -> TextIO:
    is_by_lines = fd == 2
    encoding = None
    if isinstance(like, io.TextIOWrapper):
        encoding, errors = like.encoding, like.errors or errors
        is_by_lines = like.line_buffering or like.write_through
    return io.TextIOWrapper(_Output(fd, name), encoding, errors, newline="\n", line_buffering=is_by_lines)
