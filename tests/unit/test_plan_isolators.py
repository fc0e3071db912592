"""minit.plan.rights.isolators: what isolators come to, and what is wrong with those that make no sense."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ManifestError
from minit.base.value import replace
from minit.manifest.app import Isolator
from minit.manifest.capabilities import DEFAULT, NAMES, capability_mask
from minit.manifest.limits import CpuQuota, Limits
from minit.manifest.reader import place
from minit.plan.inputs.hostfacts import HostFacts
from minit.plan.rights.isolators import Isolation, plan_isolation, plan_pod_limits

RETAIN, REMOVE = "os/linux/capabilities-retain-set", "os/linux/capabilities-remove-set"
EVERY = capability_mask(*NAMES)
FACTS = HostFacts(
    effective_uid=0,
    kernel_release="6.1",
    has_cgroups=True,
    controllers=frozenset({"memory", "cpu", "pids"}),
    capabilities=EVERY,
)
WHERE = place("pod", "apps", 2, "app", "isolators")
PLACE = "pod: apps[2].app.isolators"

Pairs = tuple[str, object]


def isolators(*pairs: Pairs) -> tuple[Isolator, ...]:
    """Return isolators by their names and values."""
    return tuple(Isolator(name=name, value=value) for name, value in pairs)


def isolation_of(*pairs: Pairs) -> Isolation:
    """Return what isolators come to, about which there is nothing to say."""
    isolation, warnings = plan_isolation(isolators(*pairs), WHERE, FACTS)
    assert warnings == []
    return isolation


def warnings_of(*pairs: Pairs, facts: HostFacts = FACTS) -> list[str]:
    """Return the warnings about isolators, of which nothing else may come."""
    isolation, warnings = plan_isolation(isolators(*pairs), WHERE, facts)
    assert isolation.limits == Limits()
    return warnings


def refusal_of(*pairs: Pairs) -> str:
    """Return why isolators are refused."""
    with pytest.raises(ManifestError) as caught:
        plan_isolation(isolators(*pairs), WHERE, FACTS)
    return str(caught.value)


# Capabilities.

SETS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=6)


def test_without_isolators() -> None:
    """There is rkt's default set, and no limit."""
    assert isolation_of() == Isolation(bounding=DEFAULT, oom_score_adj=None, limits=Limits())


@given(st.lists(SETS, min_size=1, max_size=3))
def test_retained_capabilities(sets: list[list[str]]) -> None:
    """The bounding set is exactly the union of all sets that retain."""
    expected = {name for names in sets for name in names}
    assert isolation_of(*((RETAIN, {"set": names}) for names in sets)).bounding == capability_mask(*expected)


@given(st.lists(SETS, min_size=1, max_size=3))
def test_removed_capabilities(sets: list[list[str]]) -> None:
    """The default set loses what any set removes, and never gains."""
    removed = capability_mask(*{name for names in sets for name in names})
    assert isolation_of(*((REMOVE, {"set": names}) for names in sets)).bounding == DEFAULT & ~removed


def test_everything_can_be_removed() -> None:
    """An empty bounding set is legal."""
    assert isolation_of((REMOVE, {"set": list(NAMES)})).bounding == 0


@pytest.mark.parametrize("spelling", ["cap_sys_chroot", "Cap_Sys_Chroot"])
def test_capabilities_in_any_case(spelling: str) -> None:
    """Names count in any case, as they do for systemd."""
    assert isolation_of((RETAIN, {"set": [spelling]})).bounding == capability_mask("CAP_SYS_CHROOT")


@given(SETS, SETS, st.booleans())
def test_retaining_and_removing(retained: list[str], removed: list[str], swapped: bool) -> None:
    """Both at once are refused, in rkt's words and with the place."""
    pairs = [(RETAIN, {"set": retained}), (REMOVE, {"set": removed})]
    message = refusal_of(*(reversed(pairs) if swapped else pairs))
    assert message == f"{PLACE}: cannot have both {RETAIN} and {REMOVE}"


@pytest.mark.parametrize("name", [RETAIN, REMOVE])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"set": ["CAP_KILL", "CAP_FLY"]}, '.set[1]: expected the name of a capability, got "CAP_FLY"'),
        ({"set": ["KILL"]}, '.set[0]: expected the name of a capability, got "KILL"'),
        ({"set": ["CAP_K\u0131LL"]}, '.set[0]: expected the name of a capability, got "CAP_K\\u0131LL"'),
        ({"set": [7]}, ".set[0]: expected the name of a capability, got 7"),
        ({"set": []}, ".set: expected at least one capability, got []"),
        ({"set": "CAP_KILL"}, '.set: expected a list, got "CAP_KILL"'),
        ({}, ".set: expected at least one capability, got nothing"),
        (None, ".set: expected at least one capability, got nothing"),
        (["CAP_KILL"], ': expected an object, got ["CAP_KILL"]'),
    ],
)
def test_bad_sets(name: str, value: object, message: str) -> None:
    """A value that is no set of known capabilities is refused with its place, whether it would retain or remove."""
    assert refusal_of(("a/b", None), (name, value)) == f"{PLACE}[1].value{message}"


def test_capabilities_that_nobody_has() -> None:
    """A capability that the caller cannot pass on is worth a warning; it stays in the set, and changes nothing."""
    facts = replace(FACTS, capabilities=EVERY & ~capability_mask("CAP_SYS_TIME", "CAP_BPF"))
    wanted = isolators((RETAIN, {"set": ["CAP_BPF", "CAP_KILL", "CAP_SYS_TIME"]}))
    _, warnings = plan_isolation(wanted, WHERE, facts)
    assert warnings == [f"warning: CAP_SYS_TIME CAP_BPF cannot be retained: the caller does not hold it ({PLACE})"]
    assert warnings_of((REMOVE, {"set": ["CAP_BPF"]}), facts=facts) == []


# Memory and processors.


@given(st.integers(4096, (1 << 63) - 1))
def test_memory_in_bytes(count: int) -> None:
    """A limit of memory is that many bytes."""
    assert isolation_of(("resource/memory", {"limit": str(count)})).limits == Limits(memory_bytes=count)


@pytest.mark.parametrize(
    ("limit", "count"),
    [
        *(("4194304", 4194304), ("4Mi", 4194304), ("64M", 64_000_000), ("1.5Gi", 3 << 29), ("5k", 5000)),
        *(("4096.1", 4097), ("8e3", 8000), (4096, 4096), (5000.5, 5001), ("9223372036854775807", (1 << 63) - 1)),
    ],
)
def test_limits_of_memory(limit: object, count: int) -> None:
    """Fractions are rounded up; a bare number is one too."""
    value = {"default": False, "request": "1", "limit": limit}
    assert isolation_of(("resource/memory", value)).limits == Limits(memory_bytes=count)


@given(st.integers(1, 10**9).map(lambda count: Fraction(count, 10**6)))
def test_processors_in_percent(limit: Fraction) -> None:
    """The quota is that of rkt: thousandths rounded up, then tenths of them cut off, but at least one percent."""
    text = f"{limit.numerator * (10**6 // limit.denominator)}u"
    percent = max(1, math.ceil(limit * 1000) // 10)
    assert isolation_of(("resource/cpu", {"limit": text})).limits == Limits(cpu_quota=CpuQuota(quota=percent * 1000))


@pytest.mark.parametrize(
    ("limit", "percent"),
    [
        *(("100m", 10), ("500m", 50), ("1", 100), ("1.5", 150), ("2500m", 250), (0.25, 25), ("100M", 10**10)),
        *(("1m", 1), ("9m", 1), ("19m", 1), ("1n", 1), ("19.1m", 2), ("20m", 2)),
    ],
)
def test_limits_of_processors(limit: object, percent: int) -> None:
    """500m is half a processor; what is below a percent is one."""
    assert isolation_of(("resource/cpu", {"limit": limit})).limits == Limits(cpu_quota=CpuQuota(quota=percent * 1000))


_MEMORY_RANGE = "a quantity from 4096 to 9223372036854775807 bytes"
_CPU_RANGE = "a quantity above 0 and up to 100000000 processors"
_QUANTITY = 'a quantity such as "500m", "16M" or "1.5Gi"'


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(
            ("memory", {"limit": limit}, f".limit: expected {_MEMORY_RANGE}, got {shown}")
            for limit, shown in (
                *(("16m", '"16m"'), ("0", '"0"'), ("-1G", '"-1G"'), (4095, "4095"), ("8Ei", '"8Ei"')),
                ("9223372036854775807.1", '"9223372036854775807.1"'),
            )
        ),
        *(
            ("cpu", {"limit": limit}, f".limit: expected {_CPU_RANGE}, got {shown}")
            for limit, shown in (("0", '"0"'), ("-1", '"-1"'), (0, "0"), ("101M", '"101M"'), ("1E", '"1E"'))
        ),
        *(
            (name, {key: limit}, f".{key}: expected {_QUANTITY}, got {shown}")
            for name in ("memory", "cpu")
            for key in ("limit", "request")
            for limit, shown in (("1K", '"1K"'), ("", '""'), (True, "true"), ([], "[]"), (1e30, "1e+30"))
        ),
        ("memory", {"default": True, "limit": "1G"}, ".default: expected false or nothing, got true"),
        ("cpu", {"default": 0, "limit": "1"}, ".default: expected true or false, got 0"),
        ("memory", "1G", ': expected an object, got "1G"'),
        ("hugepages", {"2MB": "4M"}, '["2MB"]: expected an integer from 0 to 9223372036854775807, got "4M"'),
    ],
)
def test_bad_limits(name: str, value: object, message: str) -> None:
    """A value that is no quantity, or absurd, is refused with its place."""
    assert refusal_of((f"resource/{name}", value)) == f"{PLACE}[0].value{message}"


@pytest.mark.parametrize(("name", "controller"), [("memory", "memory"), ("cpu", "cpu")])
def test_a_request_alone(name: str, controller: str) -> None:
    """Nothing is guaranteed, which is said unless there is a limit as well."""
    assert warnings_of((f"resource/{name}", {"request": "1G" if name == "memory" else "1"})) == [
        f"warning: isolator resource/{name} without a limit is not applied ({PLACE}[0])"
    ]
    assert warnings_of((f"resource/{name}", None)) == warnings_of((f"resource/{name}", {"limit": None})) == []


def test_huge_pages() -> None:
    """They are bytes by the size of pages, for apps and pods; only a limit of 0 needs no controller."""
    facts = replace(FACTS, controllers=FACTS.controllers | {"hugetlb"})
    pages = ("resource/hugepages", {"2MB": 4194304, "1GB": 0})
    planned = Limits(hugepages=(("1GB", 0), ("2MB", 4194304))), list[str]()
    assert plan_pod_limits(isolators(pages), place("pod", "isolators"), facts) == planned
    isolation, warnings = plan_isolation(isolators(pages), WHERE, facts)
    assert (isolation.limits, warnings) == planned
    assert isolation_of(("resource/hugepages", {"1GB": 0})).limits == Limits(hugepages=(("1GB", 0),))


def test_the_last_one_wins() -> None:
    """Of several limits of one resource the last counts."""
    pairs = [("resource/memory", {"limit": limit}) for limit in ("1G", "3G", "2G")]
    assert isolation_of(*pairs, ("resource/memory", {})).limits == Limits(memory_bytes=2 * 10**9)


# Numbers.


@pytest.mark.parametrize(
    ("name", "value", "isolation"),
    [
        *(("cpu-shares", shares, Isolation(limits=Limits(cpu_shares=shares))) for shares in (2, 1024, 262144)),
        *(("oom-score-adj", score, Isolation(oom_score_adj=score)) for score in (-1000, 0, 1000)),
    ],
)
def test_numbers(name: str, value: int, isolation: Isolation) -> None:
    """Shares and scores are numbers with appc's bounds."""
    assert isolation_of((f"os/linux/{name}", value)) == isolation


@pytest.mark.parametrize(
    ("name", "values", "bounds"),
    [
        ("cpu-shares", (1, 262145, -5, "512", 2.5, True, None), "2 to 262144"),
        ("oom-score-adj", (-1001, 1001, "7", 1.0, False, {}), "-1000 to 1000"),
    ],
)
def test_bad_numbers(name: str, values: tuple[object, ...], bounds: str) -> None:
    """All else is refused with its place."""
    for value in values:
        assert refusal_of((f"os/linux/{name}", value)).startswith(
            f"{PLACE}[0].value: expected an integer from {bounds}"
        )


# What is not applied.


@pytest.mark.parametrize(
    "name",
    [
        *("resource/block-bandwidth", "resource/block-iops", "resource/network-bandwidth"),
        *("os/linux/selinux-context", "os/unix/sysctl"),
    ],
)
def test_isolators_that_are_not_applied(name: str) -> None:
    """Isolators that rkt's stage1 reads and leaves alone have a warning."""
    assert warnings_of((name, {"limit": "1"})) == [f"warning: isolator {name} is not applied ({PLACE}[0])"]


def test_unknown_isolators() -> None:
    """Each is named with its place."""
    assert warnings_of(("acme/x", 1), ("resource/Memory", None)) == [
        f"warning: ignoring unknown isolator acme/x ({PLACE}[0])",
        f"warning: ignoring unknown isolator resource/Memory ({PLACE}[1])",
    ]


@pytest.mark.parametrize(
    ("name", "value", "controller"),
    [
        ("resource/memory", {"limit": "1G"}, "memory"),
        ("resource/cpu", {"limit": "1"}, "cpu"),
        ("os/linux/cpu-shares", 512, "cpu"),
        ("resource/hugepages", {"2MB": 1}, "hugetlb"),
    ],
)
def test_a_machine_without_the_controller(name: str, value: object, controller: str) -> None:
    """The limit is left out, with rkt's warning."""
    facts = replace(FACTS, controllers=FACTS.controllers - {controller})
    text = f"warning: {name} isolator set but support disabled in the kernel, skipping ({PLACE}[0])"
    assert warnings_of((name, value), facts=facts) == [text]


def test_isolators_of_a_pod() -> None:
    """Limits are those of all apps; what appc has for apps alone is refused; the rest is as for an app."""
    where = place("pod", "isolators")
    memory = ("resource/memory", {"limit": "1G"})
    planned = plan_pod_limits(isolators(memory, ("acme/x", 1), ("resource/block-iops", {})), where, FACTS)
    assert planned == (
        Limits(memory_bytes=10**9),
        [
            "warning: ignoring unknown isolator acme/x (pod: isolators[1])",
            "warning: isolator resource/block-iops is not applied (pod: isolators[2])",
        ],
    )
    for name in (RETAIN, REMOVE, "os/linux/cpu-shares", "os/linux/oom-score-adj", "os/linux/no-new-privileges"):
        with pytest.raises(ManifestError) as caught:
            plan_pod_limits(isolators(memory, (name, 2)), where, FACTS)
        assert str(caught.value) == f"pod: isolators[1]: isolator {name} is one of apps, not of pods"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["set", "limit", "request", "default", "Limit", "SET"]), inner, max_size=3)
    ),
    max_leaves=5,
)
NAMES_OF_ISOLATORS = st.sampled_from(
    [
        *(RETAIN, REMOVE, "resource/memory", "resource/cpu", "os/linux/cpu-shares", "os/linux/oom-score-adj"),
        *("os/unix/sysctl", "acme/x", "os/linux/seccomp-retain-set"),
    ]
)


@given(st.lists(st.tuples(NAMES_OF_ISOLATORS, JSON), max_size=3))
def test_any_values(pairs: list[Pairs]) -> None:
    """Any values come to an isolation within bounds, or to an error of one line with the place."""
    try:
        isolation, warnings = plan_isolation(isolators(*pairs), WHERE, FACTS)
    except ManifestError as error:
        assert str(error).startswith(PLACE) and "\n" not in str(error)
        return
    assert 0 <= isolation.bounding <= EVERY
    assert all("\n" not in warning and PLACE in warning for warning in warnings)
    assert isolation.limits.describe()
