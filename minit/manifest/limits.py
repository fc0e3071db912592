"""Limits of the processes of a control group, and their files in each version of the kernel's interface."""

from __future__ import annotations

from minit.value import Value, replace

MIN_CPU_SHARES, MAX_CPU_SHARES = 2, 262144  # sched-design-CFS.txt; appc has the same bounds

_PERIOD_MICROSECONDS = 100_000  # the kernel's default, and systemd's
_MICROSECONDS_PER_PERCENT = _PERIOD_MICROSECONDS // 100
_DEFAULT_SHARES, _DEFAULT_WEIGHT = 1024, 100
_MIN_WEIGHT, _MAX_WEIGHT = 1, 10_000

MEMORY, CPU, PIDS, CPUSET, HUGETLB = "memory", "cpu", "pids", "cpuset", "hugetlb"
UNLIMITED = -1
# The one setting that v1 refuses if a group above allows less; v2 takes it, and the least of all counts.
CFS_QUOTA = "cpu.cfs_quota_us"
SWAP_FILES = ("memory.swap.max", "memory.memsw.limit_in_bytes")
"""Those of a kernel that counts swap."""


class CpuQuota(Value):
    """So many microseconds of processor time in each period, which is in microseconds, too; UNLIMITED for any."""

    quota: int
    period: int = _PERIOD_MICROSECONDS


class Limits(Value):
    """
    The limits of one control group, None for each that is not set; memory and swap may be UNLIMITED.

    `cpu_percent` is of one processor, `cpu_quota` counts instead of it; `cpu_shares` is a weight against groups beside
    it, 1024 without one. `processes` counts threads. `swap_bytes` is beside a limit of memory, which has to be there.
    `cpus` and `mems` are lists of processors and of nodes of memory, as in `0-2,7`. `hugepages` are bytes by the size
    of pages, as in `2MB`. `unified` is what is written to files of v2.
    """

    memory_bytes: int | None = None
    swap_bytes: int | None = None
    cpu_percent: int | None = None
    cpu_quota: CpuQuota | None = None
    cpu_shares: int | None = None
    processes: int | None = None
    cpus: str | None = None
    mems: str | None = None
    hugepages: tuple[tuple[str, int], ...] = ()
    unified: tuple[tuple[str, str], ...] = ()

    @property
    def controllers(self) -> frozenset[str]:
        """The controllers that keep the limits."""
        needs = (
            (MEMORY, self.memory_bytes),
            (CPU, self.cpu_percent),
            (CPU, self.cpu_quota),
            (CPU, self.cpu_shares),
            (PIDS, self.processes),
            (CPUSET, self.cpus),
            (CPUSET, self.mems),
            # No huge pages are what there is without the controller.
            (HUGETLB, any(limit for _, limit in self.hugepages) or None),
        )
        named = [controller for controller, limit in needs if limit is not None]
        return frozenset(named + [file.partition(".")[0] for file, _ in self.unified])

    def settings(self, controller: str, is_v2: bool) -> list[tuple[str, str]]:
        """Return the files of a controller and what is written to them, in that order (cgroups(7), cgroup-v2.rst)."""
        own = {
            MEMORY: self._memory_settings,
            CPU: self._cpu_settings,
            PIDS: self._process_settings,
            CPUSET: self._cpuset_settings,
            HUGETLB: self._hugepage_settings,
        }.get(controller)
        settings = [] if own is None else own(is_v2)
        return settings + [(file, text) for file, text in self.unified if file.startswith(f"{controller}.") and is_v2]

    def _memory_settings(self, is_v2: bool) -> list[tuple[str, str]]:
        if self.memory_bytes is None:
            return []
        settings = [("memory.max" if is_v2 else "memory.limit_in_bytes", _amount(self.memory_bytes, is_v2))]
        if self.swap_bytes is not None:
            of_v2, of_v1 = SWAP_FILES
            both = (
                UNLIMITED if UNLIMITED in (self.memory_bytes, self.swap_bytes) else self.memory_bytes + self.swap_bytes
            )
            settings.append((of_v2, _amount(self.swap_bytes, is_v2)) if is_v2 else (of_v1, str(both)))
        return settings

    def _cpu_settings(self, is_v2: bool) -> list[tuple[str, str]]:
        settings = []
        quota = self.cpu_quota
        if quota is None and self.cpu_percent is not None:
            quota = CpuQuota(quota=self.cpu_percent * _MICROSECONDS_PER_PERCENT)
        if quota is not None and is_v2:
            settings.append(("cpu.max", f"{_amount(quota.quota, is_v2)} {quota.period}"))
        elif quota is not None:
            settings += [("cpu.cfs_period_us", str(quota.period)), (CFS_QUOTA, str(quota.quota))]
        if self.cpu_shares is not None:
            weight = shares_to_weight(self.cpu_shares)
            settings.append(("cpu.weight", str(weight)) if is_v2 else ("cpu.shares", str(self.cpu_shares)))
        return settings

    def _process_settings(self, _: bool) -> list[tuple[str, str]]:
        return [] if self.processes is None else [("pids.max", str(self.processes))]

    def _cpuset_settings(self, _: bool) -> list[tuple[str, str]]:
        lists = (("cpuset.cpus", self.cpus), ("cpuset.mems", self.mems))
        return [(file, text) for file, text in lists if text is not None]

    def _hugepage_settings(self, is_v2: bool) -> list[tuple[str, str]]:
        name = "max" if is_v2 else "limit_in_bytes"
        return [(f"hugetlb.{size}.{name}", str(limit)) for size, limit in self.hugepages]

    def within(self, outer: Limits) -> Limits:
        """Return these limits, none wider than those of a group around; what v1 is told must be so for the quota."""
        most, own = outer.cpu_percent, self.cpu_quota
        is_wider = most is not None and own is not None and own.quota * 100 > most * own.period
        return replace(
            self,
            memory_bytes=_least(self.memory_bytes, outer.memory_bytes),
            cpu_percent=_least(most if is_wider else self.cpu_percent, most),
            cpu_quota=None if is_wider else own,
            processes=_least(self.processes, outer.processes),
        )

    def describe(self) -> str:
        """Return the limits as part of a line for --debug."""
        words = [
            (self.memory_bytes, "memory {} bytes"),
            (self.swap_bytes, "swap {} bytes"),
            (None if self.cpu_quota is not None else self.cpu_percent, "{}% of a processor"),
            (self.cpu_shares, "cpu shares {}"),
            (self.processes, "{} processes"),
            (self.cpus, "processors {}"),
            (self.mems, "nodes of memory {}"),
            *((f"{limit} bytes in pages of {size}", "{}") for size, limit in self.hugepages),
            *((f"{file}={text}", "{}") for file, text in self.unified),
        ]
        if self.cpu_quota is not None:
            words.append((f"{self.cpu_quota.quota} of {self.cpu_quota.period} us of processors", "{}"))
        return ", ".join([text.format(limit) for limit, text in words if limit is not None]) or "none"


def shares_to_weight(shares: int) -> int:
    """Return the weight in v2 of shares in v1, in proportion to the defaults of both, as systemd converts them."""
    return max(_MIN_WEIGHT, min(shares * _DEFAULT_WEIGHT // _DEFAULT_SHARES, _MAX_WEIGHT))


def _least(own: int | None, outer: int | None) -> int | None:
    return own if own is None or outer is None else min(own, outer)


def _amount(limit: int, is_v2: bool) -> str:
    return "max" if is_v2 and limit == UNLIMITED else str(limit)
