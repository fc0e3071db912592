"""
What apps need of the host before they can start: control groups with limits, volumes, devices, modules.

The launcher of a pod prepares it, `app/add` for one app more, and PID 1 itself on a machine that has no launcher.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence

from minit.launcher.cgroups import Hierarchy, pod_subcgroup
from minit.launcher.devices.devicefollower import DeviceVolume
from minit.launcher.devices.devicehelper import DeviceHelper, find_device_volumes
from minit.launcher.devices.devicepolicy import apply_policies, device_group
from minit.launcher.devices.volumes import has_devices, open_volumes, put_off_devices
from minit.launcher.start.delegation import place_pod
from minit.launcher.start.idmap import map_owners
from minit.launcher.start.limits import set_limits
from minit.plan.pod import PodPlan
from minit.stdio import complain
from minit.value import replace


def raise_descriptor_limit() -> tuple[int, int]:
    """Let this process and PID 1 open as many files as they may, and return the caller's limits, soft and hard."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def place_groups(plan: PodPlan, hierarchies: Sequence[Hierarchy]) -> str:
    """Return the path of the pod's groups, before there is another process of ours, which might be in the way."""
    if not plan.controllers:
        return pod_subcgroup(hierarchies, plan.uuid)
    return place_pod(hierarchies, plan.uuid, plan.controllers)


def set_limits_of(plan: PodPlan, hierarchies: Sequence[Hierarchy], subcgroup: str) -> None:
    """Set the limits of a plan, if it has any, and show the warnings."""
    if not plan.controllers:
        return
    for line in set_limits(plan, hierarchies, subcgroup):
        complain(f"stage1: {line}")


def open_volumes_of(plan: PodPlan) -> tuple[PodPlan, tuple[tuple[int, ...], ...]]:
    """Return a detached mount of each volume of each app, but for devices that may come later, and the plan with it."""
    if not any(app.volumes for app in plan.apps):
        return plan, ((),) * len(plan.apps)
    plan = replace(plan, apps=tuple(put_off_devices(app) for app in plan.apps))
    trees = tuple(open_volumes(app, plan.private_users) for app in plan.apps)
    if plan.private_users is not None and any(volume.idmap for app in plan.apps for volume in app.volumes):
        map_owners(plan.apps, trees, plan.private_users)
    return plan, trees


def look_for_devices(plan: PodPlan, trees: tuple[tuple[int, ...], ...]) -> DeviceHelper | None:
    """Start finding out about the apps' volumes that are devices, if there are any it matters for."""
    volumes: tuple[DeviceVolume, ...] = ()
    if any(app.late_volumes or any(map(has_devices, app.volumes)) for app in plan.apps):
        volumes = find_device_volumes(plan, trees)
    for app in plan.apps:
        if app.hotplug and not any(volume.app is app for volume in volumes):
            complain(f'stage1: warning: app "{app.name}": minit/hotplug: no volume of it is a device')
    return DeviceHelper(volumes, debug=plan.debug) if volumes else None


def restrict_devices(
    plan: PodPlan, devices: DeviceHelper | None, hierarchies: Sequence[Hierarchy], subcgroup: str
) -> tuple[PodPlan, DeviceHelper | None]:
    """Let each app use its devices and no others; returns the plan with them, and the helper if it has more to do."""
    if devices is not None:
        plan = replace(plan, apps=devices.allow_devices(plan.apps))
    for line in apply_policies(hierarchies, subcgroup, plan.apps):
        complain(f"stage1: {line}")
    if devices is not None:
        if devices.follows:
            devices.follow({app.name: device_group(hierarchies, subcgroup, app.name) for app in plan.apps})
        else:
            devices.end()
            devices = None
    return plan, devices
