"""The control groups of an app that a command joins."""

from __future__ import annotations

import os
from collections.abc import Sequence

from minit.base.errors import LaunchError, describe
from minit.base.value import Value
from minit.launcher.cgroups import Hierarchy, app_group, read_hierarchies, read_subcgroup
from minit.podfiles import paths
from minit.podfiles.usersdirectory import is_of_user


class AppGroup(Value):
    """A hierarchy, and the directory of the app's group there."""

    app: str
    hierarchy: Hierarchy
    path: str


def find_groups(app: str) -> list[AppGroup]:
    """
    Return the group of an app in each hierarchy in which its pod has one, v2 first; none for the pod of a user without
    control groups. LaunchError if there are none else.
    """
    try:
        if is_of_user() and not os.path.exists(paths.POD_SUBCGROUP):
            return []
        subcgroup = read_subcgroup()
        groups = [
            AppGroup(app=app, hierarchy=hierarchy, path=app_group(hierarchy, subcgroup, app))
            for hierarchy in read_hierarchies()
            # One may not have been there when the pod was made.
            if os.path.isdir(f"{hierarchy.mount_point}/{subcgroup}")
        ]
    except OSError as error:
        raise LaunchError(f'app "{app}": control group: {describe(error)}') from error
    if not groups:
        raise LaunchError(f'app "{app}": the pod has no control group {subcgroup}')
    return groups


def open_groups(groups: Sequence[AppGroup]) -> list[int]:
    """Return the files, one of each group, by writing `0` to which a process joins it."""
    return [_open_group(group) for group in groups]


def _open_group(group: AppGroup) -> int:
    # Not cgroup.procs in v1: its first write costs a grace period of the kernel, 13 ms.
    name = "cgroup.procs" if group.hierarchy.is_v2 else "tasks"
    try:
        return os.open(f"{group.path}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise LaunchError(f'app "{group.app}": control group: {describe(error)}') from error
