"""
The programs and libraries of this machine that the stage1 image is built with, and of.

Whoever is going to build it asks first, and hears at once of all that is missing, with the command that installs it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from minit.base.errors import ImageError
from minit.image.dump.program import static_library
from minit.image.libraries import LibrarySearch
from minit.image.toolchain import DEBIAN_PACKAGES, find_tool

LOADED_LIBRARIES = {"libudev.so.1": "libudev1"}
"""The library that pyudev loads, by its name, with the package that Debian has it in."""

_PROGRAMS = ("cc", "strip", "nm", "objcopy", "patchelf")
_HEADER = "stdlib.h"


def loaded_libraries() -> dict[str, Path]:
    """Return the libraries that no program needs by its headers; ImageError as `require_all`."""
    libraries = _find_libraries()
    if len(libraries) != len(LOADED_LIBRARIES):
        require_all()
    return libraries


def require_all() -> None:
    """Raise ImageError if anything is missing that the image cannot be built without."""
    missing = {name: DEBIAN_PACKAGES[name] for name in _PROGRAMS if find_tool(name) is None}
    if not _has_header():
        missing[_HEADER] = "libc6-dev"
    present = _find_libraries()
    missing |= {name: package for name, package in LOADED_LIBRARIES.items() if name not in present}
    if not missing:
        return
    packages = list(dict.fromkeys(" ".join(missing.values()).split()))
    # Not needed, but pods start faster with it, and the next message would be about it.
    if sys.base_prefix == "/usr" and not static_library().exists():
        packages.append("libpython3-dev")
    raise ImageError(
        f"the stage1 image has to be built, for which this machine lacks {', '.join(missing)}: "
        f"install them (Debian: apt install {' '.join(packages)})"
    )


def _has_header() -> bool:
    compiler = find_tool("cc")
    if compiler is None:
        return False
    command = [compiler, "-fsyntax-only", "-x", "c", "-"]
    done = subprocess.run(command, input=f"#include <{_HEADER}>\n".encode(), capture_output=True, check=False)
    return done.returncode == 0


def _find_libraries() -> dict[str, Path]:
    search = LibrarySearch()
    found = {name: search.find(name, Path(sys.executable).resolve()) for name in LOADED_LIBRARIES}
    return {name: library.path.resolve() for name, library in found.items() if library is not None}
