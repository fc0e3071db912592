"""The pipe on which a command tells the daemon why a container could not be entered."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from minit.base.harmless import harmless

_LONGEST_BYTES = 4096


class FailurePipe:
    """The pipe; `theirs` is the end for the process to inherit."""

    def __init__(self, ours: int, theirs: int) -> None:
        self.theirs = theirs
        self._ours = ours

    def reason(self) -> str | None:
        """Return why the process has failed, None without a message."""
        try:
            told = os.read(self._ours, _LONGEST_BYTES)
        except BlockingIOError:
            return None
        return harmless(told.decode(errors="replace"))


@contextmanager
def failure_pipe() -> Iterator[FailurePipe]:
    """Have such a pipe for a with block; both ends do not block."""
    ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield FailurePipe(ours, theirs)
    finally:
        os.close(ours)
        os.close(theirs)
