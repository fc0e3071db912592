"""LinuxContainerResources as settings of an app to be added, and as limits of an app that is there already."""

from __future__ import annotations

import json

from minit.base.errors import ManifestError
from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code
from minit.cri.refusal import refuse
from minit.manifest.annotations import Annotation
from minit.manifest.app import CPU_SHARES, MEMORY, OOM_SCORE_ADJ, Isolator
from minit.manifest.limits import (
    MAX_CPU_SHARES,
    MIN_CPU_SHARES,
    MIN_MEMORY_BYTES,
    Limits,
    limit_isolator,
    with_annotation,
)


def limit_isolators(resources: api.LinuxContainerResources) -> tuple[Isolator, ...]:
    """Return the limits that isolators have; CallError if minit has not one of them."""
    isolators = []
    memory = resources.memory_limit_in_bytes
    if memory > 0:
        refuse(memory < MIN_MEMORY_BYTES, "resources.memory_limit_in_bytes", f"at least {MIN_MEMORY_BYTES}")
        isolators.append(limit_isolator(MEMORY, str(memory)))
    if resources.cpu_shares > 0:
        isolators.append(Isolator(name=CPU_SHARES, value=_shares(resources)))
    score = resources.oom_score_adj
    if score:
        refuse(not -1000 <= score <= 1000, "resources.oom_score_adj", "a number from -1000 to 1000")
        isolators.append(Isolator(name=OOM_SCORE_ADJ, value=score))
    return tuple(isolators)


def limit_annotation(resources: api.LinuxContainerResources) -> dict[str, str]:
    """Return the annotation with the limits that no isolator has; CallError if minit has not one of them."""
    exact = _exact_limits(resources)
    return {Annotation.LIMITS: json.dumps(exact)} if exact else {}


def resource_limits(resources: api.LinuxContainerResources) -> Limits:
    """Return the same as limits, but for `oom_score_adj`; CallError if they are none."""
    limits = Limits(
        memory_bytes=resources.memory_limit_in_bytes or None,
        cpu_shares=_shares(resources) if resources.cpu_shares > 0 else None,
    )
    try:
        return with_annotation(limits, json.dumps(_exact_limits(resources)), "resources")
    except ManifestError as error:
        raise CallError(Code.INVALID_ARGUMENT, str(error)) from error


def completed(
    asked: api.LinuxContainerResources, present: api.LinuxContainerResources
) -> tuple[api.LinuxContainerResources, api.LinuxContainerResources]:
    """
    Return what a change asks for, with the other one of two limits that belong together, and all limits after it.

    A field that is empty or 0 stays as it is. With another limit of memory there is as much swap beside it as before.
    """
    change = api.LinuxContainerResources()
    change.CopyFrom(asked)
    if asked.memory_limit_in_bytes and not asked.memory_swap_limit_in_bytes:
        change.memory_swap_limit_in_bytes = _moved_sum(asked.memory_limit_in_bytes, present)
    elif asked.memory_swap_limit_in_bytes and not asked.memory_limit_in_bytes:
        change.memory_limit_in_bytes = present.memory_limit_in_bytes
    if asked.cpu_quota or asked.cpu_period:
        change.cpu_quota = asked.cpu_quota or present.cpu_quota
        change.cpu_period = asked.cpu_period or present.cpu_period
    after = api.LinuxContainerResources()
    after.CopyFrom(present)
    sizes = {one.page_size for one in change.hugepage_limits}
    kept = [one for one in present.hugepage_limits if one.page_size not in sizes]
    del after.hugepage_limits[:]
    after.hugepage_limits.extend(kept)
    after.MergeFrom(change)
    return change, after


def _moved_sum(memory: int, present: api.LinuxContainerResources) -> int:
    both, before = present.memory_swap_limit_in_bytes, present.memory_limit_in_bytes
    if both <= 0 or before <= 0:
        return both
    return -1 if memory < 0 else memory + both - before


def _shares(resources: api.LinuxContainerResources) -> int:
    return min(max(resources.cpu_shares, MIN_CPU_SHARES), MAX_CPU_SHARES)


def _exact_limits(resources: api.LinuxContainerResources) -> dict[str, object]:
    limits: dict[str, object] = {}
    if resources.cpu_quota:
        limits["cpuQuota"] = max(resources.cpu_quota, -1)
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
