"""
Immutable records.

A frozen dataclass compiles six functions for each class. The 179 classes of the launcher would add 15 % to the import
of an interpreter that is not dumped, and 1.6 MB to the memory of each of its processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

V = TypeVar("V", bound="Value")


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Value:
    """
    A keyword-only record: annotations of the classes are fields, class attributes are defaults.

    Two values of one class are equal if their fields are equal.
    """

    _fields: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        own = tuple(name for name in cls.__dict__.get("__annotations__", ()) if not name.startswith("_"))
        cls._fields = cls._fields + tuple(name for name in own if name not in cls._fields)

    def __init__(self, **fields: Any) -> None:
        cls = type(self)
        for name in cls._fields:
            if name in fields:
                self.__dict__[name] = fields.pop(name)
            elif not hasattr(cls, name):
                raise TypeError(f"{cls.__name__} needs {name}")
        if fields:
            raise TypeError(f"{cls.__name__} has no {', '.join(fields)}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot delete {name}")

    def _key(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self._fields)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), self._key()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({shown})"


if TYPE_CHECKING:
    # The same for a Value; mypy checks the names and the types of the changes.
    from dataclasses import replace as replace
else:

    def replace(value: V, **changes: Any) -> V:
        """Return a copy of `value` with some fields changed."""
        fields: dict[str, Any] = {name: getattr(value, name) for name in value._fields}
        fields.update(changes)
        return type(value)(**fields)
