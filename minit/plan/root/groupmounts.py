"""
An app sees the own control groups at /sys/fs/cgroup, where language runtimes look for limits.

A directory of PID 1's with nothing but mount points hides the rest of /sys/fs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from minit.plan.root.mountoperations import MakeDirectory, MakeSymlink, MountOp

GROUPS = "/sys/fs/cgroup"
HIDDEN = "/sys/fs"  # stage1 contract 9.3
# In the stage1 root: what lies over HIDDEN.
COVER = "/run/groups"
# In there: what lies over GROUPS if HIDDEN is left open.
COVER_OF_GROUPS = f"{COVER}/{os.path.basename(GROUPS)}"
_MODE = 0o555
# Controllers that tell the app's share of the machine; more would only be more mounts for each app.
_TOLD = frozenset(("cpu", "cpuacct", "cpuset", "memory", "pids"))

Place = tuple[str, tuple[str, ...]]
"""Where a hierarchy is mounted, and its controllers, none for v2."""


def is_shown(place: Place, *, is_unified: bool) -> bool:
    """Tell whether apps see their groups in a hierarchy: v2 if no other hierarchy exists, v1 with limits."""
    point, controllers = place
    if is_unified:
        return point == GROUPS
    return os.path.dirname(point) == GROUPS and not _TOLD.isdisjoint(controllers)


def cover_of(places: Iterable[Place]) -> tuple[MountOp, ...]:
    """Return what is made of COVER in the stage1 root, for the hierarchies at `places`."""
    top = COVER_OF_GROUPS
    operations: list[MountOp] = [MakeDirectory(target=COVER, mode=_MODE), MakeDirectory(target=top, mode=_MODE)]
    for point, controllers in places:
        name = os.path.basename(point)
        if point != GROUPS:
            operations.append(MakeDirectory(target=f"{top}/{name}", mode=_MODE))
            # As systemd has it for controllers that share a hierarchy.
            aliases = (each for each in controllers if each != name)
            operations += [MakeSymlink(target=f"{top}/{alias}", text=name) for alias in aliases]
    return tuple(operations)
