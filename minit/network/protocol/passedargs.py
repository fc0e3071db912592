"""CNI_ARGS for plugins that are programs: each refuses the keys that are for another one of its chain."""

from __future__ import annotations

# Of the reference plugins host-local, static, and all that make a link or change one.
_KNOWN = frozenset(("IP", "GATEWAY", "MAC"))
_PERMISSION = "IgnoreUnknown"


def tolerated(args: str) -> str:
    """
    Return `args` with the permission to ignore keys, which rkt's plugins did not need, if every key is somebody's.

    A key that nobody is known for is left to be refused: a wish that is not granted should be noticed.
    """
    keys = {pair.partition("=")[0] for pair in args.split(";")}
    return f"{args};{_PERMISSION}=1" if keys <= _KNOWN else args
