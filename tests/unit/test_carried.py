"""minit.base.carried: objects of another version's state."""

from __future__ import annotations

import json
import os
import socket

import pytest

from minit.base.carried import Carried, CarriedCodec
from minit.base.errors import ManifestError


class Item(Carried):
    """An object in another."""

    number: int
    data: bytes | None


class Root(Carried):
    """Of the present version: `later` is a field with a default."""

    items: list[Item]
    first: Item
    later: str = "default"


class Pair(Carried):
    """Of two sockets."""

    one: socket.socket
    other: socket.socket


CODEC = CarriedCodec(Root, Pair)


def root() -> Root:
    """Return a root with one object in two fields."""
    item, value = Item(), Root()
    item.number, item.data = 1, b"\xff"
    value.items, value.first, value.later = [item], item, "set"
    return value


def changed(**fields: object) -> bytes:
    """Return the state of a root with other fields, None for a field that the state lacks."""
    data = json.loads(CODEC.encode(root())[0])
    state = {**data["objects"][0][1], **fields}
    data["objects"][0][1] = {name: value for name, value in state.items() if value is not None}
    return json.dumps(data).encode()


def test_an_object_in_two_fields_stays_one() -> None:
    """Fields, bytes and identity are those of before."""
    value = CODEC.decode(CODEC.encode(root())[0], "state")
    assert value.items == [value.first]
    assert (value.first.number, value.first.data, value.later) == (1, b"\xff", "set")


def test_a_field_of_a_later_version_has_its_default() -> None:
    """An older state lacks the field."""
    assert CODEC.decode(changed(later=None), "state").later == "default"


@pytest.mark.parametrize("fields", [{"first": None}, {"unknown": 1}])
def test_other_fields_are_refused(fields: dict[str, object]) -> None:
    """A field without a default is needed, and an unknown one means something."""
    with pytest.raises(ManifestError, match=f"state: not of this version: .*Root with other fields.*{[*fields][0]}"):
        CODEC.decode(changed(**fields), "state")


def test_sockets_stay_open_after_an_error() -> None:
    """A state whose second socket is none can be read again: the first one is open."""
    pair = Pair()
    pair.one, pair.other = socket.socketpair()
    state, _ = CODEC.encode(pair)
    fds = pair.one.detach(), pair.other.detach()
    os.dup2(reader := os.open("/dev/null", os.O_RDONLY), fds[1])
    with pytest.raises(OSError, match="non-socket"):
        CODEC.decode(state, "state")
    for fd in (*fds, reader):
        os.close(fd)
