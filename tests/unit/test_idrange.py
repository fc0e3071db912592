"""Ranges of ids, which pods with a user namespace have on the host."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import PodError
from minit.base.idrange import MAX_HOST_ID, IdRange, parse_id_range
from minit.stage0.pods.privateusers import choose_ids


@st.composite
def ranges(draw: st.DrawFn) -> IdRange:
    """Draw a range that there can be."""
    shift = draw(st.integers(1, MAX_HOST_ID))
    return IdRange(shift=shift, count=draw(st.integers(1, MAX_HOST_ID - shift + 1)))


@given(ranges())
def test_ranges_read_back(ids: IdRange) -> None:
    """A range is read as it is written."""
    assert parse_id_range(str(ids)) == ids


@given(ranges(), st.integers(0, 2**32 - 1))
def test_there_and_back(ids: IdRange, number: int) -> None:
    """An id that is mapped to the host is mapped back, and the host's root belongs to no pod."""
    on_host = ids.to_host(number)
    assert (on_host is None) == (number >= ids.count)
    assert on_host is None or ids.from_host(on_host) == number
    in_pod = ids.from_host(number)
    assert in_pod is None or ids.to_host(in_pod) == number
    assert ids.from_host(0) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "1", "1:", ":1", "1:1:1", "-1:1", "+1:1", "1: 1", "1:1\n", "0x1:1", "1_0:1", "²:1", "a:b"),
        *("0:65536", "65536:0", f"{MAX_HOST_ID}:2", f"1:{MAX_HOST_ID + 1}", "4294967295:1", f"1:{10**30}"),
    ],
)
def test_impossible_ranges(text: str) -> None:
    """Root of the host, no id at all and (uid_t) -1 make no range."""
    assert parse_id_range(text) is None


def test_ids_that_are_taken() -> None:
    """A range is chosen that has none of the taken ids, wherever these begin, until there are none left."""
    only = 77
    taken = [
        IdRange(shift=1, count=only * 65536 - 1),
        IdRange(shift=(only + 1) * 65536 + 5, count=10),
        IdRange(shift=(only + 2) * 65536 - 1, count=MAX_HOST_ID - (only + 2) * 65536),
    ]
    assert {str(choose_ids(taken)) for _ in range(20)} == {f"{only * 65536}:65536"}
    with pytest.raises(PodError, match="no ids are left for --private-users: .*minit gc"):
        choose_ids([*taken, IdRange(shift=only * 65536 + 65535, count=1)])


@given(st.lists(ranges(), max_size=3))
def test_chosen_ids(taken: list[IdRange]) -> None:
    """Chosen are 65536 ids from a multiple of that on, none of them taken."""
    try:
        ids = choose_ids(taken)
    except PodError:
        return
    assert ids.count == 65536 and ids.shift % 65536 == 0 and parse_id_range(str(ids)) == ids
    assert not any(ids.overlaps(other) for other in taken)


@given(ranges(), ranges(), st.integers(1, MAX_HOST_ID))
def test_overlapping_ranges(one: IdRange, other: IdRange, number: int) -> None:
    """Ranges overlap that have an id in common, as every range does with itself, and adjacent ones have not."""
    assert one.overlaps(one)
    assert one.overlaps(other) == other.overlaps(one)
    assert one.overlaps(other) or None in (one.from_host(number), other.from_host(number))
    after = IdRange(shift=one.shift + one.count, count=1)
    assert not one.overlaps(after) and one.overlaps(IdRange(shift=after.shift - 1, count=1))
