"""
The host's part in the start of apps: control groups with limits, volumes, devices, modules.

The launcher of a pod prepares it, `app/add` for one app more, and PID 1 itself on a machine that has no launcher.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence

from minit import paths
from minit.errors import Step
from minit.launcher.cgroups import Hierarchy, PodGroups, make_pod_groups, pod_subcgroup
from minit.launcher.devices.devicefollower import DeviceVolume
from minit.launcher.devices.devicehelper import DeviceHelper, find_device_volumes
from minit.launcher.devices.devicepolicy import DeviceGroup, apply_policies, device_group
from minit.launcher.devices.openvolumes import has_devices, open_volumes
from minit.launcher.podhelper import PodHelper
from minit.launcher.start.cgrouplimits import set_limits
from minit.launcher.start.delegation import place_pod
from minit.launcher.start.idmappedmounts import map_owners
from minit.launcher.start.listenfds import AppSockets
from minit.plan.podplan import PodPlan
from minit.podfile import write_pod_file
from minit.stdio import complain
from minit.supervisor.exec.socketactivation import open_sockets
from minit.value import Value


class Preparation(Value):
    """
    Things of the host for the apps of a plan, in the order of the plan.

    `trees` has a detached mount of each volume of each app, but for devices that may come later. `devices` is the
    helper by which these come, if any can, into the groups that are `followed`, by app.
    """

    trees: tuple[tuple[int, ...], ...]
    groups: PodGroups
    devices: DeviceHelper | None
    followed: dict[str, DeviceGroup | None]


def raise_descriptor_limit() -> tuple[int, int]:
    """Let this process and PID 1 open as many files as they may, and return the caller's limits, soft and hard."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def place_groups(plan: PodPlan, hierarchies: Sequence[Hierarchy]) -> str:
    """Return the path of the pod's groups, before there is another process of ours, which might be in the way."""
    if plan.group_parent is not None:
        return f"{plan.group_parent}/{paths.pod_cgroup_name(plan.uuid)}".lstrip("/")
    if not plan.controllers:
        return pod_subcgroup(hierarchies, plan.uuid)
    return place_pod(hierarchies, plan.uuid, plan.controllers)


def prepare(
    plan: PodPlan,
    hierarchies: Sequence[Hierarchy],
    subcgroup: str,
    helpers: list[PodHelper],
    *,
    for_gc: bool = False,
) -> Preparation:
    """
    Make and open what the apps of a plan need of the host: those of a pod, or one that is added.

    A helper that has more to do is added to the list, and is in it already when this fails. With `for_gc` the pod
    directory gets the path of the control groups.
    """
    with Step("open volumes"):
        trees = _open_volumes(plan)
    with Step("look for devices"):
        devices = _look_for_devices(plan, trees)
        if devices is not None:
            helpers.append(devices)
    with Step("make control groups"):
        if for_gc:
            # First: gc could not find the groups of a pod that died between the two.
            write_pod_file(paths.POD_SUBCGROUP, os.fsencode(subcgroup))
        names = [app.name for app in plan.apps]
        groups = make_pod_groups(
            hierarchies,
            subcgroup,
            names,
            private_users=plan.private_users is not None,
            of_apps_only=plan.group_parent is not None,
        )
    with Step("set limits"):
        _set_limits(plan, hierarchies, subcgroup)
    with Step("set device policy"):
        rules = [app.devices for app in plan.apps] if devices is None else devices.find_rules(plan.apps)
        for line in apply_policies(hierarchies, subcgroup, zip(names, rules)):
            complain(f"stage1: {line}")
        if devices is not None and not devices.follows:
            helpers.remove(devices)
            devices.end()
            devices = None
    followed = {} if devices is None else {name: device_group(hierarchies, subcgroup, name) for name in names}
    return Preparation(trees=trees, groups=groups, devices=devices, followed=followed)


def open_host_sockets(plan: PodPlan, inherited: AppSockets | None = None) -> AppSockets:
    """Open the sockets of apps that PID 1 could not, but for inherited ones; None are those that it is to open."""
    sockets = tuple((None,) * len(app.sockets) for app in plan.apps) if inherited is None else inherited
    if plan.private_users is None or not plan.has_host_network:
        return sockets
    with Step("open sockets"):
        # Here, as root of a user namespace may not bind to low ports of the host.
        return tuple(open_sockets(app, fds) for app, fds in zip(plan.apps, sockets))


def _set_limits(plan: PodPlan, hierarchies: Sequence[Hierarchy], subcgroup: str) -> None:
    if not plan.controllers:
        return
    for line in set_limits(plan, hierarchies, subcgroup):
        complain(f"stage1: {line}")


def _open_volumes(plan: PodPlan) -> tuple[tuple[int, ...], ...]:
    if not any(app.volumes for app in plan.apps):
        return ((),) * len(plan.apps)
    trees = tuple(open_volumes(app, plan.private_users) for app in plan.apps)
    if plan.private_users is not None and any(volume.idmap for app in plan.apps for volume in app.volumes):
        map_owners(plan.apps, trees, plan.private_users)
    return trees


def _look_for_devices(plan: PodPlan, trees: tuple[tuple[int, ...], ...]) -> DeviceHelper | None:
    """Start finding out about the apps' volumes that are devices, if there are any it matters for."""
    volumes: tuple[DeviceVolume, ...] = ()
    if any(app.late_volumes or any(map(has_devices, app.volumes)) for app in plan.apps):
        volumes = find_device_volumes(plan, trees)
    for app in plan.apps:
        if app.hotplug and not any(volume.app is app for volume in volumes):
            complain(f'stage1: warning: app "{app.name}": minit/hotplug: no volume of it is a device')
    return DeviceHelper(volumes, debug=plan.debug) if volumes else None
