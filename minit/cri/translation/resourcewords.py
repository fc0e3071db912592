"""The words of `app add` for LinuxContainerResources."""

from __future__ import annotations

import json

from minit.cri.api import cri_pb2 as api
from minit.cri.translation.refusal import refuse

_LARGEST_SHARES = 262144


def resource_words(resources: api.LinuxContainerResources) -> list[str]:
    """Return the words for limits; CallError if minit has not all of them."""
    words = []
    if resources.memory_limit_in_bytes > 0:
        words.append(f"--memory={resources.memory_limit_in_bytes}")
    if resources.cpu_shares > 0:
        words.append(f"--cpu-shares={min(max(resources.cpu_shares, 2), _LARGEST_SHARES)}")
    if resources.oom_score_adj:
        words.append(f"--oom-score-adj={resources.oom_score_adj}")
    exact = _exact_limits(resources)
    return [*words, f"--annotation=minit/limits={json.dumps(exact)}"] if exact else words


def _exact_limits(resources: api.LinuxContainerResources) -> dict[str, object]:
    limits: dict[str, object] = {}
    if resources.cpu_quota > 0:
        limits["cpuQuota"] = resources.cpu_quota
        limits |= {"cpuPeriod": resources.cpu_period} if resources.cpu_period else {}
    if resources.cpuset_cpus:
        limits["cpus"] = resources.cpuset_cpus
    if resources.cpuset_mems:
        limits["mems"] = resources.cpuset_mems
    if resources.memory_swap_limit_in_bytes and resources.memory_limit_in_bytes > 0:
        limits["swap"] = swap_bytes(resources)
    if resources.hugepage_limits:
        limits["hugepages"] = {one.page_size: one.limit for one in resources.hugepage_limits}
    if resources.unified:
        limits["unified"] = dict(resources.unified)
    return limits


def swap_bytes(resources: api.LinuxContainerResources) -> int:
    """Return the limit of swap alone, of which the interface has the sum with that of memory; -1 for none."""
    both, memory = resources.memory_swap_limit_in_bytes, resources.memory_limit_in_bytes
    refuse(0 <= both < memory, "resources.memory_swap_limit_in_bytes", "at least memory_limit_in_bytes")
    return -1 if both < 0 else both - memory
