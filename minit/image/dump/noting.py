"""
Run by a dumped program: prints where lies what is written to while certain functions run.

CPython 3.11 counts the references to whatever it uses, and so writes to it; later ones write to code while they
specialize it. The code of a function tells its uses: constants, names and their values. Behind this text follows a line
that calls `print_addresses` with the functions of called.txt.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import types
from collections.abc import Sequence
from typing import Any

MOST_PARTS = 200
"""A container of more is a table, of which little is used."""

gc.unfreeze()
functions = [thing for thing in gc.get_objects() if isinstance(thing, types.FunctionType)]
found: dict[int, object] = {}
attributes: set[str] = set()


def add(*objects: object) -> None:
    """Add these alone."""
    found.update((id(thing), thing) for thing in objects if id(thing) not in found)


def add_value(value: object) -> None:
    """Add a value with its parts, but not what a module or a function has."""
    if id(value) in found:
        return
    add(value)
    if isinstance(value, type):
        add(*value.__mro__, value.__mro__)
    elif isinstance(value, types.CodeType):
        add(value.co_name, value.co_qualname)
    elif not isinstance(value, (types.ModuleType, types.FunctionType)):
        parts = gc.get_referents(value)
        for part in parts if len(parts) <= MOST_PARTS else ():
            add_value(part)


def add_code(code: types.CodeType, names: dict[str, object], called: set[str]) -> None:
    """Add what code uses if it is called, and so for the code within it."""
    if f"{code.co_filename}:{code.co_qualname}" in called:
        add(code, code.co_name, code.co_qualname, *code.co_names, names, names.get("__name__"))
        attributes.update(code.co_names)
        # Their tuple is the code's alone, and not written to.
        for constant in code.co_consts:
            add_value(constant)
        for name in code.co_names:
            value = names.get(name, vars(builtins).get(name))
            add_value(value)
            if isinstance(value, types.ModuleType):
                add(vars(value))
                for other in code.co_names:
                    add_value(vars(value).get(other))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            add_code(constant, names, called)


def subclasses(base: type) -> dict[type, None]:
    """Return all types below one, in an order that is always the same."""
    below: dict[type[Any], None] = dict.fromkeys(type.__subclasses__(base))
    for owner in [*below]:
        below |= subclasses(owner)
    return below


def parts_of(owner: type) -> Sequence[int]:
    """Return what a type has in memory, the addresses of its parts among it."""
    word = ctypes.c_size_t
    size: int = type(owner).__basicsize__  # type: ignore[assignment]
    return list((word * (size // ctypes.sizeof(word))).from_address(id(owner)))


def print_addresses(called: Sequence[str]) -> None:
    """Print those for functions of these names, `FILE:NAME`."""
    names = set(called)
    for function in functions:
        code = function.__code__
        add_code(code, function.__globals__, names)
        if f"{code.co_filename}:{code.co_qualname}" in names:
            add(function, function.__name__, function.__qualname__, function.__closure__, *(function.__closure__ or ()))
            add_value(function.__defaults__)
            add_value(function.__kwdefaults__)
    for owner in subclasses(object):
        for name, value in vars(owner).items():
            if name in attributes and id(owner) in found:
                add(value)
    print(*found, *(address for thing in found.values() if isinstance(thing, type) for address in parts_of(thing)))
