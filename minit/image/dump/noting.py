"""
Run by a dumped program: prints the addresses of objects that the programs of an image write to: a line each of a
sidecar and of the spawner that forks sidecars, and a line of all programs.

CPython 3.11 counts references, and so writes to every used object; later versions write to code while specializing.
The code of a function shows the used objects: constants, names and the values of names. The called functions are not
known: all functions of minit count as called, and of other modules the functions that features.py calls. The calls of a
sidecar are known: a sidecar runs here, and logs a line in the current directory. The first argument is the text of
features.py.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import inspect
import os
import sys
import types
from collections.abc import Sequence
from typing import Any

from entrypoints import _dumped
from minit.iottymux import spawner
from minit.iottymux.buffers import make_buffer
from minit.linux.messages import Socket, receive_message, send_message, socket_pair

MOST_PARTS = 200
"""A larger container is a table, of which little is used."""
OURS = ("minit/", "entrypoints/")
SELDOM = ("minit/cli/", "minit/compose/", "minit/kubernetes/", "minit/pods/", "minit/stage0/")
"""The command of a machine, which ends at once."""
MADE_OFTEN = inspect.CO_NESTED | inspect.CO_GENERATOR | inspect.CO_COROUTINE
"""Flags of code whose name goes to a new object at each call: a generator, or the function itself."""

called: set[types.CodeType] = set()
found: dict[int, object] = {}
attributes: set[str] = set()
all_of_ours = False


def note_call(frame: types.FrameType, event: str, argument: object) -> None:
    """Note the code of a frame that begins."""
    if event == "call":
        called.add(frame.f_code)


def add(*objects: object) -> None:
    """Add objects without parts."""
    found.update((id(thing), thing) for thing in objects if id(thing) not in found)


def add_value(value: object) -> None:
    """Add a value with its parts, except the parts of modules and functions."""
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
    """Tell whether a function's code counts as called."""
    name = code.co_filename
    return code in called or (all_of_ours and name.startswith(OURS) and not name.startswith(SELDOM))


def add_code(code: types.CodeType, names: dict[str, object]) -> None:
    """Add the objects that called code uses, and likewise for the code within."""
    if is_called(code):
        add(code, *code.co_names, names, names.get("__name__"))
        if code.co_flags & MADE_OFTEN:
            add(code.co_name, code.co_qualname)
        attributes.update(code.co_names)
        # The tuple of constants belongs to the code alone, and is not written to.
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
    """Return all types below `base`, always in the same order."""
    below: dict[type[Any], None] = dict.fromkeys(type.__subclasses__(base))
    for owner in [*below]:
        below |= subclasses(owner)
    return below


def parts_of(owner: type) -> Sequence[int]:
    """Return the words of a type's memory, with the addresses of the type's parts."""
    word = ctypes.c_size_t
    size: int = type(owner).__basicsize__  # type: ignore[assignment]
    return list((word * (size // ctypes.sizeof(word))).from_address(id(owner)))


def print_used() -> None:
    """Print the addresses of what called functions use."""
    sys.setprofile(None)
    gc.unfreeze()
    functions = [thing for thing in gc.get_objects() if isinstance(thing, types.FunctionType)]
    gc.freeze()
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
    types_found = [thing for thing in found.values() if isinstance(thing, type)]
    print(*found, *(address for owner in types_found for address in parts_of(owner)), flush=True)


def be_sidecar(app: str, link: Socket, belongings: spawner.Belongings) -> None:
    """Be a sidecar until the end of the output, and print the addresses."""
    run_as_sidecar(app, link, belongings)
    print_used()


def run_sidecar() -> None:
    """Fork a sidecar as the spawner does, for an output with one line, which goes to standard error too."""
    reader, writer = os.pipe()
    os.write(writer, b"line\n")
    os.close(writer)
    directory, null = os.open(".", os.O_RDONLY | os.O_DIRECTORY), os.open(os.devnull, os.O_RDWR)
    belongings = spawner.Belongings(log_directory=directory, kubernetes_log=None, null=null, filter=b"")
    (ours, theirs), (link, other_end) = socket_pair(), socket_pair()
    send_message(ours, {"app": "app"}, [other_end.fileno()])
    spawner.answer_request(theirs, belongings)
    _, [pidfd] = receive_message(link)
    spawner.hand_over(link, os.getpid(), [("stderr", reader, make_buffer())], (0, 1, None))
    ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    assert ended is not None and ended.si_status == 0, ended


text = sys.argv.pop(1)
run_as_sidecar, spawner.run_as_sidecar = spawner.run_as_sidecar, be_sidecar
sys.setprofile(note_call)
run_sidecar()
# A page that the spawner writes to later is the sidecar's alone from then on.
print_used()
all_of_ours = True
sys.setprofile(note_call)
# trio draws the order of its tasks.
for generator in _dumped.generators:
    generator.seed(0)
exec(text, {})
print_used()
