"""minit.manifest.limits: limits that isolators have no words for, and what is written for them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.errors import ManifestError
from minit.manifest.limits import CpuQuota, Limits, with_annotation

MEMORY = Limits(memory_bytes=100_000, cpu_quota=CpuQuota(quota=50_000))
ALL = {
    "cpuQuota": 33_333,
    "cpuPeriod": 50_000,
    "cpus": "0-1",
    "mems": "0",
    "swap": 5,
    "hugepages": {"2MB": 0, "1GB": 1 << 30},
    "unified": {"memory.high": "90000", "io.max": "8:0 rbps=5"},
}


def written(limits: Limits, *, is_v2: bool) -> list[tuple[str, str]]:
    """Return all that is written for some limits."""
    return [pair for controller in sorted(limits.controllers) for pair in limits.settings(controller, is_v2)]


def test_all_fields() -> None:
    """Each has its files in both versions, those of v2 by their names in that one alone."""
    limits = with_annotation(MEMORY, json.dumps(ALL), "here")
    assert limits.cpu_quota == CpuQuota(quota=33_333, period=50_000)
    hugepages = ("hugetlb.1GB", str(1 << 30)), ("hugetlb.2MB", "0")
    assert written(limits, is_v2=False) == [
        *(("cpu.cfs_period_us", "50000"), ("cpu.cfs_quota_us", "33333")),
        *(("cpuset.cpus", "0-1"), ("cpuset.mems", "0")),
        *((f"{name}.limit_in_bytes", value) for name, value in hugepages),
        *(("memory.limit_in_bytes", "100000"), ("memory.memsw.limit_in_bytes", "100005")),
    ]
    assert written(limits, is_v2=True) == [
        *(("cpu.max", "33333 50000"), ("cpuset.cpus", "0-1"), ("cpuset.mems", "0")),
        *((f"{name}.max", value) for name, value in hugepages),
        *(("io.max", "8:0 rbps=5"), ("memory.max", "100000"), ("memory.swap.max", "5"), ("memory.high", "90000")),
    ]


def test_no_limit_at_all() -> None:
    """It is said so in each version; huge pages of 0 need no controller."""
    limits = with_annotation(MEMORY, '{"cpuQuota": -1, "swap": -1, "hugepages": {"2MB": 0}}', "here")
    assert ("cpu.max", "max 100000") in written(limits, is_v2=True)
    assert ("cpu.cfs_quota_us", "-1") in written(limits, is_v2=False)
    assert ("memory.swap.max", "max") in written(limits, is_v2=True)
    assert ("memory.memsw.limit_in_bytes", "-1") in written(limits, is_v2=False)
    assert limits.needed_controllers == {"cpu", "memory"} == limits.controllers - {"hugetlb"}


def test_a_quota_within_that_of_the_pod() -> None:
    """A quota of more is that of the pod; one of less stays as it is."""
    quota = Limits(cpu_quota=CpuQuota(quota=60_000))
    assert quota.within(Limits(cpu_quota=CpuQuota(quota=60_000))) == quota
    assert written(quota.within(Limits(cpu_quota=CpuQuota(quota=59_000))), is_v2=True) == [("cpu.max", "59000 100000")]


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "5", '{"cpu": 5}', '{"cpuQuota": 999}', '{"cpuQuota": "5"}', '{"cpuPeriod": 50000}'),
        *(
            '{"cpuQuota": 5000, "cpuPeriod": 999}',
            '{"cpus": ""}',
            '{"cpus": "0-"}',
            '{"mems": "0\\n1"}',
            '{"swap": -2}',
        ),
        *('{"hugepages": {"2mb": 0}}', '{"hugepages": {"2MB": -1}}', '{"hugepages": []}'),
        *('{"unified": {"cgroup.kill": "1"}}', '{"unified": {"memory/max": "1"}}', '{"unified": {"memory.max": 1}}'),
        *('{"unified": {"../memory.max": "1"}}', '{"unified": {"memory.max": "1\\n"}}', '{"unified": {"memory": "1"}}'),
    ],
)
def test_bad_values(text: str) -> None:
    """They are refused with their place."""
    with pytest.raises(ManifestError, match="^here"):
        with_annotation(MEMORY, text, "here")


def test_swap_without_memory() -> None:
    """A limit of swap is one beside that of memory."""
    with pytest.raises(ManifestError, match="a limit of memory beside it"):
        with_annotation(Limits(), '{"swap": 0}', "here")


@given(
    st.dictionaries(
        st.sampled_from(sorted(ALL)), st.none() | st.integers() | st.text() | st.sampled_from([*ALL.values()])
    )
)
def test_any_values(value: dict[str, object]) -> None:
    """Either they are refused or there are files for them, none outside of the group."""
    try:
        limits = with_annotation(MEMORY, json.dumps(value), "here")
    except ManifestError:
        return
    for is_v2 in (False, True):
        assert all("/" not in file and "\n" not in text for file, text in written(limits, is_v2=is_v2))
