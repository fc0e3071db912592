"""Limits of the processes of a control group, and their files in each version of the kernel's interface."""

from __future__ import annotations

from minit.value import Value

MIN_CPU_SHARES, MAX_CPU_SHARES = 2, 262144  # sched-design-CFS.txt; appc has the same bounds

_PERIOD_MICROSECONDS = 100_000  # the kernel's default, and systemd's
_MICROSECONDS_PER_PERCENT = _PERIOD_MICROSECONDS // 100
_DEFAULT_SHARES, _DEFAULT_WEIGHT = 1024, 100
_MIN_WEIGHT, _MAX_WEIGHT = 1, 10_000

MEMORY, CPU, PIDS = "memory", "cpu", "pids"
# The one setting that v1 refuses if a group above allows less; v2 takes it, and the least of all counts.
CFS_QUOTA = "cpu.cfs_quota_us"


class Limits(Value):
    """
    The limits of one control group, None for each that is not set.

    `cpu_percent` is of one processor; `cpu_shares` is a weight against groups beside it, 1024 without one;
    `processes` counts threads.
    """

    memory_bytes: int | None = None
    cpu_percent: int | None = None
    cpu_shares: int | None = None
    processes: int | None = None

    @property
    def controllers(self) -> frozenset[str]:
        """The controllers that keep the limits."""
        needs = (
            (MEMORY, self.memory_bytes),
            (CPU, self.cpu_percent),
            (CPU, self.cpu_shares),
            (PIDS, self.processes),
        )
        return frozenset([controller for controller, limit in needs if limit is not None])

    def settings(self, controller: str, is_v2: bool) -> list[tuple[str, str]]:
        """Return the files of a controller and what is written to them, in that order (cgroups(7), cgroup-v2.rst)."""
        if controller == MEMORY and self.memory_bytes is not None:
            return [("memory.max" if is_v2 else "memory.limit_in_bytes", str(self.memory_bytes))]
        if controller == PIDS and self.processes is not None:
            return [("pids.max", str(self.processes))]
        settings = []
        if controller == CPU and self.cpu_percent is not None:
            quota = self.cpu_percent * _MICROSECONDS_PER_PERCENT
            if is_v2:
                settings.append(("cpu.max", f"{quota} {_PERIOD_MICROSECONDS}"))
            else:
                settings += [("cpu.cfs_period_us", str(_PERIOD_MICROSECONDS)), (CFS_QUOTA, str(quota))]
        if controller == CPU and self.cpu_shares is not None:
            weight = shares_to_weight(self.cpu_shares)
            settings.append(("cpu.weight", str(weight)) if is_v2 else ("cpu.shares", str(self.cpu_shares)))
        return settings

    def within(self, outer: Limits) -> Limits:
        """Return these limits, none wider than those of a group around; what v1 is told must be so for the quota."""
        return Limits(
            memory_bytes=_least(self.memory_bytes, outer.memory_bytes),
            cpu_percent=_least(self.cpu_percent, outer.cpu_percent),
            cpu_shares=self.cpu_shares,
            processes=_least(self.processes, outer.processes),
        )

    def describe(self) -> str:
        """Return the limits as part of a line for --debug."""
        words = (
            (self.memory_bytes, "memory {} bytes"),
            (self.cpu_percent, "{}% of a processor"),
            (self.cpu_shares, "cpu shares {}"),
            (self.processes, "{} processes"),
        )
        return ", ".join([text.format(limit) for limit, text in words if limit is not None]) or "none"


def shares_to_weight(shares: int) -> int:
    """Return the weight in v2 of shares in v1, in proportion to the defaults of both, as systemd converts them."""
    return max(_MIN_WEIGHT, min(shares * _DEFAULT_WEIGHT // _DEFAULT_SHARES, _MAX_WEIGHT))


def _least(own: int | None, outer: int | None) -> int | None:
    return own if own is None or outer is None else min(own, outer)
