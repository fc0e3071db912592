"""
Walking through decoded JSON towards values, with a one-line error for anything unexpected.

The schemas are in `app`, `image` and `pod`, which read a field like `node["port"].integer(1, 65535)`. As in
Go's decoder, by which rkt reads the same files, keys match in any case, unknown keys are ignored, and `null`
counts as absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from minit.base import jsontext
from minit.base.errors import ManifestError
from minit.manifest.names import is_ac_identifier, is_ac_name, is_image_id, is_version

T = TypeVar("T")

_ABSENT = object()
_FOLDED: dict[str, str] = {}  # of the keys that the schemas ask for, none of which a file brings
_MAX_SHOWN = 60  # characters of a refused value that make it into the message


class PlacedFields(dict[str, object]):
    """The fields of an object of a text file, with the place of each, `FILE:LINE`."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, str] = {}

    def put(self, name: str, value: object, place: str) -> None:
        """Set a field."""
        self[name] = value
        self.places[name] = place

    def place_of(self, step: str | int) -> str | None:
        """Return the place of a field, None without one."""
        return self.places.get(str(step))


class PlacedList(list[object]):
    """The elements of a list of a text file, with the place of each, `FILE:LINE`."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []

    def put(self, value: object, place: str) -> None:
        """Add an element."""
        self.append(value)
        self.places.append(place)

    def place_of(self, step: str | int) -> str | None:
        """Return the place of an element, None without one."""
        return self.places[step] if isinstance(step, int) and step < len(self.places) else None


class Node:
    """
    A JSON value and its place in a file.

    Every reading method raises ManifestError, `FILE: JSON.PATH: expected X, got Y`. No string may hold NUL,
    since nearly all strings end up in system calls.
    """

    __slots__ = ("_children", "_parent", "_step", "_value")

    def __init__(self, value: object, parent: Node | None, step: str | int) -> None:
        self._value = value
        self._parent = parent
        self._step = step  # key or index in the parent; the file's name if there is none
        self._children: dict[str, object] | None = None

    @property
    def given(self) -> bool:
        """Tell whether the file has the value, and not as `null`."""
        return self._value is not _ABSENT and self._value is not None

    def __getitem__(self, key: str) -> Node:
        """Return a field of an object, possibly absent; an absent object has no fields."""
        if self._children is None:
            self._children = self._read_fields()
        folded = _FOLDED.get(key)
        if folded is None:
            folded = _FOLDED[key] = _fold(key)
        return Node(self._children.get(folded, _ABSENT), self, key)

    def if_object(self) -> Node:
        """Return this value if it is an object, else an absent value: for fields that other programs use as well."""
        return self if isinstance(self._value, dict) else Node(_ABSENT, self._parent, self._step)

    def optional(self, read: Callable[[Node], T]) -> T | None:
        """Return the result of `read` for the value, None for an absent value."""
        return read(self) if self.given else None

    def elements(self) -> list[Node]:
        """Return the elements of a list, none of an absent list."""
        if not self.given:
            return []
        if not isinstance(self._value, list):
            raise self.error("a list")
        return [Node(element, self, index) for index, element in enumerate(self._value)]

    def each(self, read: Callable[[Node], T]) -> tuple[T, ...]:
        """Return the results of `read` for the elements of a list, none for an absent list."""
        return tuple([read(element) for element in self.elements()])

    def each_named(self, kind: str, read: Callable[[Node], T]) -> tuple[T, ...]:
        """Return the results of `read` for a list of objects whose `name` fields all differ."""
        values = []
        seen = set()
        for element in self.elements():
            values.append(read(element))
            name = element["name"].string()
            if name in seen:
                raise element["name"].error("a unique name", f"duplicate {kind} name {_show(name)}")
            seen.add(name)
        return tuple(values)

    def string_map(self) -> tuple[tuple[str, str], ...]:
        """Return the entries of an object from any keys to strings, none for an absent object."""
        if not self.given:
            return ()
        if not isinstance(self._value, dict):
            raise self.error("an object")
        return tuple([(key, Node(item, self, key).string()) for key, item in self._value.items()])

    def raw(self) -> object:
        """Return the unchanged JSON value, None for an absent value."""
        return None if self._value is _ABSENT else self._value

    def string(self) -> str:
        """Return a string, possibly empty."""
        if not isinstance(self._value, str):
            raise self.error("a string")
        if "\0" in self._value:
            raise self.error("a string without NUL")
        return self._value

    def matching(self, check: Callable[[str], object], expected: str) -> str:
        """Return a string for which `check` is true; `expected` describes such strings."""
        if not isinstance(self._value, str):
            raise self.error(expected)
        text = self.string()
        if not check(text):
            raise self.error(expected)
        return text

    def parsed(self, parse: Callable[[str], T], expected: str) -> T:
        """Return the result of `parse` for a string; a ValueError of `parse` means that `expected` is not met."""
        try:
            return parse(self.string())
        except ValueError as error:
            raise self.error(expected) from error

    def one_of(self, *choices: str) -> str:
        """Return one of the strings `choices`."""
        return self.matching(choices.__contains__, " or ".join(f'"{choice}"' for choice in choices))

    def non_empty(self) -> str:
        """Return a string of at least one character."""
        return self.matching(len, "a non-empty string")

    def absolute_path(self) -> str:
        """Return an absolute path."""
        return self.matching(_is_absolute, "an absolute path")

    def ac_name(self) -> str:
        """Return an ACName."""
        return self.matching(is_ac_name, "an ACName")

    def ac_identifier(self) -> str:
        """Return an ACIdentifier."""
        return self.matching(is_ac_identifier, "an ACIdentifier")

    def image_id(self) -> str:
        """Return the ID of an image."""
        return self.matching(is_image_id, "an image ID (sha512-...)")

    def boolean(self) -> bool:
        """Return true or false."""
        if not isinstance(self._value, bool):
            raise self.error("true or false")
        return self._value

    def integer(self, lowest: int, highest: int) -> int:
        """Return an integer from `lowest` to `highest`, both included."""
        value = self._value
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            raise self.error(f"an integer from {lowest} to {highest}")
        return value

    @property
    def where(self) -> str:
        """The value's place, `FILE: JSON.PATH`, or `FILE:LINE: JSON.PATH` where lines are known."""
        steps: list[str] = []
        node, place = self, None
        while node._parent is not None:
            steps.append(_step_text(node._step))
            holder = node._parent._value
            if place is None and isinstance(holder, (PlacedFields, PlacedList)):
                place = holder.place_of(node._step)
            node = node._parent
        path = "".join(reversed(steps)).removeprefix(".")
        start = place or node._step
        return f"{start}: {path}" if path else str(start)

    def error(self, expected: str, got: str | None = None) -> ManifestError:
        """Build the error for an unmet expectation; `got` replaces the value in the message."""
        found = got or ("nothing" if self._value is _ABSENT else _show(self._value))
        return ManifestError(f"{self.where}: expected {expected}, got {found}")

    def _read_fields(self) -> dict[str, object]:
        if not self.given:
            return {}
        if not isinstance(self._value, dict):
            raise self.error("an object")
        fields: dict[str, object] = {}
        for key, item in self._value.items():
            folded = _FOLDED.get(key) or _fold(key)
            if folded in fields:
                raise self.error("each field once", f"{_show(key)} in two spellings")
            fields[folded] = item
        return fields


def read_json(data: bytes, source: str) -> Node:
    """Return the root of any JSON document; errors call the document `source`."""
    return Node(jsontext.parse(data, source), None, source)


def read_document(data: bytes, source: str, kind: str) -> Node:
    """Return the root of a manifest with the right `acKind` and `acVersion`; errors call the manifest `source`."""
    root = read_json(data, source)
    root["acKind"].one_of(kind)
    root["acVersion"].matching(is_version, "a semantic version")
    return root


def place(source: str, *steps: str | int) -> Node:
    """Return a node without a value, for parts of a manifest that are read later; errors name `source`."""
    node = Node(_ABSENT, None, source)
    for step in steps:
        node = Node(_ABSENT, node, step)
    return node


def _fold(key: str) -> str:
    # Go matches keys by Unicode simple folding: a long s is an s, which lower() leaves alone.
    return key.lower().replace("\u017f", "s")


def _is_absolute(path: str) -> bool:
    return path.startswith("/")


def _show(value: object) -> str:
    text = jsontext.dump(value).decode("ascii")
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    # A field's name is plain; the keys of a string map are any text of their author.
    plain = step.isascii() and step.isidentifier() and len(step) <= _MAX_SHOWN
    return f".{step}" if plain else f"[{_show(step)}]"
