"""
Run by a dumped program: prints where lies what is written to while the programs of an image run.

CPython 3.11 counts the references to whatever it uses, and so writes to it; later ones write to code while they
specialize it. The code of a function tells its uses: constants, names and their values. Which functions are called is
not known. All of minit's are taken, and of other modules those that features.py calls, whose text is the first
argument.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import inspect
import sys
import types
from collections.abc import Sequence
from typing import Any

from entrypoints import _dumped

MOST_PARTS = 200
"""A container of more is a table, of which little is used."""
OURS = ("minit/", "entrypoints/")
SELDOM = ("minit/cli/", "minit/stage0/")
"""The command of a machine, which ends at once."""
MADE_OFTEN = inspect.CO_NESTED | inspect.CO_GENERATOR | inspect.CO_COROUTINE
"""Of code whose name goes to an object that each call makes: a generator, or the function itself."""

called: set[types.CodeType] = set()


def note_call(frame: types.FrameType, event: str, argument: object) -> None:
    """Note the code of a frame that begins."""
    if event == "call":
        called.add(frame.f_code)


text = sys.argv.pop(1)
sys.setprofile(note_call)
# trio draws the order of its tasks.
for generator in _dumped.generators:
    generator.seed(0)
exec(text, {})

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


def is_called(code: types.CodeType) -> bool:
    """Tell whether a function's code is to be taken for called."""
    return code in called or (code.co_filename.startswith(OURS) and not code.co_filename.startswith(SELDOM))


def add_code(code: types.CodeType, names: dict[str, object]) -> None:
    """Add what code uses if it is called, and so for the code within it."""
    if is_called(code):
        add(code, *code.co_names, names, names.get("__name__"))
        if code.co_flags & MADE_OFTEN:
            add(code.co_name, code.co_qualname)
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
            add_code(constant, names)


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


for function in functions:
    code = function.__code__
    add_code(code, function.__globals__)
    if is_called(code):
        add(function, function.__closure__, *(function.__closure__ or ()))
        add_value(function.__defaults__)
        add_value(function.__kwdefaults__)
for owner in subclasses(object):
    for name, value in vars(owner).items():
        if name in attributes and id(owner) in found:
            add(value)
print(*found, *(address for thing in found.values() if isinstance(thing, type) for address in parts_of(thing)))
