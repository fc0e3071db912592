"""An app's spec on its way from `app/add` to PID 1."""

from __future__ import annotations

import sys

from minit.plan.appplan import AppSpec, ProcessPlan, StoragePlan
from minit.plan.root.mountoperations import MakeSymlink
from minit.plan.speccodec import decode_spec, encode_spec

SPEC = AppSpec(
    name="web",
    process=ProcessPlan(
        candidates=("/bin/web", "/usr/bin/web"),
        arguments=("a", "b", "c"),
        environment=(("A", "1"), ("B", "2"), ("C", "3"), ("D", "4")),
    ),
    storage=StoragePlan(mounts=tuple(MakeSymlink(target=f"/{number}", text="x") for number in range(5))),
)


def test_a_spec_is_what_it_was() -> None:
    """Encoded and decoded it is the same."""
    assert decode_spec(encode_spec(SPEC)) == SPEC


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
