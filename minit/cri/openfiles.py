"""
Open files of the daemon: their limit, and the pipe by which a command tells why it could not enter a container.

The daemon has several files for each pod. Commands in containers keep the limit that the daemon was started with.
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
    """Let this process open as many files as it may."""
    _, hard = _INHERITED
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def with_limit_given_back(words: Sequence[str]) -> list[str]:
    """
    Return the words of a shell that becomes a program with the limit from before; OSError if it cannot be executed.

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
    """The pipe; `theirs` is the end that the process has to inherit."""

    def __init__(self, ours: int, theirs: int) -> None:
        self.theirs = theirs
        self._ours = ours

    def reason(self) -> str | None:
        """Return why the process has failed, None if it has not said so."""
        try:
            told = os.read(self._ours, _LONGEST_BYTES)
        except BlockingIOError:
            return None
        return harmless(told.decode(errors="replace"))


@contextmanager
def failure_pipe() -> Iterator[FailurePipe]:
    """Have such a pipe for a while; its ends do not block."""
    ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield FailurePipe(ours, theirs)
    finally:
        os.close(ours)
        os.close(theirs)
