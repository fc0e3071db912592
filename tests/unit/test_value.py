"""minit.base.value: records that stand in for frozen dataclasses."""

from __future__ import annotations

import copy

import pytest

from minit.base.value import Value, replace


class Port(Value):
    """A record with a default."""

    name: str
    count: int = 1


class NamedPort(Port):
    """A record that extends another."""

    protocol: str = "tcp"


def test_fields_are_what_was_given_and_the_defaults() -> None:
    """A field that was not given has its class attribute's value."""
    port = Port(name="web")
    assert (port.name, port.count) == ("web", 1)
    assert Port(name="web", count=3).count == 3


def test_a_subclass_has_the_fields_of_both() -> None:
    """Inherited fields come first."""
    assert repr(NamedPort(name="web", count=2)) == "NamedPort(name='web', count=2, protocol='tcp')"


def test_a_missing_field_is_refused() -> None:
    """A field without a default must be given."""
    with pytest.raises(TypeError, match="^Port needs name$"):
        Port()  # type: ignore[call-arg]


def test_an_unknown_field_is_refused() -> None:
    """A misspelt field does not vanish."""
    with pytest.raises(TypeError, match="^Port has no cuont$"):
        Port(name="web", cuont=2)  # type: ignore[call-arg]


def test_positional_arguments_are_refused() -> None:
    """Fields are given by keyword only."""
    with pytest.raises(TypeError):
        Port("web")  # type: ignore[call-arg]


def test_a_value_cannot_be_changed() -> None:
    """Neither assignment nor deletion gets through."""
    port = Port(name="web")
    with pytest.raises(AttributeError, match="immutable: cannot set count"):
        port.count = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="immutable: cannot delete name"):
        del port.name
    assert port == Port(name="web")


def test_equality_and_hash_go_by_class_and_fields() -> None:
    """Equal fields of one class make equal values, a given default included; another class never does."""
    assert Port(name="web") == Port(name="web", count=1)
    assert hash(Port(name="web")) == hash(Port(name="web", count=1))
    assert Port(name="web") != Port(name="web", count=2)
    assert Port(name="web") != NamedPort(name="web")
    assert Port(name="web") != "web"


def test_replace_makes_a_changed_copy() -> None:
    """The original stays as it was."""
    port = Port(name="web")
    assert replace(port, count=5) == Port(name="web", count=5)
    assert port.count == 1
    with pytest.raises(TypeError, match="has no colour"):
        replace(port, colour="red")  # type: ignore[call-arg]


def test_a_copy_is_equal() -> None:
    """copy() and deepcopy() work although attributes cannot be set."""
    port = NamedPort(name="web", protocol="udp")
    assert copy.copy(port) == port
    assert copy.deepcopy(port) == port
