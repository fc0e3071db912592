"""The terminal of a container's init and of its command: whose process group is in the foreground, tcsetpgrp(3)."""

from __future__ import annotations

import os
import signal
from fcntl import ioctl
from termios import TIOCNOTTY, TIOCSCTTY


def foreground_terminal() -> int | None:
    """Return the standard stream that is the controlling terminal with this process group in its foreground."""
    for fd in range(3):
        try:
            if os.tcgetpgrp(fd) == os.getpgrp():
                return fd
        except OSError:
            pass  # no terminal, or not ours
    return None


def hand_over(terminal: int, group: int) -> None:
    """Make a process group the foreground of the terminal, tcsetpgrp(3)."""
    try:
        os.tcsetpgrp(terminal, group)
    except OSError:
        pass  # it was hung up; the command will see


def become_group(terminal: int | None) -> None:
    """Lead a process group of its own, in the foreground of the terminal if there is one, setpgid(2)."""
    os.setpgid(0, 0)
    if terminal is not None:
        hand_over(terminal, os.getpid())


def leave_terminal(terminal: int | None) -> int | None:
    """Return the terminal if this process led its session and let it go, for the session of the command."""
    if terminal is None or os.getsid(0) != os.getpid():
        return None  # it belongs to the session of a shell

    pending = signal.sigpending()
    ioctl(terminal, TIOCNOTTY)
    # The kernel tells the foreground that its terminal is gone: not the command, which will have it again.
    for number in {signal.SIGHUP, signal.SIGCONT} - pending:
        signal.sigtimedwait((number,), 0)
    return terminal


def become_session(terminal: int | None) -> None:
    """Lead a session of its own, whose controlling terminal is the one given, setsid(2)."""
    os.setsid()
    if terminal is not None:
        ioctl(terminal, TIOCSCTTY, 0)
