"""minit.plan.appspec: an app on its way from `app/add` to PID 1."""

from __future__ import annotations

import sys
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from minit.base.errors import ControlError
from minit.base.value import Value
from minit.plan.appspec import AppSpec, decode_spec, encode_spec
from minit.plan.confinement import Confinement
from minit.plan.process import ProcessPlan
from minit.plan.root.mountoperations import MakeSymlink
from minit.plan.storage import StoragePlan

SPEC = AppSpec(
    name="web",
    process=ProcessPlan(
        candidates=("/bin/web", "/usr/bin/web"),
        arguments=("a", "b", "c"),
        environment=(("A", "1"), ("B", "2"), ("C", "3"), ("D", "4")),
    ),
    confinement=Confinement(),
    storage=StoragePlan(mounts=tuple(MakeSymlink(target=f"/{number}", text="x") for number in range(5))),
)

# Paths of the host may have bytes that are no text.
TEXTS = st.text(st.characters(codec="utf-8") | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF), max_size=4)
PLAIN: dict[object, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    bytes: st.binary(max_size=4),
    float: st.floats(allow_nan=False, allow_infinity=False),
    int: st.integers(-(1 << 63), (1 << 64) - 1),
    str: TEXTS,
    type(None): st.none(),
}


def any_of(hint: Any) -> st.SearchStrategy[Any]:
    """Return the values that a field with this annotation may have."""
    parts = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(*map(any_of, parts))
    if get_origin(hint) is frozenset:
        return st.frozensets(any_of(parts[0]), max_size=2)
    if get_origin(hint) is tuple:
        if parts[1:] == (...,):
            return st.lists(any_of(parts[0]), max_size=2).map(tuple)
        return st.tuples(*map(any_of, parts))
    if issubclass(hint, Value):
        hints = get_type_hints(hint)
        return st.builds(hint, **{name: any_of(hints[name]) for name in hint._fields})
    return PLAIN[hint]


@given(any_of(AppSpec))
# Shrinking a value of so many fields takes minutes.
@settings(suppress_health_check=[HealthCheck.too_slow], phases=[Phase.generate])
def test_a_spec_is_what_it_was(spec: AppSpec) -> None:
    """Encoded and decoded it is the same, whatever its fields hold by their annotations."""
    assert decode_spec(encode_spec(spec)) == spec


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"value": ["AppSpec", {}]}',
        b'{"value": ["PodPlan", {}]}',
        b'{"value": ["AppSpec"]}',
        b'{"value": ["AppSpec", []]}',
        b'{"value": ["Confinement", {}]}',
        b'{"bytes": "x"}',
    ],
)
def test_what_is_no_spec(data: bytes) -> None:
    """Any other bytes are refused."""
    with pytest.raises(ControlError, match="^spec: "):
        decode_spec(data)


def test_specs_leave_nothing_behind() -> None:
    """The interpreter keeps no more of specs that are gone, however many there were."""
    data = encode_spec(SPEC)
    held = []
    for _ in range(3):
        for _ in range(300):
            decode_spec(data)
        held.append(sys.getallocatedblocks())
    # Of a tuple that is kept there are three hundred.
    assert held[2] - held[1] < 100, held
