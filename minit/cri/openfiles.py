"""
Open files of the daemon: the limit, and the pipe on which a command tells why a container could not be entered.

The daemon has several files for each pod. Commands in containers keep the limit from the start of the daemon.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from minit.base.harmless import harmless

_INHERITED = resource.getrlimit(resource.RLIMIT_NOFILE)

_LONGEST_BYTES = 4096


def raise_limit() -> None:
    """Let this process open as many files as permitted."""
    _, hard = _INHERITED
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def with_limit_given_back(words: Sequence[str]) -> list[str]:
    """
    Return the words of a shell that becomes a program with the limit from before; OSError without the program.

    A function between fork and exec would make the new process a copy of the daemon. Without one they share all memory
    until the exec, by vfork(2), and the shell takes a third of what the copy does.
    """
    soft, hard = _INHERITED
    if soft == hard:
        return list(words)
    if not os.access(words[0], os.X_OK):
        raise FileNotFoundError(errno.ENOENT, "no program", words[0])
    return ["/bin/sh", "-c", f'ulimit -S -n {soft}; exec "$@"', "sh", *words]


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
