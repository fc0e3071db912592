"""
The prompt on the console: a process that waits until somebody types there, and then starts the command for him.

PID 1 forks it, beside the helper; the command is started in the machine's own mounts, as a session of its own. Whatever
becomes of one session, the next Enter gives another.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import termios
import time
from typing import NoReturn

from minit import paths, syscalls
from minit.errors import EXIT_FAILURE, describe
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
    if os.fork() == 0:
        _keep()


def _keep() -> NoReturn:
    try:
        syscalls.set_process_name("minit-console")
        image = image_descriptor()
        syscalls.close_all_but((0, 1, 2, *([] if image is None else [image])))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        while True:
            _serve()
            time.sleep(_PAUSE_SECONDS)
    except OSError as error:
        complain_at_once(f"minit: console: {describe(error)}")
    finally:
        os._exit(EXIT_FAILURE)


def _serve() -> None:
    """Wait until somebody types and return when his session is over."""
    console = os.open(_CONSOLE, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        os.write(console, b"minit: press Enter for a prompt\n")
        # Nothing is taken: what was typed is the first line of the session. A console may be hung up as well.
        if wait_events({console: select.POLLIN})[console] & select.POLLHUP:
            return
        pid = os.fork()
        if pid == 0:
            _begin_session(console)
        os.waitpid(pid, 0)
    finally:
        os.close(console)


def _begin_session(console: int) -> NoReturn:
    try:
        os.setsid()
        fcntl.ioctl(console, termios.TIOCSCTTY, _STEAL)
        for stream in (0, 1, 2):
            os.dup2(console, stream)
        os.execv(paths.MACHINE_COMMAND, _COMMAND)
    except OSError as error:
        complain_at_once(f"minit: console: {describe(error)}")
    finally:
        os._exit(EXIT_FAILURE)
