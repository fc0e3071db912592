"""
Values as JSON, for a process that carries out what another one has decided.

A value is an object with one key, the name of its class and its fields; bytes, sets, paths, JSON itself and members of
enumerations are objects with one key, lists are tuples. Members of StrEnum and IntEnum are text and numbers. Both
processes are of one version.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

from minit.base.errors import ManifestError
from minit.base.jsontext import dump, parse
from minit.base.value import Value

_VALUE, _ENUM, _BYTES, _SET, _PATH, _JSON = "value", "enum", "bytes", "set", "path", "json"


class ValueCodec:
    """Encodes and decodes values of some classes, and of all classes that their annotations name."""

    def __init__(self, *kinds: type[Value]) -> None:
        # When a module is imported: PID 1 imports nothing later, and forgets the modules that annotations name.
        self._kinds = {kind.__name__: kind for root in kinds for kind in _kinds_in(root)}

    def encode(self, value: Value) -> bytes:
        """Return a value as bytes of JSON."""
        return dump(_encode(value))

    def decode(self, data: bytes, place: str) -> Any:
        """Return the value in `data`; ManifestError, which names `place`, if it is none of this version."""
        try:
            return self._decode(parse(data, place))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ManifestError(f"{place}: not one of this version: {error}") from error

    def _decode(self, value: object) -> object:
        if isinstance(value, list):
            # Not of a generator, whose tuple is made too large and cut: PID 1 would keep up to 2,000 free ones of each
            # size (Objects/tupleobject.c).
            return tuple([self._decode(item) for item in value])
        if not isinstance(value, dict):
            return value
        [(form, content)] = value.items()
        if form == _BYTES:
            return bytes.fromhex(content)
        if form == _SET:
            return frozenset(content)
        if form == _PATH:
            return Path(content)
        if form == _JSON:
            return content
        name, fields = content
        kind = self._kinds[name]
        if form == _ENUM:
            return kind(fields)
        return kind(**{field: self._decode(item) for field, item in fields.items()})


def _kinds_in(hint: object) -> Iterator[type[Any]]:
    """Yield the class of every value and enumeration that may be in a field with a type annotation."""
    if isinstance(hint, type) and issubclass(hint, Value):
        yield hint
        for name, inner in get_type_hints(hint).items():
            if name in hint._fields:
                yield from _kinds_in(inner)
    elif isinstance(hint, type) and issubclass(hint, Enum):
        yield hint
    for part in get_args(hint):
        yield from _kinds_in(part)


def _encode(value: object) -> object:
    if isinstance(value, Value):
        return {_VALUE: [type(value).__name__, {name: _encode(getattr(value, name)) for name in value._fields}]}
    if isinstance(value, Enum):
        if isinstance(value, (str, int)):
            return value.value
        return {_ENUM: [type(value).__name__, value.value]}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, bytes):
        return {_BYTES: value.hex()}
    if isinstance(value, frozenset):
        return {_SET: sorted(value)}
    if isinstance(value, Path):
        return {_PATH: str(value)}
    if isinstance(value, (dict, list)):
        return {_JSON: value}
    return value
