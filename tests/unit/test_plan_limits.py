"""minit.manifest.limits: what is written where for each version of control groups."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ManifestError
from minit.manifest.limits import CONTROLLERS, LIMITS, CpuQuota, Limits, shares_to_weight, with_annotation

ALL = Limits(memory_bytes=4194304, cpu_quota=CpuQuota(quota=10_000), cpu_shares=512, processes=7)


def settings_of(limits: Limits, is_v2: bool) -> list[tuple[str, str]]:
    """Return what is written for all controllers of some limits."""
    return [pair for controller in sorted(limits.controllers) for pair in limits.settings(controller, is_v2)]


def test_v1() -> None:
    """The files are those of the v1 controllers; the period comes before the quota that refers to it."""
    assert settings_of(ALL, is_v2=False) == [
        ("cpu.cfs_period_us", "100000"),
        ("cpu.cfs_quota_us", "10000"),
        ("cpu.shares", "512"),
        ("memory.limit_in_bytes", "4194304"),
        ("pids.max", "7"),
    ]


def test_v2() -> None:
    """The files are those of the unified hierarchy, where shares are a weight."""
    assert settings_of(ALL, is_v2=True) == [
        ("cpu.max", "10000 100000"),
        ("cpu.weight", "50"),
        ("memory.max", "4194304"),
        ("pids.max", "7"),
    ]


@pytest.mark.parametrize(
    ("field", "controller"),
    [("memory_bytes", "memory"), ("cpu_quota", "cpu"), ("cpu_shares", "cpu"), ("processes", "pids")],
)
@pytest.mark.parametrize("is_v2", [False, True])
def test_nothing_is_written_for_what_is_not_limited(field: str, controller: str, is_v2: bool) -> None:
    """A limit needs its own controller and sets nothing of another; without any there is nothing to do."""
    limits = Limits(**{field: getattr(ALL, field)})
    assert limits.controllers == {controller}
    assert set(settings_of(limits, is_v2)) <= set(settings_of(ALL, is_v2))
    assert all(limits.settings(other, is_v2) == [] for other in {"memory", "cpu", "pids"} - {controller})
    assert Limits().controllers == frozenset() and settings_of(Limits(), is_v2) == []


@pytest.mark.parametrize(("shares", "weight"), [(2, 1), (10, 1), (21, 2), (512, 50), (1024, 100), (2048, 200)])
def test_weights(shares: int, weight: int) -> None:
    """A weight is to its default as the shares are to theirs."""
    assert shares_to_weight(shares) == weight


@given(st.integers(2, 262144), st.integers(2, 262144))
def test_weights_are_in_order(one: int, other: int) -> None:
    """For any shares the weight is one that the kernel takes, and more shares never weigh less."""
    assert 1 <= shares_to_weight(one) <= 10000
    assert one > other or shares_to_weight(one) <= shares_to_weight(other)


ANY = st.builds(
    Limits,
    memory_bytes=st.none() | st.integers(1, 9),
    cpu_quota=st.none() | st.integers(1, 9).map(lambda percent: CpuQuota(quota=percent * 1000)),
    cpu_shares=st.none() | st.integers(2, 9),
    processes=st.none() | st.integers(1, 9),
)


@given(ANY, ANY)
def test_limits_within_others(own: Limits, outer: Limits) -> None:
    """No own limit is wider than the one around, none appears that was not there, and shares are left alone."""
    inner = own.within(outer)
    assert inner.cpu_shares == own.cpu_shares
    for field in ("memory_bytes", "cpu_quota", "processes"):
        values = (getattr(limits, field) for limits in (own, inner, outer))
        before, after, bound = (value.quota if isinstance(value, CpuQuota) else value for value in values)
        assert after == (before if before is None or bound is None else min(before, bound))


def test_describe() -> None:
    """Each limit that is set is said."""
    assert ALL.describe() == "memory 4194304 bytes, 10% of a processor, cpu shares 512, 7 processes"
    assert Limits().describe() == "none"


def test_every_limit_has_a_row() -> None:
    """No field of Limits is without files, words and a controller; a file of v1 and of v2 are of one controller."""
    assert tuple(row.field for row in LIMITS) == Limits._fields
    for row in LIMITS:
        for v1 in row.v1:
            assert {file.partition(".")[0] for file in row.v2} == {v1.partition(".")[0]} <= CONTROLLERS


# The annotation.

MEMORY = Limits(memory_bytes=100_000, cpu_quota=CpuQuota(quota=50_000))
EVERY_KEY = {
    "cpuQuota": 33_333,
    "cpuPeriod": 50_000,
    "cpus": "0-1",
    "mems": "0",
    "swap": 5,
    "hugepages": {"2MB": 0, "1GB": 1 << 30},
    "unified": {"memory.high": "90000", "io.max": "8:0 rbps=5"},
}


def test_all_fields() -> None:
    """Each has its files in both versions, those of v2 by their names in that one alone."""
    limits = with_annotation(MEMORY, json.dumps(EVERY_KEY), "here")
    assert limits.cpu_quota == CpuQuota(quota=33_333, period=50_000)
    hugepages = ("hugetlb.1GB", str(1 << 30)), ("hugetlb.2MB", "0")
    assert settings_of(limits, is_v2=False) == [
        *(("cpu.cfs_period_us", "50000"), ("cpu.cfs_quota_us", "33333")),
        *(("cpuset.cpus", "0-1"), ("cpuset.mems", "0")),
        *((f"{name}.limit_in_bytes", value) for name, value in hugepages),
        *(("memory.limit_in_bytes", "100000"), ("memory.memsw.limit_in_bytes", "100005")),
    ]
    assert settings_of(limits, is_v2=True) == [
        *(("cpu.max", "33333 50000"), ("cpuset.cpus", "0-1"), ("cpuset.mems", "0")),
        *((f"{name}.max", value) for name, value in hugepages),
        *(("io.max", "8:0 rbps=5"), ("memory.max", "100000"), ("memory.swap.max", "5"), ("memory.high", "90000")),
    ]


def test_no_limit_at_all() -> None:
    """It is said so in each version; huge pages of 0 need no controller."""
    limits = with_annotation(MEMORY, '{"cpuQuota": -1, "swap": -1, "hugepages": {"2MB": 0}}', "here")
    assert ("cpu.max", "max 100000") in settings_of(limits, is_v2=True)
    assert ("cpu.cfs_quota_us", "-1") in settings_of(limits, is_v2=False)
    assert ("memory.swap.max", "max") in settings_of(limits, is_v2=True)
    assert ("memory.memsw.limit_in_bytes", "-1") in settings_of(limits, is_v2=False)
    assert limits.needed_controllers == {"cpu", "memory"} == limits.controllers - {"hugetlb"}


def test_a_quota_within_that_of_the_pod() -> None:
    """A quota of more is that of the pod; one of less stays as it is."""
    quota = Limits(cpu_quota=CpuQuota(quota=60_000))
    assert quota.within(Limits(cpu_quota=CpuQuota(quota=60_000))) == quota
    assert settings_of(quota.within(Limits(cpu_quota=CpuQuota(quota=59_000))), is_v2=True) == [
        ("cpu.max", "59000 100000")
    ]


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
        st.sampled_from(sorted(EVERY_KEY)),
        st.none() | st.integers() | st.text() | st.sampled_from([*EVERY_KEY.values()]),
    )
)
def test_any_values(value: dict[str, object]) -> None:
    """Either they are refused or there are files for them, none outside of the group."""
    try:
        limits = with_annotation(MEMORY, json.dumps(value), "here")
    except ManifestError:
        return
    for is_v2 in (False, True):
        assert all("/" not in file and "\n" not in text for file, text in settings_of(limits, is_v2=is_v2))
