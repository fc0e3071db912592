"""The control group of an app, seen from PID 1: who is in it, and signalling all of them."""

from __future__ import annotations

import _signal
import errno
import os

from minit import syscalls
from minit.value import Value

_READ_BYTES = 1 << 20
# A process can fork while it is being signalled; this many rounds catch up with anything but a fork bomb, whose
# members the next deadline meets again.
_KILL_ROUNDS = 8


class GroupEnds(Value):
    """The control groups of one app: its directory in one hierarchy, and the `tasks` files of the v1 hierarchies."""

    app: str
    directory: int
    is_v2: bool
    tasks: tuple[int, ...] = ()


class Group:
    """A group by the descriptor of its directory: of the v2 hierarchy where there is one, else of a v1 hierarchy."""

    def __init__(self, directory: int) -> None:
        self._directory = directory

    def processes(self) -> list[int]:
        """Return the pids in the group; none if the directory is gone."""
        data = b""
        try:
            fd = os.open("cgroup.procs", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)
            try:
                while block := os.read(fd, _READ_BYTES):
                    data += block
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
        # A process outside PID 1's namespace, such as one that is just entering the pod, reads as 0.
        return [pid for pid in map(int, data.split()) if pid > 0]

    def signal(self, *numbers: int) -> None:
        """Send the signals in order to each process of the group."""
        for pid in self.processes():
            try:
                pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                # The pid may have been reused between the two calls; the group decides whose it is now.
                if pid in self.processes():
                    for number in numbers:
                        syscalls.pidfd_send_signal(pidfd, number)
            except ProcessLookupError:
                pass
            finally:
                os.close(pidfd)

    def kill(self) -> None:
        """Send SIGKILL to all: at once by cgroup.kill (Linux 5.14, v2), which misses no fork, or in rounds."""
        try:
            fd = os.open("cgroup.kill", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._directory)
        except FileNotFoundError:
            for _ in range(_KILL_ROUNDS):
                if not self.processes():
                    return
                self.signal(_signal.SIGKILL)
            return
        try:
            os.write(fd, b"1")
        finally:
            os.close(fd)
