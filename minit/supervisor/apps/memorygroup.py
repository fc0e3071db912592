"""The memory of a control group: who was killed for want of it, and which limit was reached."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator

from minit.base.errors import describe
from minit.base.value import Value, replace

_FILE_BYTES = 4096
# v1 says "no limit" by the largest multiple of a page that a signed 64-bit number holds.
_UNLIMITED_BYTES = 1 << 62
_MIB = 1 << 20
# There is no such file, or the group was removed meanwhile.
_GONE = (errno.ENOENT, errno.ENODEV)
NO_LIMIT = "no limit was reached, but the machine had no memory left"


class ReachedLimit(Value):
    """A limit of memory; `levels` is 0 for that of the group itself, 1 for that of the group around it, and so on."""

    levels: int
    size_bytes: int

    def __str__(self) -> str:
        mib = f"{self.size_bytes / _MIB:.1f}".removesuffix(".0")
        return f"{self.size_bytes} bytes ({mib} MiB)"


class MemoryGroup:
    """
    A group of v2, or of the v1 hierarchy with the memory controller, by the descriptor of its directory.

    Without a directory nothing is counted.
    """

    def __init__(self, directory: int | None, *, is_v1: bool) -> None:
        self._directory = directory
        self._is_v1 = is_v1

    def oom_kills(self) -> int:
        """Return how many processes of the group the kernel has killed for want of memory; 0 where nobody can tell."""
        try:
            return count_oom_kills(self._read("memory.oom_control" if self._is_v1 else "memory.events")) or 0
        except OSError:
            return 0  # for want of a descriptor, say: PID 1 goes on

    def nearest_oom_kills(self) -> tuple[int, int] | None:
        """
        Return how many processes the kernel has killed of the group, or of the nearest around it that counts them.

        The first number is how many levels up that group is. What is in groups of its own counts there. None if nobody
        counts.
        """
        name = "memory.oom_control" if self._is_v1 else "memory.events.local"
        for levels, around in self._levels():
            kills = count_oom_kills(self._read(around + name))
            if kills is not None:
                return levels, kills
        return None

    def reached_limit(self) -> ReachedLimit | None:
        """Return the limit that the group has reached, or the nearest group around it; None if none has."""
        for levels, around in self._levels():
            limit = self._read(around + ("memory.limit_in_bytes" if self._is_v1 else "memory.max")).strip()
            if not limit.isdigit() or int(limit) >= _UNLIMITED_BYTES:
                continue
            if self._is_v1:
                has_reached = self._read(f"{around}memory.failcnt").strip() not in (b"", b"0")
            else:
                has_reached = bool(_count(self._read(f"{around}memory.events.local"), b"oom"))
            if has_reached:
                return ReachedLimit(levels=levels, size_bytes=int(limit))
        return None

    def describe_kills(self, count: int, asked_bytes: int | None, *, is_main: bool) -> str:
        """
        Return that the kernel has killed processes of an app, its main one or others, and the limit, for a line.

        `asked_bytes` is the limit that was asked for, of which the kernel has made whole pages.
        """
        whose = {0: "its limit", 1: "the limit of all apps of the pod"}
        try:
            limit = self.reached_limit()
        except OSError as error:
            return (
                f"the kernel has killed processes of it for want of memory: its limit cannot be read: {describe(error)}"
            )
        if limit is not None and limit.levels == 0 and asked_bytes is not None:
            is_as_asked = limit.size_bytes <= asked_bytes < limit.size_bytes + resource.getpagesize()
            limit = replace(limit, size_bytes=asked_bytes) if is_as_asked else limit
        if limit is None:
            reason = NO_LIMIT
        else:
            reason = f"{whose.get(limit.levels, 'the limit of a control group around the pod')} is {limit}"
        return f"the kernel has killed {'it' if is_main else f'{count} of its processes'} for want of memory: {reason}"

    def _levels(self) -> Iterator[tuple[int, str]]:
        """Yield 0, 1 and so on for the group and all around it, with the way to each."""
        levels, around, below = 0, "", None
        # In a mount that nobody has any more `..` of the top is the top again.
        while (group := self._identity(around)) not in (None, below):
            yield levels, around
            levels, around, below = levels + 1, f"../{around}", group

    def _identity(self, around: str) -> int | None:
        """Return the inode number of a group's file, None if there is no group."""
        if self._directory is None:
            return None
        try:
            return os.stat(f"{around}cgroup.procs", dir_fd=self._directory).st_ino
        except FileNotFoundError:
            return None

    def _read(self, path: str) -> bytes:
        """Return a file of the group, or of one around it; empty if there is none."""
        if self._directory is None:
            return b""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)
            try:
                return os.read(fd, _FILE_BYTES)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return b""


def count_oom_kills(text: bytes) -> int | None:
    """Return how many processes were killed for want of memory, by a file of a group or vmstat; None if it has none."""
    return _count(text, b"oom_kill")


def _count(text: bytes, name: bytes) -> int | None:
    """Return the number of a name in a table, None if it has none."""
    counts = [line.split()[1] for line in text.splitlines() if line.startswith(name + b" ")]
    return int(counts[0]) if counts else None
