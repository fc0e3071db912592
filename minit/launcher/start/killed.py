"""The sentence and the event about a PID 1 that was killed: by the kernel for want of memory, or by somebody."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from minit.base.carried import Carried
from minit.launcher.cgroups import Hierarchy, memory_group_of_pid_1
from minit.podfiles import paths
from minit.supervisor.apps.memorygroup import NO_LIMIT, MemoryGroup, count_oom_kills
from minit.supervisor.podevents import append_event

_OF_THE_MACHINE = "/proc/vmstat"
_UNKNOWN = ("unknown", "PID 1 of the pod was killed, by somebody on the host or for want of memory")


class KillWitness(Carried):
    """
    The kernel's counts of processes that it has killed for want of memory, from before the end of PID 1.

    Without a `subcgroup` PID 1 has no groups of its own, but is in those of this process. OSError if these cannot be
    looked at.
    """

    _directory: str
    _is_v1: bool
    _is_own: bool
    _levels: int | None
    _before: int | None

    def __init__(self, hierarchies: Sequence[Hierarchy], subcgroup: str | None) -> None:
        self._directory, self._is_v1 = memory_group_of_pid_1(hierarchies, subcgroup)
        self._is_own = subcgroup is not None
        with self._group() as group:
            self._levels, self._before = _count(group)

    def tell(self) -> str:
        """Write the event of a PID 1 that was killed, and return what it says."""
        try:
            reason, sentence = self._judge()
        except OSError:
            reason, sentence = _UNKNOWN
        tell_killed(reason, sentence)
        return sentence

    def _judge(self) -> tuple[str, str]:
        with self._group() as group:
            levels, kills = _count(group)
            limit = None if group is None else group.reached_limit()
        if kills is None or self._before is None or levels != self._levels:
            return _UNKNOWN
        count = kills - self._before
        if count <= 0:
            return "killed", "PID 1 of the pod was killed by somebody on the host"
        reason = NO_LIMIT
        if limit is not None:
            place = os.path.normpath(f"{self._directory}/{'../' * limit.levels}")
            reason = f"the limit of {place} is {limit}"
        if self._is_own and levels == 0:
            return "oom-killed", f"PID 1 of the pod was killed by the kernel for want of memory: {reason}"
        # Others may be counted there as well.
        words = f"which has killed {count} of the processes around it for want of memory since the pod was started"
        return "oom-killed", f"PID 1 of the pod was killed, as it seems by the kernel, {words}: {reason}"

    @contextmanager
    def _group(self) -> Iterator[MemoryGroup | None]:
        """Yield the group, None if it cannot be seen from here, as in a container."""
        try:
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield None
            return
        try:
            yield MemoryGroup(directory, is_v1=self._is_v1)
        finally:
            os.close(directory)


def tell_killed(reason: str, sentence: str) -> None:
    """Write the event that PID 1 was killed; where that cannot be written, it is only said."""
    with suppress(OSError):
        append_event(paths.POD_EVENTS, paths.PodEvent.POD_KILLED, {"reason": reason, "end": sentence})


def _count(group: MemoryGroup | None) -> tuple[int | None, int | None]:
    """Return how many levels up from the group processes are counted, None for the machine, and the count."""
    found = None if group is None else group.nearest_oom_kills()
    if found is not None:
        return found
    with open(_OF_THE_MACHINE, "rb") as file:
        return None, count_oom_kills(file.read())
