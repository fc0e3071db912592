"""Processes that run this command's own code: the command once more, and modules that no command imports."""

from __future__ import annotations

import sys

_PLAIN = "-plain"


def own_command() -> list[str]:
    """Return the words by which another process is this command."""
    program = sys.argv[0]
    # An interpreter that runs this module has no command of its own.
    return [sys.executable, "-m", "minit"] if program.endswith(".py") else [program.removesuffix(_PLAIN)]


def own_module(name: str) -> list[str]:
    """
    Return the words by which an interpreter runs a module, from where this one has its modules and nowhere else.

    Python's `-m` would look into the working directory first, and not where the Debian package has them.
    """
    run = f"import runpy, sys; sys.path[:] = {sys.path!r}; runpy.run_module({name!r}, None, '__main__', True)"
    return [sys.executable, "-I", "-c", run]
