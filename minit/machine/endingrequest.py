"""How a process of the machine, which is of no app, asks PID 1 to end it: `requests.py` has the other side."""

from __future__ import annotations

import os

from minit import paths
from minit.errors import PodError, describe


def request_ending(ending: str) -> None:
    """Ask for POWEROFF or REBOOT, after the apps have stopped; PodError if nobody can be asked."""
    try:
        fd = os.open(paths.MACHINE_ENDING, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, ending.encode() + b"\n")
        finally:
            os.close(fd)
    except OSError as error:
        raise PodError(f"{ending}: {describe(error)}") from error
