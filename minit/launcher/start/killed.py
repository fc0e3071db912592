"""The sentence and the event about a PID 1 that was killed: by the kernel for want of memory, or by somebody."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from minit import paths
from minit.launcher.cgroups import Hierarchy, memory_group_of_pid_1
from minit.supervisor.apps.memorygroup import NO_LIMIT, MemoryGroup, count_oom_kills
from minit.supervisor.podevents import append_event

_OF_THE_MACHINE = "/proc/vmstat"


class KillWitness:
    """
    The kernel's counts of processes that it has killed for want of memory, from before the end of PID 1.

    Without a `subcgroup` PID 1 has no groups of its own, but is in those of this process.
    """

    def __init__(self, hierarchies: Sequence[Hierarchy], subcgroup: str | None) -> None:
        self._directory, self._is_v1 = memory_group_of_pid_1(hierarchies, subcgroup)
        self._is_own = subcgroup is not None
        self._levels, self._before, _ = self._look()

    def tell(self) -> str:
        """Write the event of a PID 1 that was killed, and return what it says."""
        reason, sentence = self._judge()
        tell_killed(reason, sentence)
        return sentence

    def _judge(self) -> tuple[str, str]:
        levels, kills, limit = self._look()
        if kills is None or self._before is None or levels != self._levels:
            return "unknown", "PID 1 of the pod was killed, by somebody on the host or for want of memory"
        count = kills - self._before
        if count <= 0:
            return "killed", "PID 1 of the pod was killed by somebody on the host"
        if self._is_own and levels == 0:
            return "oom-killed", f"PID 1 of the pod was killed by the kernel for want of memory: {limit}"
        # Others may be counted there as well.
        words = f"which has killed {count} of the processes around it for want of memory since the pod was started"
        return "oom-killed", f"PID 1 of the pod was killed, as it seems by the kernel, {words}: {limit}"

    def _look(self) -> tuple[int | None, int | None, str]:
        """Return how many levels up processes are counted, None for the machine, the count, and the limit in words."""
        try:
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None, _count_of_machine(), NO_LIMIT
        try:
            group = MemoryGroup(directory, is_v1=self._is_v1)
            levels, kills = group.nearest_oom_kills() or (None, _count_of_machine())
            limit = group.reached_limit()
        finally:
            os.close(directory)
        if limit is None:
            return levels, kills, NO_LIMIT
        place = os.path.normpath(f"{self._directory}/{'../' * limit.levels}")
        return levels, kills, f"the limit of {place} is {limit}"


def tell_killed(reason: str, sentence: str) -> None:
    """Write the event that PID 1 was killed; where that cannot be written, it is only said."""
    with suppress(OSError):
        append_event(paths.POD_EVENTS, paths.PodEvent.POD_KILLED, {"reason": reason, "end": sentence})


def _count_of_machine() -> int | None:
    try:
        with open(_OF_THE_MACHINE, "rb") as file:
            return count_oom_kills(file.read())
    except OSError:
        return None
