"""
Prints the modules an interpreter has after importing some, one `name<TAB>file` line each.

Run as a script in a fresh isolated interpreter; the script imports only modules that such an interpreter already has,
so that the answer holds for every other interpreter:

    record_imports.py STANDINS DIRECTORIES ALLOWED OMITTED EMPTIED MODULE...

A file below STANDINS stands in for the module of the name. DIRECTORIES, separated by `:`, are searched after the
standard library. ALLOWED are the top-level modules that may come from DIRECTORIES, OMITTED modules that are hidden,
separated by `,`: an optional dependency that happens to be installed must not get into the image. EMPTIED, separated
likewise, are packages of which a stand-in replaces the `__init__` and not the modules.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

standins, directories, allowed, omitted, emptied, *wanted = sys.argv[1:]
top_level_names = {*allowed.split(","), *sys.stdlib_module_names} - {*omitted.split(",")}

# By the imported names: a module may put another module in its own place, as collections.abc does in 3.13.
found = {name: module.__spec__ for name, module in sys.modules.items()}


class Gate:
    """A finder before all others that offers the stand-ins, refuses hidden modules, and records the rest."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return the specification of a module."""
        found[name] = cls.standin(name) or cls.original(name, path)
        return found[name]

    @staticmethod
    def standin(name: str) -> ModuleSpec | None:
        """Return the stand-in of a module, None without one; ModuleNotFoundError for a hidden module."""
        standin = os.path.join(standins, *name.split("."))
        if os.path.exists(f"{standin}.py"):
            return spec_from_file_location(name, f"{standin}.py")
        if name in emptied.split(","):
            package = PathFinder.find_spec(name)
            places = None if package is None else package.submodule_search_locations
            return spec_from_file_location(name, f"{standin}/__init__.py", submodule_search_locations=places)
        if name.partition(".")[0] not in top_level_names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

    @staticmethod
    def original(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Return the specification by the other finders."""
        specifications = (finder.find_spec(name, path) for finder in sys.meta_path if finder is not Gate)
        return next(filter(None, specifications), None)


sys.path += directories.split(":")
sys.meta_path.insert(0, Gate)
for module_name in wanted:
    __import__(module_name)
for name, specification in found.items():
    # A found module may not have been imported; frozen and built-in modules have no file.
    if name in sys.modules and specification is not None and specification.has_location:
        print(name, specification.origin, sep="\t")
