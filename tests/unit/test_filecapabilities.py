"""The `security.capability` of files whose owners are shifted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minit.archives.filecontent import shift_capabilities, unshift_capabilities
from minit.base.idrange import IdRange

IDS = IdRange(shift=0x30000, count=65536)

SETS = bytes(range(16))


def revision_2(flags: int = 1) -> bytes:
    """Capabilities for every user namespace."""
    return bytes([flags, 0, 0, 2]) + SETS


def revision_3(rootid: int, flags: int = 1) -> bytes:
    """Capabilities for one whose root is `rootid`."""
    return bytes([flags, 0, 0, 3]) + SETS + rootid.to_bytes(4, "little")


def test_every_namespace_becomes_that_of_the_pod() -> None:
    """A capability of every namespace counts in the pod's alone; flags and sets stay, and it is shifted back."""
    for flags in (0, 1):
        assert shift_capabilities(revision_2(flags), IDS) == revision_3(0x30000, flags)
        assert unshift_capabilities(revision_3(0x30000, flags), IDS) == revision_2(flags)
        assert unshift_capabilities(revision_2(flags), IDS) == revision_2(flags)


def test_namespaces_below_that_of_the_pod() -> None:
    """The root of another namespace is an id of the image, and shifted like any other."""
    assert shift_capabilities(revision_3(5), IDS) == revision_3(0x30005)
    assert unshift_capabilities(revision_3(0x30005), IDS) == revision_3(5)
    assert shift_capabilities(revision_3(65536), IDS) is None
    assert unshift_capabilities(revision_3(5), IDS) is None


@given(st.binary(max_size=30))
def test_other_values(value: bytes) -> None:
    """An attribute that is no capability of a known form is left alone."""
    if value[3:4] not in (b"\2", b"\3"):
        assert shift_capabilities(value, IDS) == unshift_capabilities(value, IDS) == value
    shift_capabilities(value, IDS)
    unshift_capabilities(value, IDS)
