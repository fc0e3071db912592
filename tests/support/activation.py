"""Starting a program with sockets already open, as systemd and systemd-socket-activate(1) do: sd_listen_fds(3)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

_PROGRAM = """
import fcntl, os, sys
own, names, count = sys.argv[1:4]
fds = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 100) for fd in sys.argv[4 : 4 + int(count)]]
command = sys.argv[4 + int(count) :]
# Above all that is put in its place here.
lock = fcntl.fcntl(int(os.environ["RKT_LOCK_FD"]), fcntl.F_DUPFD, 100)
os.closerange(3, 100)
for number, fd in enumerate(fds, 3):
    os.dup2(fd, number)
    os.close(fd)
pid = os.getpid() if own == "own" else os.getppid()
variables = {"LISTEN_FDS": count, "LISTEN_PID": str(pid), "LISTEN_FDNAMES": names}
os.execve(command[0], command, {**variables, **os.environ, "RKT_LOCK_FD": str(lock)})
"""


def activated(*fds: int, names: Sequence[str] = (), own: bool = True) -> dict[str, Any]:
    """
    Return the options of `PodDirectory.start` that pass descriptors from 3 on, with LISTEN_PID being that of `run`.

    Without `own` it is that of another process. `env` may say other things in the variables LISTEN_*.
    """
    words = ["own" if own else "other", ":".join(names), str(len(fds)), *map(str, fds)]
    return {"under": [sys.executable, "-I", "-S", "-c", _PROGRAM, *words], "pass_fds": fds}
