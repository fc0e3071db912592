"""The words of `app add` for LinuxContainerResources."""

from __future__ import annotations

from minit.cri.api import cri_pb2 as api
from minit.cri.translation.refusal import refuse

_LARGEST_SHARES = 262144


def resource_words(resources: api.LinuxContainerResources) -> list[str]:
    """Return the words for limits; CallError if minit has not all of them."""
    refuse(bool(resources.cpuset_cpus or resources.cpuset_mems), "resources.cpuset_cpus", "none")
    refuse(bool(resources.unified), "resources.unified", "none")
    words = []
    if resources.memory_limit_in_bytes > 0:
        words.append(f"--memory={resources.memory_limit_in_bytes}")
    if resources.cpu_quota > 0 and resources.cpu_period > 0:
        words.append(f"--cpu={max(1, 1000 * resources.cpu_quota // resources.cpu_period)}m")
    if resources.cpu_shares > 0:
        words.append(f"--cpu-shares={min(max(resources.cpu_shares, 2), _LARGEST_SHARES)}")
    if resources.oom_score_adj:
        words.append(f"--oom-score-adj={resources.oom_score_adj}")
    return words
