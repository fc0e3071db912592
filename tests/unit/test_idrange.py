"""Ranges of ids, which pods with a user namespace have on the host."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import PodError
from minit.base.idrange import MAX_HOST_ID, HeldIds, IdRange, parse_id_range
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


def test_ids_of_a_user_namespace() -> None:
    """A namespace has the ids of its ranges, and tells which of a user and a group is missing."""
    alone = HeldIds(users=((0, 1),), groups=((0, 1),))
    some = HeldIds(users=((0, 1001),), groups=((0, 1), (5, 10)))
    assert alone.is_single and not some.is_single
    assert alone.find_lack(0, 0) is None and some.find_lack(1000, 14) is None and alone.find_lack(None, None) is None
    assert str(alone.find_lack(0, 5)).startswith("there is no group 5, only 0: let root add subordinate ids")
    assert str(some.find_lack(1001, 0)).startswith("there is no user 1001, only 0 to 1000: ")
    assert str(some.find_lack(None, 4)).startswith("there is no group 4, only 0, 5 to 14: ")
    assert some.holds(IdRange(shift=5, count=10))
    assert not some.holds(IdRange(shift=4, count=2)) and not some.holds(IdRange(shift=14, count=2))


@pytest.mark.parametrize(("last", "blocks"), [(131071, [1]), (131070, []), (200000, [1, 2]), (0, [])])
def test_ids_are_chosen_of_those_that_a_namespace_has(last: int, blocks: list[int]) -> None:
    """Chosen is a whole block beyond the first, of which every user and every group is there."""
    held = HeldIds(users=((0, 1 << 20),), groups=((0, last + 1),))
    taken: list[IdRange] = []
    while len(taken) < len(blocks):
        taken.append(choose_ids(taken, held))
    assert sorted(ids.shift // 65536 for ids in taken) == blocks
    with pytest.raises(PodError, match="no ids are left"):
        choose_ids(taken, held)


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
