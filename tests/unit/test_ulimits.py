"""minit.manifest.ulimits and minit.plan.resources: limits of getrlimit(2) as text, and those of an app."""

from __future__ import annotations

import re
import resource
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ManifestError
from minit.base.value import replace
from minit.cli.flags.appoptions import apply_app_flag
from minit.cli.flagwords import FlagError
from minit.linux.attributes import UNLIMITED, narrower
from minit.linux.process import read_limits
from minit.manifest.ulimits import RESOURCES, parse_bounds, read_ulimits, spell_bounds
from minit.plan.appplan import AppPlan, plan_app
from minit.stage0.pods.appsection import AppOverrides
from tests.support.planning import RUNTIME, app_input
from tests.support.stage0_world import REPOSITORY

LIMITS = st.integers(0, 2**63 - 1) | st.just(UNLIMITED)


@given(LIMITS, LIMITS)
def test_what_is_spelled_is_read(one: int, other: int) -> None:
    """Limits survive the way to text and back, with the soft one not above the hard one."""
    hard = UNLIMITED if UNLIMITED in (one, other) else max(one, other)
    bounds = narrower(one, other), hard
    assert parse_bounds(spell_bounds(bounds)) == bounds
    assert parse_bounds(spell_bounds(bounds).replace("unlimited", "-1")) == bounds


@given(st.text(st.sampled_from("-0123456789:unlimited ²٣")) | st.text())
def test_another_text(text: str) -> None:
    """Any text is refused by ValueError, or has a soft limit no wider than the hard one."""
    with suppress(ValueError):
        soft, hard = parse_bounds(text)
        assert narrower(soft, hard) == soft


@pytest.mark.parametrize(
    "text", ["", ":", "1:", ":1", "2:1", "-1:1", "unlimited:5", "1:2:3", "-2", "0x1", "1k", f"{2**63}"]
)
def test_no_limits(text: str) -> None:
    """A side that is absent, a soft limit above the hard one, and other units are refused."""
    with pytest.raises(ValueError, match="limit"):
        parse_bounds(text)


@given(st.text())
def test_another_annotation(text: str) -> None:
    """Anything is read, or refused by the one error for that."""
    with suppress(ManifestError):
        read_ulimits(text, "here")


def test_every_resource_of_the_kernel() -> None:
    """Each has a row with a number of its own, and the limits that Python knows have Python's."""
    assert sorted(row.number for row in RESOURCES.values()) == [number for number, _, _ in read_limits()]
    for name, row in RESOURCES.items():
        assert getattr(resource, f"RLIMIT_{name.upper()}", row.number) == row.number


def test_the_table_of_the_documents() -> None:
    """docs/confinement.md has the limits of every app."""
    text = (REPOSITORY / "docs/confinement.md").read_text()
    [table] = re.findall(r"<!-- ulimits -->\n.*\n.*\n((?:.*\n)*?)<!-- /ulimits -->", text)
    told = {}
    for line in table.splitlines():
        names, *limits = (cell.strip() for cell in line.strip("|").split("|"))
        told.update(dict.fromkeys(re.findall(r"`(\w+)`", names), tuple(limits)))
    half = ("half of `kernel.threads-max`",) * 2
    words = {
        name: half
        if row.bounds is None
        else tuple("unlimited" if limit == UNLIMITED else str(limit) for limit in row.bounds)
        for name, row in RESOURCES.items()
    }
    assert told == words


def plan(text: str | None, **facts: Any) -> tuple[AppPlan, list[str]]:
    """Return the plan of an app with the annotation, on a host with these facts, and the warnings."""
    annotations = () if text is None else (("minit/ulimits", text),)
    given = app_input(replace(RUNTIME, annotations=annotations))
    return plan_app(replace(given, pod=replace(given.pod, facts=replace(given.pod.facts, **facts))), None)


def test_a_caller_with_few_rights() -> None:
    """No limit is wider than the caller's hard one; only a limit that was asked for is worth a warning."""
    hard_limits = [UNLIMITED] * len(RESOURCES)
    hard_limits[resource.RLIMIT_NOFILE], hard_limits[resource.RLIMIT_CORE] = 700, 0
    made, warnings = plan('{"core": "5:9", "stack": "1"}', hard_limits=tuple(hard_limits))
    limits = {number: (soft, hard) for number, soft, hard in made.resources.rlimits}
    assert limits[resource.RLIMIT_NOFILE] == (700, 700)
    assert (limits[resource.RLIMIT_CORE], limits[resource.RLIMIT_STACK]) == ((0, 0), (1, 1))
    assert made.resources.describe()[-1] == "ulimits core=0, nofile=700, stack=1"
    reason = "core=0 in place of 5:9: the kernel, or the rights of the caller, allow no more"
    assert warnings == [f'warning: app "web": annotation minit/ulimits: {reason}']


def test_limits_of_the_caller() -> None:
    """With the word host all are the caller's, but for those that are named; otherwise none is."""
    own = tuple((row.number, 3, 4) for row in RESOURCES.values())
    asked = {
        number: (soft, hard)
        for number, soft, hard in plan('{"host": true, "cpu": "1:2"}', limits=own)[0].resources.rlimits
    }
    assert asked == {**{row.number: (3, 4) for row in RESOURCES.values()}, resource.RLIMIT_CPU: (1, 2)}
    for text in (None, "{}", '{"host": false}'):
        assert plan(text, limits=own) == plan(None)


def test_the_option() -> None:
    """Uses add up to one annotation, of which the last for a name counts."""
    overrides = AppOverrides()
    for text in ("nofile=1:2", "host", "nofile=512:1024", "core=-1", "as=4096"):
        overrides = apply_app_flag(overrides, "--ulimit", text)
    [(name, value)] = overrides.annotations
    assert (name, value) == ("minit/ulimits", '{"nofile":"512:1024","host":true,"core":"unlimited","as":"4096"}')


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nofile", "expected NAME=SOFT[:HARD] with one of as, core,"),
        ("files=1", 'or host, got "files=1"'),
        ("host=1", 'or host, got "host=1"'),
        ("nofile=2:1", '--ulimit: nofile: the soft limit is above the hard one in "2:1"'),
        ("core=1k", '--ulimit: core: expected a number up to 9223372036854775807, -1 or unlimited, got "1k"'),
    ],
)
def test_another_value_of_the_option(text: str, reason: str) -> None:
    """The error has the option, and the possible values."""
    with pytest.raises(FlagError) as caught:
        apply_app_flag(AppOverrides(), "--ulimit", text)
    assert reason in str(caught.value)
