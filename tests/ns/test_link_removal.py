"""minit.network.netlink.links: removing a link without waiting for the kernel to free the link."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from minit.base.errors import NetworkError
from minit.network.netlink.links import Links
from minit.network.netlink.messages import Link

NAME = "early0"


@pytest.fixture
def links() -> Iterator[Links]:
    """The links of the session's network."""
    with Links() as links:
        yield links


@pytest.fixture
def pair(links: Links) -> Link:
    """One end of a pair of links."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        links.add_veth(NAME, "early1", own)
    finally:
        os.close(own)
    return links.get(NAME)


def test_a_link_removed_early_is_seen_by_nobody(links: Links, pair: Link) -> None:
    """Both ends are gone before the kernel has freed them."""
    with ExitStack() as freed:
        links.delete_early(pair, freed)
        assert links.find(NAME) is None
        assert links.find("early1") is None


def test_the_end_waits_for_the_kernel(links: Links, pair: Link) -> None:
    """Nothing goes on behind the end of the stack."""
    before = threading.active_count()
    with ExitStack() as freed:
        links.delete_early(pair, freed)
    assert threading.active_count() == before


def test_a_vanished_link_is_no_error(links: Links, pair: Link) -> None:
    """A link that somebody else has removed is as good as removed."""
    links.delete(pair)
    with ExitStack() as freed:
        links.delete_early(pair, freed)


def test_a_refusal_is_an_error(links: Links) -> None:
    """The kernel keeps lo, and says so."""
    with ExitStack() as freed, pytest.raises(NetworkError, match="cannot remove interface lo: "):
        links.delete_early(links.get("lo"), freed)
