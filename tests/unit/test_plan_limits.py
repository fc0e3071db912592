"""minit.manifest.limits: what is written where for each version of control groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.manifest.limits import Limits, shares_to_weight

ALL = Limits(memory_bytes=4194304, cpu_percent=10, cpu_shares=512, processes=7)


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
    [("memory_bytes", "memory"), ("cpu_percent", "cpu"), ("cpu_shares", "cpu"), ("processes", "pids")],
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


LIMITS = st.builds(
    Limits,
    memory_bytes=st.none() | st.integers(1, 9),
    cpu_percent=st.none() | st.integers(1, 9),
    cpu_shares=st.none() | st.integers(2, 9),
    processes=st.none() | st.integers(1, 9),
)


@given(LIMITS, LIMITS)
def test_limits_within_others(own: Limits, outer: Limits) -> None:
    """No own limit is wider than the one around, none appears that was not there, and shares are left alone."""
    inner = own.within(outer)
    assert inner.cpu_shares == own.cpu_shares
    for field in ("memory_bytes", "cpu_percent", "processes"):
        before, after, bound = (getattr(limits, field) for limits in (own, inner, outer))
        assert after == (before if before is None or bound is None else min(before, bound))


def test_describe() -> None:
    """Each limit that is set is said."""
    assert ALL.describe() == "memory 4194304 bytes, 10% of a processor, cpu shares 512, 7 processes"
    assert Limits().describe() == "none"
