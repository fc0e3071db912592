"""
The control group of a command with a time limit, below that of its app, and the process that guards it. Without control
groups there is a PID namespace in the place of the group.

The guard kills all that is in the group when the time is over, when the command has ended, and when `enter` is killed:
a command that has become a daemon, in a session of its own, is in the group too. It does so as well while `enter` is
stopped.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from minit.base.errors import LaunchError, describe
from minit.base.value import replace
from minit.launcher.enter.appgroups import AppGroup
from minit.linux import syscalls
from minit.linux.forks import COMMAND_GUARD, Kept, fork
from minit.linux.loop import wait_readable
from minit.linux.messages import receive_message, socket_pair
from minit.supervisor.apps.controlgroup import Group, GroupEnds

# The exit code of timeout(1).
EXIT_TIMED_OUT = 124

_NAME_BYTES = 8
# A process that is killed may first have to be thawed, or be deep in the kernel.
_END_SECONDS = 2.0
_PAUSE_SECONDS = 0.02
_FREEZER = "freezer"


class CommandGroup:
    """
    A new group below that of an app, in the hierarchy in which a group can best be killed as a whole.

    `joined` are the app's groups, with this one in the place of that above it.
    """

    def __init__(self, groups: Sequence[AppGroup]) -> None:
        above = _most_suitable(groups)
        self.path = f"{above.path}/command-{os.urandom(_NAME_BYTES).hex()}"
        self.joined = [replace(one, path=self.path) if one is above else one for one in groups]
        try:
            os.mkdir(self.path, 0o755)
            directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise LaunchError(f'app "{above.app}": control group: {describe(error)}') from error
        self._freezer = None
        if _FREEZER in above.hierarchy.controllers:
            self._freezer = os.open(f"{self.path}/freezer.state", os.O_WRONLY | os.O_CLOEXEC)
        ends = GroupEnds(app=above.app, directory=directory, is_v2=above.hierarchy.is_v2, freezer=self._freezer)
        self._group = Group(ends)
        self.descriptors = ends.descriptors()

    def end(self) -> bool:
        """Kill all that is in it and remove it; False if something is left after some time."""
        until = time.monotonic() + _END_SECONDS
        while True:
            if self._freezer is not None:
                # Nothing forks any more; killing ends with a thaw. The group may be gone with those of its pod.
                with suppress(OSError):
                    os.write(self._freezer, b"FROZEN")
            self._group.kill()
            try:
                os.rmdir(self.path)
                return True
            except FileNotFoundError:
                return True
            except OSError:
                if time.monotonic() >= until:
                    return False
            time.sleep(_PAUSE_SECONDS)


class CommandNamespace:
    """A PID namespace around a command: the process that enters tells the first process by `theirs`."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket_pair()
        self.descriptors = [self._ours.fileno()]

    def end(self) -> bool:
        """Kill all that is in it; False if something is left after some time."""
        if not wait_readable([self._ours.fileno()], 0):
            return True  # nothing has entered, and nothing will: `enter` does not say "go" any more
        _, pidfds = receive_message(self._ours)
        for pidfd in pidfds:
            with suppress(ProcessLookupError):
                syscalls.pidfd_send_signal(pidfd, signal.SIGKILL)
        return all(wait_readable([pidfd], _END_SECONDS) for pidfd in pidfds)


class Guard:
    """The process that ends a group in time, or as soon as this process has ended or says so."""

    def __init__(self, group: CommandGroup | CommandNamespace, timeout_seconds: float) -> None:
        theirs, self._ours = os.pipe2(os.O_CLOEXEC)
        until = time.monotonic() + timeout_seconds
        kept: dict[str, Kept] = {"pipe": theirs, "control group": group.descriptors}
        self._group = group
        try:
            self.pid = fork(COMMAND_GUARD, lambda: _guard(theirs, group, until), kept)
        except OSError:
            group.end()
            raise
        os.close(theirs)

    def finish(self) -> bool:
        """Have the group ended, and return whether that was done before, as the time was over."""
        os.close(self._ours)
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code not in (0, EXIT_TIMED_OUT) or isinstance(self._group, CommandNamespace):
            # It was killed, perhaps for want of memory, or the namespace was made just now.
            self._group.end()
        return code == EXIT_TIMED_OUT


def _guard(pipe: int, group: CommandGroup | CommandNamespace, until: float) -> int:
    is_in_time = bool(wait_readable([pipe], max(0.0, until - time.monotonic())))
    group.end()
    return 0 if is_in_time else EXIT_TIMED_OUT


def _most_suitable(groups: Sequence[AppGroup]) -> AppGroup:
    """Return v2, where it is one write, or else the freezer, or any."""
    return next((one for one in groups if one.hierarchy.is_v2 or _FREEZER in one.hierarchy.controllers), groups[0])
