"""
Having controllers of the unified hierarchy where a pod's groups are (the kernel's cgroup-v2.rst).

A group has the controllers that the group around it gives, and a group that gives any must have no processes of its
own, unless it is the root. So a pod with limits cannot always lie in the group of its launcher, as it does otherwise.
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
    Return the path of the groups of a pod that needs `controllers`, without a leading slash.

    That is below this process's own group if it can give them; this process moves into a group of the pod, if it is
    the only one there. Otherwise it is below the nearest group around that can. With v1 it is where it always is:
    there each controller has a hierarchy of its own.
    """
    subcgroup = pod_subcgroup(hierarchies, uuid)
    unified = next((hierarchy for hierarchy in hierarchies if hierarchy.is_v2), None)
    if unified is None or len(hierarchies) > 1:
        return subcgroup
    stuck = give_controllers(unified, unified.own_path, controllers)
    if stuck is None or (stuck == unified.own_path and _vacate(unified, subcgroup, controllers)):
        return subcgroup
    if stuck == "/":
        # As in a container: there is nothing around it, and what cannot be limited is warned about.
        return subcgroup
    return f"{os.path.dirname(stuck)}/{paths.pod_cgroup_name(uuid)}".lstrip("/")


def give_controllers(unified: Hierarchy, path: str, controllers: Set[str]) -> str | None:
    """
    Have every group from the root to `path`, absolute in the hierarchy, give `controllers` to the groups in it.

    Returns the path of the first one that cannot, None if there is none.
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
        # It has processes (EBUSY), does not have them itself (ENOENT), or is not ours to change.
        return False
    return True


def _vacate(unified: Hierarchy, subcgroup: str, controllers: Set[str]) -> bool:
    """Move this process from its group into one of the pod, so that its group can give controllers; False if not so."""
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
