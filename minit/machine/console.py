"""
The prompt on the console: a process that waits until somebody types there, and then starts the command for him.

PID 1 forks it, beside the helper; the command is started in the machine's own mounts, as a session of its own. Whatever
becomes of one session, the next Enter gives another.
"""

from __future__ import annotations

import fcntl
import os
import select
import termios
import time
from typing import NoReturn

from minit import paths
from minit.errors import describe
from minit.forks import CONSOLE_KEEPER, CONSOLE_SESSION, fork
from minit.launcher.ownimage import image_descriptor
from minit.loop import wait_events
from minit.stdio import complain_at_once

_CONSOLE = "/dev/console"
_COMMAND = ("minit", "console")
# Between one session and the next, so that a console which nobody can read from costs nothing.
_PAUSE_SECONDS = 1.0
_STEAL = 1


def keep_console() -> None:
    """Start what gives the console a prompt; it lives as long as the machine."""
    fork(CONSOLE_KEEPER, _keep, {"image": image_descriptor()}, tell=_tell)


def _keep() -> NoReturn:
    while True:
        _serve()
        time.sleep(_PAUSE_SECONDS)


def _tell(error: BaseException) -> None:
    complain_at_once(f"minit: console: {describe(error)}")


def _serve() -> None:
    """Wait until somebody types and return when his session is over."""
    console = os.open(_CONSOLE, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        os.write(console, b"minit: press Enter for a prompt\n")
        # Nothing is taken: what was typed is the first line of the session. A console may be hung up as well.
        if wait_events({console: select.POLLIN})[console] & select.POLLHUP:
            return
        os.waitpid(fork(CONSOLE_SESSION, _begin_session, {"console": console}, tell=_tell), 0)
    finally:
        os.close(console)


def _begin_session() -> NoReturn:
    fcntl.ioctl(0, termios.TIOCSCTTY, _STEAL)
    os.execv(paths.MACHINE_COMMAND, _COMMAND)
