"""
Prints the modules an interpreter has after importing some, one `name<TAB>file` line each.

Run as a script in a fresh isolated interpreter; it imports nothing itself that such an interpreter does not
have already, so that the answer holds for every other one:

    record_imports.py STANDINS DIRECTORIES ALLOWED OMITTED MODULE...

A file below STANDINS is taken for the module of that name. DIRECTORIES, separated by `:`, are searched after
the standard library. ALLOWED are the top-level modules that may come from them, OMITTED those not to be found
though they exist, separated by `,`: an optional dependency that happens to be installed must not get into the
image.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location

standins, directories, allowed, omitted, *wanted = sys.argv[1:]
top_level_names = {*allowed.split(","), *sys.stdlib_module_names} - {*omitted.split(",")}


class Gate:
    """A finder that offers the stand-ins, refuses what may not be found, and leaves the rest to those after it."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the module's stand-in, if it has one."""
        standin = os.path.join(standins, *name.split(".")) + ".py"
        if os.path.exists(standin):
            return spec_from_file_location(name, standin)
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
