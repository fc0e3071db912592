"""
Control groups that this process may use, and having controllers of the unified hierarchy where a pod's groups are (the
kernel's cgroup-v2.rst).

A group has the controllers given by the group around, and a group that gives any must have no processes of its own, but
for the root. So a pod with limits cannot always lie in the group of the launcher, the place of other pods.
"""

from __future__ import annotations

import os
from collections.abc import Sequence, Set
from contextlib import suppress

from minit.base.value import replace
from minit.launcher.cgroups import (
    APPS,
    LAUNCHER_SCOPE,
    Hierarchy,
    pod_subcgroup,
    read_controllers,
    read_subcgroup,
    remove_pod_groups,
    write_group_file,
)
from minit.podfiles import paths
from minit.podfiles.podfile import write_pod_file
from minit.podfiles.usersdirectory import is_of_user

_GIVEN = "cgroup.subtree_control"
_PROCS = "cgroup.procs"
# Of the processes that were in a user's group: a group that gives controllers may have none of its own.
_SESSION_SCOPE = "session.scope"


def usable_hierarchies(hierarchies: Sequence[Hierarchy]) -> list[Hierarchy]:
    """
    Return the hierarchies in which this process may make groups: all for root, for a user those delegated by root.

    A pod's groups have the same path in each, so a hierarchy where the user has another path is left out.
    """
    return at_one_path([each for each in hierarchies if _is_delegated(each)]) if is_of_user() else [*hierarchies]


def at_one_path(hierarchies: Sequence[Hierarchy]) -> list[Hierarchy]:
    """Return the hierarchies in which this process has the same path as where the pod's path is taken from."""
    path = os.path.dirname(f"/{pod_subcgroup(hierarchies, '')}") if hierarchies else ""
    return [each for each in hierarchies if each.own_path == path]


def hierarchies_of_pod(hierarchies: Sequence[Hierarchy]) -> list[Hierarchy]:
    """Return the hierarchies in which the pod with the working directory as its directory has groups."""
    if not is_of_user():
        return [*hierarchies]
    try:
        around = f"/{read_subcgroup()}/{APPS}"
    except FileNotFoundError:
        return []
    return [replace(each, own_path=around) for each in hierarchies if os.path.isdir(f"{each.mount_point}{around}")]


def _is_delegated(hierarchy: Hierarchy) -> bool:
    own = f"{hierarchy.mount_point}{hierarchy.own_path}"
    # Under v2 a process moves by the leave of the group around both places.
    return os.access(own, os.W_OK) and (not hierarchy.is_v2 or os.access(f"{own}/{_PROCS}", os.W_OK))


def place_pod(hierarchies: Sequence[Hierarchy], uuid: str, controllers: Set[str]) -> str:
    """
    Return the path of the groups of a pod with need of `controllers`, without a leading slash.

    The place is below the launcher's own group if that can give the controllers; the launcher moves into a group of the
    pod, if alone there, and a user's other processes into a group beside. Otherwise the place is below the nearest
    group around with the controllers. With v1 the place never changes: each controller has a hierarchy of its own.
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
        if missing and _has_processes(directory):
            # Some controllers would be given all the same, and no group inside would take processes.
            return False
        if missing:
            write_group_file(f"{directory}/{_GIVEN}", " ".join(f"+{name}" for name in sorted(missing)))
    except OSError:
        # The group has processes (EBUSY), lacks the controllers (ENOENT), or is not ours to change.
        return False
    return True


def _has_processes(directory: str) -> bool:
    """Tell whether a group other than the root has processes of its own."""
    if not os.path.exists(f"{directory}/cgroup.type"):
        return False
    with open(f"{directory}/{_PROCS}", encoding="utf-8") as processes:
        return bool(processes.read().split())


def _vacate(unified: Hierarchy, subcgroup: str, controllers: Set[str]) -> bool:
    """Move the launcher into a group of the pod, so that the old group can give controllers; False for a failure."""
    own = f"{unified.mount_point}{unified.own_path}"
    others = _others_in(own)
    if others and not (is_of_user() and _move(others, f"{own}/{_SESSION_SCOPE}")):
        return False
    # Written before there is such a group, for gc.
    write_pod_file(paths.POD_SUBCGROUP, os.fsencode(subcgroup))
    pod = f"{unified.mount_point}/{subcgroup}"
    try:
        os.makedirs(f"{pod}/{LAUNCHER_SCOPE}", 0o755)
        write_group_file(f"{pod}/{LAUNCHER_SCOPE}/{_PROCS}", "0")
        if _give(own, controllers):
            return True
        write_group_file(f"{own}/{_PROCS}", "0")
    except OSError:
        pass
    # The pod will be elsewhere.
    remove_pod_groups([unified], subcgroup)
    return False


def _others_in(group: str) -> list[str]:
    with open(f"{group}/{_PROCS}", encoding="utf-8") as processes:
        return [pid for pid in processes.read().split() if pid != str(os.getpid())]


def _move(pids: Sequence[str], group: str) -> bool:
    """Move processes into a group, made if missing; False for a failure."""
    try:
        os.makedirs(group, 0o755, exist_ok=True)
        for pid in pids:
            with suppress(ProcessLookupError):
                write_group_file(f"{group}/{_PROCS}", pid)
    except OSError:
        return False
    return True
