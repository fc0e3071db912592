"""
Having controllers of the unified hierarchy where a pod's groups are (the kernel's cgroup-v2.rst).

A group has the controllers given by the group around, and a group that gives any must have no processes of its own, but
for the root. So a pod with limits cannot always lie in the group of the launcher, the place of other pods.
"""

from __future__ import annotations

import os
from collections.abc import Sequence, Set

from minit.launcher.cgroups import (
    LAUNCHER_SCOPE,
    Hierarchy,
    pod_subcgroup,
    read_controllers,
    remove_pod_groups,
    write_group_file,
)
from minit.podfiles import paths
from minit.podfiles.podfile import write_pod_file

_GIVEN = "cgroup.subtree_control"


def place_pod(hierarchies: Sequence[Hierarchy], uuid: str, controllers: Set[str]) -> str:
    """
    Return the path of the groups of a pod with need of `controllers`, without a leading slash.

    The place is below the launcher's own group if that can give the controllers; the launcher moves into a group of the
    pod, if alone there. Otherwise the place is below the nearest group around with the controllers. With v1 the place
    never changes: there each controller has a hierarchy of its own.
    """
    subcgroup = pod_subcgroup(hierarchies, uuid)
    unified = next((hierarchy for hierarchy in hierarchies if hierarchy.is_v2), None)
    if unified is None or len(hierarchies) > 1:
        return subcgroup
    stuck = give_controllers(unified, unified.own_path, controllers)
    if stuck is None or (stuck == unified.own_path and _vacate(unified, subcgroup, controllers)):
        return subcgroup
    if stuck == "/":
        # As in a container: there is nothing around, and a missing limit is warned about.
        return subcgroup
    return f"{os.path.dirname(stuck)}/{paths.pod_cgroup_name(uuid)}".lstrip("/")


def give_controllers(unified: Hierarchy, path: str, controllers: Set[str]) -> str | None:
    """
    Have every group from the root to `path`, absolute in the hierarchy, give `controllers` to the groups in it.

    Returns the path of the first group without success, None for success.
    """
    group = "/"
    for name in ["", *filter(None, path.split("/"))]:
        group = os.path.join(group, name)
        if not _give(f"{unified.mount_point}{group}", controllers):
            return group
    return None


def _give(directory: str, controllers: Set[str]) -> bool:
    try:
        missing = controllers - read_controllers(directory, _GIVEN)
        if missing:
            write_group_file(f"{directory}/{_GIVEN}", " ".join(f"+{name}" for name in sorted(missing)))
    except OSError:
        # The group has processes (EBUSY), lacks the controllers (ENOENT), or is not ours to change.
        return False
    return True


def _vacate(unified: Hierarchy, subcgroup: str, controllers: Set[str]) -> bool:
    """Move the launcher into a group of the pod, so that the old group can give controllers; False for a failure."""
    own = f"{unified.mount_point}{unified.own_path}"
    with open(f"{own}/cgroup.procs", encoding="utf-8") as processes:
        if processes.read().split() != [str(os.getpid())]:
            return False
    # Written before there is such a group, for gc.
    write_pod_file(paths.POD_SUBCGROUP, os.fsencode(subcgroup))
    pod = f"{unified.mount_point}/{subcgroup}"
    try:
        os.makedirs(f"{pod}/{LAUNCHER_SCOPE}", 0o755)
        write_group_file(f"{pod}/{LAUNCHER_SCOPE}/cgroup.procs", "0")
        if _give(own, controllers):
            return True
        write_group_file(f"{own}/cgroup.procs", "0")
    except OSError:
        pass
    # The pod will be elsewhere.
    remove_pod_groups([unified], subcgroup)
    return False
