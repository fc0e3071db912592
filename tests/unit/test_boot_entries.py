"""The firmware's entries for the slots of a disk, as they are read and written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minit.machine.efivariables import SlotEntry, first_slot, plan_entries
from minit.machine.partitions import PartitionEntry

PROGRAM = "\\EFI\\BOOT\\BOOTX64.EFI"
NUMBERS = st.integers(0, 9)


def entry(slot: str) -> SlotEntry:
    """Return the entry of a slot."""
    start = 2048 if slot == "a" else 4096
    partition = PartitionEntry(number=1, identifier=slot.encode() * 16, start_sector=start, sectors=2048)
    return SlotEntry(title=f"minit {slot}", partition=partition, program=PROGRAM)


SLOTS = {"a": entry("a"), "b": entry("b")}
OTHER = b"\1\0\0\0\4\0U\0I\0\0\0\x7f\xff\4\0"


def test_an_entry() -> None:
    """An entry has the form of the specification, and is known again by its partition and its program alone."""
    option = SLOTS["a"].option()
    assert option.hex() == (
        "01000000" + "5e00" + "6d0069006e00690074002000610000000401" + "2a00" + "01000000" + "0008000000000000" * 2
        # Of the partition: its identifier, that the table is a GPT, and that the identifier is a GUID; then the file.
        + "61" * 16 + "0202" + "0404" + "3000" + (PROGRAM + "\0").encode("utf-16-le").hex() + "7fff0400"
    )  # fmt: skip
    assert SLOTS["a"].is_in(option)
    assert SLOTS["a"].is_in(option.replace(b"m\0i\0n\0i\0t\0", b"M\0y\0 \0o\0w\0n\0").replace(b"B\0O\0", b"b\0o\0"))
    assert not SLOTS["b"].is_in(option)
    assert not SLOTS["a"].is_in(option.replace(b"X\0006\0004\0", b"A\0A\0004\0"))
    assert not SLOTS["a"].is_in(OTHER)


@given(st.binary(max_size=200))
def test_whatever_a_firmware_has(option: bytes) -> None:
    """An entry that is cut off, or is none, is nobody's."""
    whole = SLOTS["a"].option()
    assert not SLOTS["a"].is_in(option)
    assert not SLOTS["a"].is_in(whole[: len(option) % (len(whole) - 10)])


@given(st.dictionaries(NUMBERS, st.sampled_from((OTHER, b"", entry("a").option(), entry("b").option()))), st.data())
def test_entries_that_are_there(found: dict[int, bytes], data: st.DataObject) -> None:
    """The slots get one entry each, once; those of others stay, in their order, and so does what comes before ours."""
    order = tuple(data.draw(st.lists(NUMBERS, unique=True)))
    current = data.draw(st.none() | NUMBERS)
    first = data.draw(st.sampled_from(("a", "b")))
    plan = plan_entries(SLOTS, found, order, current, first)
    after = {**found, **plan.options}
    assert all(SLOTS[slot].is_in(after[number]) for slot, number in plan.numbers.items())
    assert all(number not in found or SLOTS["a"].is_in(found[number]) or SLOTS["b"].is_in(found[number])
               for number in plan.options)  # fmt: skip
    assert not plan.options.keys() & {number for number in order if number not in found}
    assert first_slot(SLOTS, {number: after[number] for number in plan.numbers.values()}, plan.order) == first
    ours = set(plan.numbers.values())
    assert [number for number in plan.order if number not in ours] == [n for n in order if n not in ours]
    assert len(plan.order) == len({*order, *ours})
    again = plan_entries(SLOTS, after, plan.order, current, first)
    assert (again.options, again.order) == ({}, plan.order)


def test_the_place_in_the_order() -> None:
    """The slots stand where the disk was: behind an entry of the network that is tried before, in front of the rest."""
    found = {0: OTHER, 1: OTHER, 2: OTHER}
    assert plan_entries(SLOTS, found, (0, 1, 2), 1, "a").order == (0, 3, 4, 1, 2)
    assert plan_entries(SLOTS, found, (0, 1, 2), None, "b").order == (4, 3, 0, 1, 2)
    found = {0: OTHER, 3: entry("a").option(), 4: entry("b").option()}
    assert plan_entries(SLOTS, found, (0, 3, 4), 4, "b").order == (0, 4, 3)
