"""The limit of open files: the daemon has several for each pod, what it starts has as many as who started it."""

from __future__ import annotations

import fcntl
import resource
import termios
from functools import partial

_INHERITED = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_limit() -> None:
    """Let this process open as many files as it may."""
    _, hard = _INHERITED
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# For between fork and exec: each is one call of the kernel, and takes no lock.
give_back_limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, _INHERITED)
"""Gives a new process the limit from before."""


def give_back_limit_and_take_terminal() -> None:
    """Do the same, and make the standard input the terminal of the process, by which it gets SIGWINCH."""
    give_back_limit()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
