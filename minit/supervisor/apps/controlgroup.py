"""
The control group of an app, seen from PID 1: the members, signals to all members, and the notice that the group is
empty.
"""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress

from minit.base.carried import Carried, Descriptor
from minit.base.value import Value
from minit.linux import syscalls
from minit.supervisor.apps.memorygroup import MemoryGroup

_READ_BYTES = 1 << 16
# A process can fork while it is being signalled; so many rounds catch up with anything but a fork bomb, whose members
# the supervisor's next look at the group meets again.
_KILL_ROUNDS = 8
# Between two readings of the group at most so many processes are held by a pidfd.
_BATCH = 256
# Links of a group's directory: the name and ".", and one more for each group below (fs/kernfs/inode.c).
_LINKS_OF_LEAF = 2
_GONE = (errno.ENOENT, errno.ENODEV)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
PROCS = "cgroup.procs"
_KILL = "cgroup.kill"
_FREEZE = "cgroup.freeze"
# Files for PID 1 to write in a v2 group with processes.
WRITTEN = (_KILL, _FREEZE)


class GroupEnds(Value):
    """
    The control groups of one app, as descriptors: the directory in one hierarchy, None without groups, the files by
    which a process joins groups after the start, `tasks` of the v1 hierarchies, and `freezer.state` where v1 has the
    freezer.

    Root of a user namespace may not start a process in a v2 group, so that `tasks` has `cgroup.procs` too, nor open the
    other written files, so that `files` has them by name. `memory` is the directory of the v1 group with the memory
    controller.
    """

    app: str
    directory: Descriptor | None = None
    is_v2: bool = False
    tasks: tuple[Descriptor, ...] = ()
    freezer: Descriptor | None = None
    files: tuple[tuple[str, Descriptor], ...] = ()
    memory: Descriptor | None = None

    @property
    def starts_processes(self) -> bool:
        """Tell whether PID 1 may start processes in the group: v2, unless PID 1 is root of a user namespace only."""
        return self.is_v2 and not self.files

    def descriptors(self) -> list[int]:
        """Return all descriptors."""
        files = [fd for _, fd in self.files]
        optional = [fd for fd in (self.directory, self.freezer, self.memory) if fd is not None]
        return [*self.tasks, *files, *optional]


class Group(Carried):
    """A group by the descriptor of its directory: of the v2 hierarchy if any, else of a v1 hierarchy."""

    ends: GroupEnds
    is_frozen: bool
    _was_killed: bool

    def __init__(self, ends: GroupEnds) -> None:
        self.ends = ends
        self.is_frozen = False
        self._was_killed = False

    @property
    def memory(self) -> MemoryGroup:
        """The group as one that counts memory."""
        memory = self.ends.directory if self.ends.memory is None else self.ends.memory
        return MemoryGroup(memory, is_v1=self.ends.memory is not None)

    @property
    def birthplace(self) -> int | None:
        """
        The directory of the group if processes can start there, None if a process has to join.

        Joining a v2 group costs some ten milliseconds, while the kernel waits until nobody forks. But after a write to
        cgroup.kill a group kills every process that clone3 starts there (since Linux 6.14; kernel/cgroup/cgroup.c,
        cgroup_post_fork).
        """
        return self.ends.directory if self.ends.starts_processes and not self._was_killed else None

    def explain(self, error: OSError) -> OSError:
        """Return the error of a fork into the group with the reason that the kernel does not tell, if any."""
        return error

    def end(self) -> None:
        """Let go of the group, of which nothing is left."""

    def note_death(self, signum: int | None) -> None:
        """Note the end of a process of the group: SIGKILL may have come from cgroup.kill, written on the host."""
        self._was_killed = self._was_killed or signum == signal.SIGKILL

    def processes(self) -> list[int]:
        """Return the pids in the group; none if the directory is gone."""
        # A process outside PID 1's namespace, such as one just entering the pod, reads as 0.
        return [pid for pid in self._members() if pid > 0]

    def _members(self) -> list[int]:
        members = self._read_members(PROCS)
        assert self.ends.directory is not None
        if os.fstat(self.ends.directory).st_nlink > _LINKS_OF_LEAF:
            # Of commands with a time limit. A group made by a privileged app may have no such file to read.
            with suppress(OSError), os.scandir(self.ends.directory) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        members += self._read_members(f"{entry.name}/{PROCS}")
        return members

    def _read_members(self, path: str) -> list[int]:
        data = b""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.ends.directory)
            try:
                while block := os.read(fd, _READ_BYTES):
                    data += block
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno not in _GONE:
                raise
        return [*map(int, data.split())]

    def open_events(self) -> int | None:
        """
        Return `cgroup.events`, a file that polls as exceptional (POLLPRI) when the group becomes empty; None under v1.

        The next event comes only after a read from the beginning.
        """
        if not self.ends.is_v2:
            return None
        try:
            return os.open("cgroup.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.ends.directory)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return None

    def signal(self, *numbers: int) -> list[int]:
        """
        Send the signals in order to each process of the group, and thaw the group, or the signals would wait.

        Returns the pids.
        """
        left = pids = self.processes()
        while left:
            left = self._signal_first(left, numbers)
        self.thaw()
        return pids

    def _signal_first(self, pids: list[int], numbers: tuple[int, ...]) -> list[int]:
        """Send the signals to as many of the processes as can be held by descriptors, and return the others."""
        held, left = self._hold_first(pids)
        try:
            # A pid may have been reused between the two calls; the group decides about the present owner.
            present = set(self.processes())
            for pid, pidfd in held.items():
                if pid in present:
                    syscalls.send_signals(pidfd, *numbers)
        finally:
            for pidfd in held.values():
                os.close(pidfd)
        return left

    def _hold_first(self, pids: list[int]) -> tuple[dict[int, int], list[int]]:
        """Return pidfds of the first living processes, by pid, and the pids of the others."""
        held: dict[int, int] = {}
        # So that one descriptor is left for reading the group.
        spare = os.dup(0)
        try:
            for index, pid in enumerate(pids[:_BATCH]):
                try:
                    held[pid] = os.pidfd_open(pid)
                except ProcessLookupError:
                    continue
                except OSError as error:
                    if error.errno not in _NO_DESCRIPTOR or not held:
                        raise
                    return held, pids[index:]
            return held, pids[_BATCH:]
        finally:
            os.close(spare)

    def kill(self) -> None:
        """Send SIGKILL to all: at once by cgroup.kill (Linux 5.14, v2), without a missed fork, or in rounds."""
        if not self._members():
            return  # the next process could not be started in the group
        if self._write(_KILL, b"1"):
            self._was_killed = True
            self.thaw()
            return
        for _ in range(_KILL_ROUNDS):
            if not self.processes():
                return
            self.signal(signal.SIGKILL)

    def kill_others(self, spared: int | None) -> None:
        """Send SIGKILL to all but one, in rounds."""
        for _ in range(_KILL_ROUNDS):
            others = [pid for pid in self.processes() if pid != spared]
            if not others:
                return
            while others:
                others = self._signal_first(others, (signal.SIGKILL,))
            self.thaw()

    def freeze(self) -> bool:
        """Begin to freeze all processes, by v2 (Linux 5.2) or by v1; False if the group has no freezer."""
        if not (self.ends.is_v2 and self._write(_FREEZE, b"1")):
            if self.ends.freezer is None:
                return False
            os.write(self.ends.freezer, b"FROZEN")
        self.is_frozen = True
        return True

    def thaw(self) -> None:
        """Undo a freeze of the group itself; a freeze of a group above can only be undone there."""
        self.is_frozen = False
        if self.ends.freezer is not None:
            try:
                os.write(self.ends.freezer, b"THAWED")
            except OSError as error:
                if error.errno not in _GONE:
                    raise
        if self.ends.is_v2:
            self._write(_FREEZE, b"0")

    def _write(self, name: str, data: bytes) -> bool:
        """Write a file of the group; False if there is none."""
        try:
            files = dict(self.ends.files)
            if name in files:
                os.write(files[name], data)
                return True
            fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=self.ends.directory)
            try:
                os.write(fd, data)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return False
        return True
