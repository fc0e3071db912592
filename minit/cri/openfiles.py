"""
The limit of open files: the daemon has several for each pod, and its commands may have as many as who started it.

What enters a container, or attaches to one, keeps that of the daemon: a command in a container has the container's.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Sequence

_INHERITED = resource.getrlimit(resource.RLIMIT_NOFILE)


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
