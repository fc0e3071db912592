"""
The place that this interpreter was started from: a read-only mount of the stage1 image that only a descriptor leads to.

minit/image/launcher.c makes it, and has the reason. Started in another way, by a test say, it is an ordinary path.
"""

from __future__ import annotations

import sys

_BY_DESCRIPTOR = "/proc/self/fd/"
_INTERPRETER = "usr/lib/minit"


def image_descriptor() -> int | None:
    """Return the descriptor of the read-only mount this interpreter was started from, None if it was not."""
    if not sys.prefix.startswith(_BY_DESCRIPTOR):
        return None
    return int(sys.prefix.removeprefix(_BY_DESCRIPTOR).partition("/")[0])


def image_root() -> str:
    """Return the path of the stage1 root as the import system knows it."""
    return sys.prefix.removesuffix(f"/{_INTERPRETER}")
