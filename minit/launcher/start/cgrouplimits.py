"""
Writing the limits of a pod and its apps into their control groups, which the launcher has made and nobody is in yet.

Those of a pod are set for `system.slice`, the group around all its apps: what PID 1 and the sidecars need is not taken
from what the apps may have, and an app that uses up all of it does not stop them.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from minit.errors import LaunchError, describe
from minit.launcher.cgroups import APPS, Hierarchy, app_group, apps_group, read_controllers, write_group_file
from minit.launcher.start.delegation import give_controllers
from minit.manifest.limits import CFS_QUOTA, SWAP_FILES, Limits
from minit.plan.podplan import PodPlan


def set_limits(plan: PodPlan, hierarchies: Sequence[Hierarchy], subcgroup: str) -> list[str]:
    """Set the limits of `plan` and return the warnings to show; LaunchError names a file that cannot be written."""
    for hierarchy in hierarchies:
        wanted = plan.controllers & read_controllers(hierarchy.mount_point) if hierarchy.is_v2 else None
        if wanted:
            give_controllers(hierarchy, f"/{subcgroup}/{APPS}", wanted)
    warnings = []
    if plan.limits is not None:
        groups = [(hierarchy, apps_group(hierarchy, subcgroup)) for hierarchy in hierarchies]
        warnings += _limit("pod", plan.limits, groups)
    for app in plan.apps:
        if app.limits is not None:
            groups = [(hierarchy, app_group(hierarchy, subcgroup, app.name)) for hierarchy in hierarchies]
            warnings += _limit(f'app "{app.name}"', app.limits, groups)
    return warnings


def _limit(owner: str, limits: Limits, groups: Sequence[tuple[Hierarchy, str]]) -> list[str]:
    warnings = []
    for controller in sorted(limits.controllers):
        place = next((place for place in groups if _has_controller(*place, controller)), None)
        if place is None:
            if controller in limits.needed_controllers:
                warnings.append(f"warning: {owner}: no limit of {controller}: its control group has no such controller")
            continue
        hierarchy, group = place
        if not hierarchy.is_v2 and any(file.startswith(f"{controller}.") for file, _ in limits.unified):
            raise LaunchError(f"failed to limit {owner}: {controller} is in a hierarchy of v1: it has no files of v2")
        for file, text in limits.settings(controller, hierarchy.is_v2):
            try:
                write_group_file(f"{group}/{file}", text)
            except OSError as error:
                if file in SWAP_FILES and error.errno == errno.ENOENT:
                    warnings.append(f"warning: {owner}: no limit of swap: the kernel does not count it")
                    continue
                if file != CFS_QUOTA or error.errno != errno.EINVAL:
                    raise LaunchError(f"failed to limit {owner}: {group}/{file}: {describe(error)}") from error
                # v2 takes what is more than a group around allows, and it means nothing there.
                warnings.append(f"warning: {owner}: a control group around the pod allows less processor time already")
    return warnings


def _has_controller(hierarchy: Hierarchy, group: str, controller: str) -> bool:
    # A controller is in one hierarchy at a time; in the unified one a group need not have it.
    return controller in (read_controllers(group) if hierarchy.is_v2 else hierarchy.controllers)
