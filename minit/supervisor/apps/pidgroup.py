"""
The processes of an app without control groups, where root has delegated none to a user: those of a PID namespace.

The first process of the namespace is ours, pid_namespaces(7): the kernel gives orphans to that process, and kills
everything in the namespace at the end of that process, which no fork escapes. The main process, handlers and hooks are
children of PID 1, born in the namespace.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import NoReturn

from minit.base.carried import Descriptor
from minit.linux import syscalls
from minit.linux.forks import APP_INIT, clone
from minit.linux.loop import wait_readable
from minit.linux.pidnamespaces import members_of
from minit.supervisor.apps.controlgroup import Group, GroupEnds

# What the kernel says of a namespace without a first process, pid_namespaces(7), and of an ending process in /proc.
_WITHOUT_FIRST = (errno.ENOMEM, errno.EACCES, errno.ENOENT, errno.ESRCH)
_END_SECONDS = 0.1


class PidGroup(Group):
    """
    A group by a PID namespace, which `begin` makes for each start of the app.

    Processes in namespaces that the app has made inside are members too.
    """

    _init: int
    _pidfd: Descriptor | None
    _is_ended: bool
    _namespace: Descriptor | None

    def __init__(self, ends: GroupEnds) -> None:
        super().__init__(ends)
        self._init = 0
        self._pidfd = None
        self._is_ended = False
        self._namespace = None

    def begin(self) -> int:
        """Make a new namespace in the place of an old one, and return a descriptor of the namespace for the caller."""
        self.end()
        self._init, self._pidfd = clone(APP_INIT, be_init, {}, flags=syscalls.CLONE_NEWPID, of=self.ends.app)
        self._is_ended = False
        self._namespace = os.open(f"/proc/{self._init}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        return os.dup(self._namespace)

    @property
    def is_alive(self) -> bool:
        """Tell whether processes can still be born in the namespace."""
        return self._pidfd is not None and not self._is_ended and not wait_readable([self._pidfd], 0)

    def explain(self, error: OSError) -> OSError:
        """Return an error that names the first process if that is dead, or about to be."""
        if self._pidfd is None or error.errno not in _WITHOUT_FIRST or not wait_readable([self._pidfd], _END_SECONDS):
            return error
        return OSError("the first process of the app's PID namespace has ended")

    def processes(self) -> list[int]:
        """Return the pids of the members, but for the first process."""
        return [] if self._namespace is None else members_of(self._init, os.fstat(self._namespace).st_ino)

    def kill(self) -> None:
        """Kill all by the end of the first process; the namespace takes no more processes."""
        self._is_ended = True
        if self._pidfd is not None:
            syscalls.send_signals(self._pidfd, signal.SIGKILL)

    def end(self) -> None:
        """End the first process, and let go of the namespace."""
        self.kill()
        self.close_fields("_pidfd", "_namespace")


def be_init() -> NoReturn:
    """Be the first process of a PID namespace, until somebody outside kills this process."""
    # The kernel reaps the orphans.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    syscalls.set_no_new_privileges()
    syscalls.set_capabilities(0, 0, 0)
    syscalls.wait_for_kill()
