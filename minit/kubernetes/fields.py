"""Reads objects of Kubernetes without passing over a field: a field that no reader asks for is refused by name."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import TypeVar

from minit.manifest.names import is_ac_name
from minit.manifest.reader import Node

T = TypeVar("T")

INNER_FORM = "a relative path without .. in it"
"""What `is_inner` expects."""

_MAX_NAME = 63
_QUANTITY_TYPES = (int, float)


class Findings:
    """Fields of a file that a pod cannot have, and fields that change nothing."""

    def __init__(self) -> None:
        self.unsupported: list[str] = []
        self._skipped: list[str] = []
        self._ignored: dict[str, list[str]] = {}

    @property
    def notes(self) -> list[str]:
        """All that is left out: a line for each document with the fields without an effect, then the others."""
        ignored = [
            f"{document}: no effect on one machine: {', '.join(paths)}" for document, paths in self._ignored.items()
        ]
        return ignored + self._skipped

    def refuse(self, node: Node, why: str = "") -> None:
        """Note an unsupported field, with the reason, or an alternative."""
        self.unsupported.append(f"{node.where}: not supported{f': {why}' if why else ''}")

    def ignore(self, node: Node) -> None:
        """Note a field that has no effect on one machine."""
        document, _, path = node.where.rpartition(": ")
        self._ignored.setdefault(document, []).append(path)

    def skip(self, node: Node, what: str) -> None:
        """Note an omission at the place of a node."""
        self._skipped.append(f"{node.where}: {what}")


class Fields:
    """
    The fields of one object; a context manager that refuses, at the end, all fields without a reader.

    Unlike in Go's decoder, names have exact case.
    """

    def __init__(self, node: Node, findings: Findings) -> None:
        self.node = node
        self.findings = findings
        self._asked: set[str] = set()
        value = node.raw()
        if value is not None and not isinstance(value, dict):
            raise node.error("an object")
        self._given: dict[str, object] = value if isinstance(value, dict) else {}

    def __enter__(self) -> Fields:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            for name, value in self._given.items():
                if name not in self._asked and value is not None:
                    self.findings.refuse(Node(value, self.node, name))

    def __getitem__(self, name: str) -> Node:
        """Return a field, perhaps an absent field."""
        self._asked.add(name)
        return Node(self._given.get(name), self.node, name)

    def within(self, name: str) -> Fields:
        """Return the fields of a field."""
        return Fields(self[name], self.findings)

    def ignored(self, *names: str) -> None:
        """Accept fields that change nothing here."""
        for name in names:
            if self[name].given:
                self.findings.ignore(self[name])

    def only(self, name: str, *values: object) -> None:
        """Accept a field with one of these values, which describe the only behaviour."""
        node = self[name]
        if node.given and node.raw() not in values:
            self.findings.refuse(node)

    def each(self, name: str, read: Callable[[Node, Findings], T]) -> tuple[T, ...]:
        """Return the results of `read` for the elements of a list."""
        return self[name].each(lambda node: read(node, self.findings))


def read_name(node: Node) -> str:
    """Read a name by Kubernetes' rules for labels of DNS, which are appc's rules too."""
    return node.matching(
        lambda text: is_ac_name(text) and len(text) <= _MAX_NAME, "a name of lower-case letters, digits and dashes"
    )


def read_text(node: Node) -> str:
    """Read a string; a text that YAML reads as another type needs quotes, as in Kubernetes."""
    value = node.raw()
    if isinstance(value, (bool, *_QUANTITY_TYPES)):
        raise node.error("a string", f"{str(value).lower()} (write it in quotes)")
    return node.string()


def read_quantity(node: Node) -> str:
    """Read a quantity, as a number or a string."""
    value = node.raw()
    if isinstance(value, _QUANTITY_TYPES) and not isinstance(value, bool):
        return str(value)
    return node.non_empty()


def read_texts(node: Node) -> tuple[tuple[str, str], ...]:
    """Read an object of strings, as labels and the data of a ConfigMap are."""
    value = node.raw()
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise node.error("an object")
    return tuple((name, read_text(Node(item, node, name))) for name, item in value.items())


def is_inner(path: str) -> bool:
    """Tell whether a path, read without the file system, stays below its start."""
    return bool(path) and not path.startswith("/") and ".." not in path.split("/") and posixpath.normpath(path) != "."
