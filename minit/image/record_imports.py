"""
Prints the modules an interpreter has after importing some, one `name<TAB>file` line each.

Run as a script in a fresh isolated interpreter; it imports nothing itself that such an interpreter does not
have already, so that the answer holds for every other one:

    record_imports.py STANDINS DIRECTORIES ALLOWED OMITTED EMPTIED MODULE...

A file below STANDINS is taken for the module of that name. DIRECTORIES, separated by `:`, are searched after
the standard library. ALLOWED are the top-level modules that may come from them, OMITTED those not to be found
though they exist, separated by `,`: an optional dependency that happens to be installed must not get into the
image. EMPTIED are packages of which a stand-in replaces the `__init__` and not the modules, likewise.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location

standins, directories, allowed, omitted, emptied, *wanted = sys.argv[1:]
top_level_names = {*allowed.split(","), *sys.stdlib_module_names} - {*omitted.split(",")}


class Gate:
    """A finder that offers the stand-ins, refuses what may not be found, and leaves the rest to those after it."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the module's stand-in, if it has one."""
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


sys.path += directories.split(":")
sys.meta_path.insert(0, Gate)
for module_name in wanted:
    __import__(module_name)
for module in [*sys.modules.values()]:
    # Frozen and built-in modules have no file; typing.io and the like are not modules at all.
    specification = getattr(module, "__spec__", None)
    if specification is not None and specification.has_location:
        print(specification.name, specification.origin, sep="\t")
