"""YAML with bounds: documents as Kubernetes reads them, of which JSON could have been made, or any by their nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import yaml

from minit.base.errors import ManifestError

T = TypeVar("T")

MAX_BYTES = 1 << 20
# An anchor can be used again and again, so the text alone bounds nothing.
_MAX_NODES = 100_000
_MAX_DOCUMENTS = 100

_STANDARD = "tag:yaml.org,2002:"
_TEXT = f"{_STANDARD}str"
_TAGS = {f"{_STANDARD}{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "value", "seq", "map")}
_NULLS = ("", "~", "null", "Null", "NULL")
_TRUE = ("true", "yes", "on", "y")
_FALSE = ("false", "no", "off", "n")
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_BASED = re.compile(r"[-+]?0(x[0-9a-fA-F]+|o?[0-7]+|b[01]+)")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?")
_BASES = {"x": 16, "b": 2}


class Budget:
    """A count of the nodes that may still be made."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.left = _MAX_NODES

    def take(self, node: yaml.Node) -> None:
        """Count a node; ManifestError when there are too many."""
        self.left -= 1
        if self.left < 0:
            what = f"more than {_MAX_NODES} values, those of an anchor counted wherever it is used"
            raise yaml_error(self.source, node.start_mark, what)


def parse_documents(data: bytes, source: str) -> list[object]:
    """Return the documents that are not empty; ManifestError says in which line what is wrong."""
    documents = read_nodes(data, source, lambda node, budget: _value(node, budget, ()))
    return [document for document in documents if document is not None]


def read_nodes(data: bytes, source: str, make: Callable[[yaml.Node, Budget], T]) -> list[T]:
    """Return what `make` makes of the node of each document; ManifestError as for `parse_documents`."""
    if len(data) > MAX_BYTES:
        raise ManifestError(f"{source}: larger than {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(f"{source}: expected UTF-8, got 0x{error.object[error.start]:02x}") from error
    budget = Budget(source)
    try:
        # The loader in Python: that in C has no bound for the depth of nesting.
        return [make(node, budget) for node in _compose(text, source)]
    except yaml.MarkedYAMLError as error:
        problem = " ".join(filter(None, (error.context, error.problem)))
        raise yaml_error(source, error.problem_mark or error.context_mark, problem) from error
    except yaml.YAMLError as error:
        raise ManifestError(f"{source}: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ManifestError(f"{source}: nested too deeply") from error


def _compose(text: str, source: str) -> Iterator[yaml.Node]:
    for number, node in enumerate(yaml.compose_all(text, Loader=yaml.SafeLoader)):
        if number == _MAX_DOCUMENTS:
            raise ManifestError(f"{source}: more than {_MAX_DOCUMENTS} documents")
        if node is not None:
            yield node


def _value(node: yaml.Node, budget: Budget, within: tuple[int, ...]) -> object:
    budget.take(node)
    if node.tag not in _TAGS:
        raise yaml_error(budget.source, node.start_mark, f"the tag {node.tag} means nothing here")
    if id(node) in within:
        raise yaml_error(budget.source, node.start_mark, "an anchor is used within itself")
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    within = (*within, id(node))
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, budget, within) for item in node.value]
    assert isinstance(node, yaml.MappingNode)
    fields: dict[str, object] = {}
    for key, item in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else None
        if not isinstance(name, str) or name == "<<":
            raise yaml_error(budget.source, key.start_mark, "expected a plain name as a key")
        if name in fields:
            raise yaml_error(budget.source, key.start_mark, f'"{name}" is given twice')
        fields[name] = _value(item, budget, within)
    return fields


def _scalar(node: yaml.ScalarNode) -> object:
    """Return the value of a scalar as Kubernetes' YAML 1.1 has it, without dates and sexagesimal numbers."""
    # A plain number has the tag of a string only if that was written before it.
    if node.style is not None or (node.tag == _TEXT and _DECIMAL.fullmatch(node.value)):
        return node.value
    return plain_value(node.value, _TRUE, _FALSE)


def plain_value(text: str, true: Sequence[str], false: Sequence[str]) -> object:
    """Return the value of a plain scalar: none, a number, a string, or a boolean with these words in lower case."""
    if text in _NULLS:
        return None
    if text.lower() in true or text.lower() in false:
        return text.lower() in true
    if len(text) > 64:
        return text
    if _DECIMAL.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        sign, digits = (-1, text[1:]) if text[0] == "-" else (1, text.lstrip("+"))
        return sign * int(digits[1:].lstrip("xob"), _BASES.get(digits[1], 8))
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def yaml_error(source: str, mark: yaml.Mark | None, problem: str) -> ManifestError:
    """Build the error about a place in a document."""
    line = "" if mark is None else f" line {mark.line + 1}:"
    return ManifestError(f"{source}:{line} {' '.join(problem.split())}")
