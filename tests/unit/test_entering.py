"""minit.plan.entering: what an app gives a command that is entered, as bytes and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import LaunchError
from minit.base.jsontext import dump
from minit.base.value import replace
from minit.linux.attributes import Attributes
from minit.linux.process import read_attributes
from minit.plan.appspec import AppSpec
from minit.plan.confinement import Confinement, ConfinementPlan, confine
from minit.plan.entering import EnterProfile, decode_profile, encode_profile, profile_of
from minit.plan.process import ProcessPlan

NUMBERS = st.integers(-1, 2**63)
ATTRIBUTES = st.builds(
    Attributes,
    affinity=st.lists(NUMBERS).map(tuple),
    coredump_filter=st.none() | NUMBERS,
    **dict.fromkeys(("nice", "policy", "io_priority", "personality", "timer_slack_ns", "thp_disable"), NUMBERS),
)
NAMES = st.binary(min_size=1).map(lambda data: data.replace(b"\0", b"").replace(b"=", b"") or b"A")
VALUES = st.binary().map(lambda data: data.replace(b"\0", b""))
PROFILES = st.builds(
    EnterProfile,
    environment=st.lists(st.tuples(NAMES, VALUES)).map(tuple),
    working_directory=st.text(st.characters(exclude_categories=["Cs"])),
    confinement=st.builds(
        Confinement,
        uid=st.integers(0, 2**32),
        gid=st.integers(0, 2**32),
        supplementary_gids=st.lists(NUMBERS).map(tuple),
        bounding=st.none() | NUMBERS,
        no_new_privileges=st.booleans(),
        filters=st.lists(st.binary()).map(tuple),
    ),
    oom_score_adj=st.none() | st.integers(-1000, 1000),
    attributes=st.none(),
    own_pids=st.booleans(),
)
LIMITS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS)).map(tuple)
PROFILES |= st.builds(replace, PROFILES, attributes=ATTRIBUTES, limits=LIMITS)


@given(PROFILES)
def test_a_profile_survives(profile: EnterProfile) -> None:
    """All bytes of its variables and filters are kept, lines and equals signs included."""
    assert decode_profile(encode_profile(profile), "test") == profile


@given(PROFILES, st.data())
def test_a_damaged_profile_is_refused(profile: EnterProfile, data: st.DataObject) -> None:
    """One that is cut off or has something added is told in one line, which names it."""
    whole = encode_profile(profile)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    for damaged in (cut, whole + b"x"):
        with pytest.raises(LaunchError, match="^test: ") as caught:
            decode_profile(damaged, "test")
        assert "\n" not in str(caught.value)


@given(st.binary())
def test_anything_else_is_refused(data: bytes) -> None:
    """Without another error than the one there is for it."""
    with pytest.raises(LaunchError, match="^test: "):
        decode_profile(data, "test")


OWN = read_attributes()
OBJECT = {"limits": [], **{name: getattr(OWN, name) for name in Attributes._fields}}
GOOD = {
    "cwd": "/",
    "uid": 0,
    "gid": 0,
    "gids": [],
    "bounding": None,
    "noNewPrivileges": False,
    "oomScoreAdj": 0,
    "attributes": None,
    "ownPids": False,
    "sizes": [0],
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cwd": 1}, "expected str, got int"),
        ({"gids": [True]}, "expected int, got bool"),
        ({"gids": None}, "expected list, got NoneType"),
        ({"bounding": "1"}, "expected int, got str"),
        ({"noNewPrivileges": 0}, "expected bool, got int"),
        ({"attributes": {**OBJECT, "limits": [[1, 2]]}}, "a limit has three numbers"),
        ({"attributes": {**OBJECT, "nice": "5"}}, "expected int, got str"),
        ({"attributes": {}}, "coredump_filter is missing"),
        ({"sizes": []}, "its parts have other sizes than it says"),
        ({"sizes": [-1, 1]}, "its parts have other sizes than it says"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, object], reason: str) -> None:
    """By what was expected."""
    assert decode_profile(dump(GOOD) + b"\n", "test") == EnterProfile(environment=(), oom_score_adj=0)
    with pytest.raises(LaunchError, match=f"^test: {reason}$"):
        decode_profile(dump({**GOOD, **change}) + b"\n", "test")


@pytest.mark.parametrize("missing", GOOD)
def test_what_is_missing_is_said(missing: str) -> None:
    """By its name."""
    header = {name: value for name, value in GOOD.items() if name != missing}
    with pytest.raises(LaunchError, match=f"^test: {missing} is missing$"):
        decode_profile(dump(header) + b"\n", "test")


def test_of_an_app() -> None:
    """An app that is not root and has a filter gains no privileges, and what enters it neither."""
    spec = AppSpec(
        name="a",
        process=ProcessPlan(candidates=("/x",), environment=(("A", "ä"),)),
        confinement=confine(ConfinementPlan(uid=1000), (b"12345678",)),
    )
    profile = profile_of(spec, OWN)
    assert profile.environment == ((b"A", "ä".encode()),)
    assert (profile.oom_score_adj, profile.attributes) == (0, OWN)
    assert profile.confinement == spec.confinement
    assert profile.confinement.no_new_privileges and profile.confinement.filters == (b"12345678",)
