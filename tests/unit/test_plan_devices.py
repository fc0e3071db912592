"""minit.plan.root.devicevolumes: rules about devices, what two sets of them differ in, and who asks for hotplug."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import PlanError
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.plan.root.devicevolumes import (
    DEFAULT_RULES,
    Device,
    DeviceRule,
    common_rules,
    merge_rules,
    plan_hotplug,
    rule_changes,
)

RULES = st.builds(
    DeviceRule,
    kind=st.sampled_from("bc"),
    major=st.integers(0, 2),
    minor=st.none() | st.integers(0, 2),
    access=st.sampled_from(("r", "w", "m", "rw", "rm", "wm", "rwm")),
)


def grants(rules: tuple[DeviceRule, ...]) -> set[tuple[str, int, int | None, str]]:
    """Return every single right that the rules give."""
    return {(*rule.number, letter) for rule in rules for letter in rule.access}


def test_the_default_rules() -> None:
    """rkt's list and net/tun, as the kernel reads it; ptmx cannot be made."""
    nodes = ("1:3 rwm", "1:5 rwm", "1:7 rwm", "1:8 rwm", "1:9 rwm", "5:0 rwm", "5:2 rw", "10:200 rwm")
    terminals = [f"{major}:* rw" for major in range(136, 144)]
    assert [rule.describe() for rule in DEFAULT_RULES] == [f"c {rule}" for rule in (*nodes, *terminals)]


def test_the_rule_of_a_device() -> None:
    """It says what may be done with the device of that number."""
    device = Device(path="/dev/loop1", kind="b", major=7, minor=1, mode=0o660, subsystem="block")
    assert device.rule("rm").describe() == "b 7:1 rm"
    assert device.describe() == "device /dev/loop1: b 7:1 mode 660 subsystem block"


@given(rules=st.lists(RULES))
def test_merging(rules: list[DeviceRule]) -> None:
    """Each number has one rule, with all that any gives and nothing else; merging again changes nothing."""
    merged = merge_rules(rules)
    assert len({rule.number for rule in merged}) == len(merged)
    assert grants(merged) == grants(tuple(rules))
    assert merge_rules(merged) == merged


@given(old=st.lists(RULES).map(merge_rules), new=st.lists(RULES).map(merge_rules))
def test_changing(old: tuple[DeviceRule, ...], new: tuple[DeviceRule, ...]) -> None:
    """The denied and allowed devices lead from the one to the other, by what both have, and touch nothing else."""
    denied, allowed = rule_changes(old, new)
    assert grants(denied) == grants(old) - grants(new)
    assert grants(allowed) == grants(new) - grants(old)
    common = common_rules(old, new)
    assert grants(common) == grants(old) & grants(new)
    assert rule_changes(old, common) == (denied, ())
    assert rule_changes(common, new) == ((), allowed)


@pytest.mark.parametrize(
    ("of_app", "of_pod", "wanted"),
    [(None, None, False), ("true", None, True), (None, "true", True), ("false", "true", False), ("1", "0", True)],
)
def test_hotplug(of_app: str | None, of_pod: str | None, wanted: bool) -> None:
    """The app's annotation decides, else that of the pod."""
    own, pod = (() if text is None else (("minit/hotplug", text),) for text in (of_app, of_pod))
    runtime, manifest = RuntimeApp(name="web", annotations=own), PodManifest(ac_version="0.8.11", annotations=pod)
    assert plan_hotplug(runtime, manifest) is wanted


def test_a_hotplug_that_is_neither() -> None:
    """It is quoted with where it stands."""
    manifest = PodManifest(ac_version="0.8.11", annotations=(("minit/hotplug", "yes"),))
    for own, where in (((), ""), ((("minit/hotplug", "yes"),), 'app "web": ')):
        with pytest.raises(PlanError) as caught:
            plan_hotplug(RuntimeApp(name="web", annotations=own), manifest)
        assert str(caught.value) == f'{where}annotation minit/hotplug: expected "true" or "false", got "yes"'
