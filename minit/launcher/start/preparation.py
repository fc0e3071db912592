"""
The host's part in the start of apps: filters, control groups with limits, volumes, devices, sockets.

One function prepares three starts: of a pod by the launcher, of an app by `app/add`, and of a machine's pod by PID 1,
since a machine has no launcher.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence

from minit.base.errors import LaunchError, Step, describe
from minit.base.idrange import IdRange
from minit.base.value import Value
from minit.launcher.cgroups import (
    APPS,
    Hierarchy,
    PodGroups,
    app_group,
    apps_group,
    below_parent,
    make_pod_groups,
    open_hierarchies,
    pod_subcgroup,
    read_controllers,
    read_hierarchies,
    show_groups,
    write_group_file,
)
from minit.launcher.devices.devicefollower import DeviceVolume
from minit.launcher.devices.devicehelper import DeviceHelper, find_device_volumes
from minit.launcher.devices.devicepolicy import apply_policies, device_group
from minit.launcher.devices.openvolumes import has_devices, open_volumes
from minit.launcher.podhelper import PodHelper
from minit.launcher.start.delegation import give_controllers, place_pod
from minit.launcher.start.filterprograms import make_specs, read_sidecar_filter
from minit.launcher.start.listenfds import AppSockets
from minit.launcher.start.load import open_stage1_root
from minit.linux import syscalls
from minit.linux.attributes import Attributes
from minit.linux.idmapping import open_user_namespace
from minit.linux.messages import Socket
from minit.linux.stdio import complain
from minit.manifest.limits import CFS_QUOTA, SWAP_FILES, Limits
from minit.plan.appplan import AppPlan
from minit.plan.appspec import AppSpec
from minit.plan.podplan import PodPlan
from minit.plan.root.volumes import VolumeMount
from minit.podfiles import paths
from minit.podfiles.podfile import write_pod_file
from minit.supervisor.boot import SupervisorEnds
from minit.supervisor.exec.socketactivation import open_sockets


class Placed(Value):
    """
    A plan with a place for the control groups, not made yet.

    `own` are the hierarchies with the groups of this process, `hierarchies` the hierarchies of the pod, where the pod's
    groups have the path `subcgroup`. `specs` are the apps with filters and with visible groups.
    """

    plan: PodPlan
    specs: tuple[AppSpec, ...]
    sockets: AppSockets
    own: Sequence[Hierarchy]
    hierarchies: Sequence[Hierarchy]
    subcgroup: str


class Start(Value):
    """
    One of three starts: of a pod on a host, of the pod of a machine, or of an added app.

    `plan` returns the plan for the control groups of this process. `place` returns the path of the pod's groups in the
    hierarchies of the pod, `sockets` the inherited descriptors of the apps' sockets. `begin` is called when nothing is
    made yet. With `for_gc` the pod directory gets the path of the groups. `pod` is the PID 1 with which the helper for
    devices stays, None for a helper that ends with the launcher. `find` returns the hierarchies for the pod's groups.
    """

    plan: Callable[[Sequence[Hierarchy]], PodPlan]
    place: Callable[[PodPlan, Sequence[Hierarchy]], str]
    sockets: Callable[[PodPlan], AppSockets]
    begin: Callable[[Placed], None]
    find: Callable[[Sequence[Hierarchy]], Sequence[Hierarchy]]
    for_gc: bool = False
    pod: int | None = None


class Prepared(Placed):
    """
    Things of the host for the apps of a plan, in the order of the plan.

    `trees` has a detached mount of each volume of each app, but for devices that come later. `life` is the end of the
    pipe by which a staying helper for devices lives, None without such a helper.
    """

    trees: tuple[tuple[int, ...], ...]
    groups: PodGroups
    life: int | None


def prepare(start: Start, helpers: list[PodHelper]) -> Prepared:
    """
    Make and open everything of the host for the apps of a start.

    A helper with more work is added to the list, also before a failure.
    """
    with Step("find the control groups of this process"):
        own = read_hierarchies()
        usable = start.find(own)
    plan = start.plan(usable)
    with Step("load seccomp filters"):
        specs = make_specs(plan.apps)
    with Step("take over sockets"):
        sockets = start.sockets(plan)
    with Step("place control groups"):
        hierarchies = usable if plan.group_parent is None else below_parent(usable, plan.group_parent)
        subcgroup = start.place(plan, hierarchies)
    placed = Placed(
        plan=plan,
        specs=tuple(show_groups(app, hierarchies, subcgroup) for app in specs),
        sockets=_open_host_sockets(plan, sockets),
        own=own,
        hierarchies=hierarchies,
        subcgroup=subcgroup,
    )
    start.begin(placed)
    with Step("open volumes"):
        trees = _open_volumes(plan)
    with Step("look for devices"):
        devices = _look_for_devices(plan, trees)
        if devices is not None:
            helpers.append(devices)
    with Step("make control groups"):
        if start.for_gc and hierarchies:
            # First: gc could not find the groups of a pod that died in between.
            write_pod_file(paths.POD_SUBCGROUP, os.fsencode(subcgroup))
        groups = _make_groups(placed)
    with Step("set limits"):
        for line in set_limits(plan, hierarchies, subcgroup) if plan.controllers else ():
            complain(f"stage1: {line}")
    with Step("set device policy"):
        life = _set_device_policy(start, placed, devices, helpers)
    return Prepared(**vars(placed), trees=trees, groups=groups, life=life)


def supervisor_ends(prepared: Prepared, launcher: Socket | None, lock: int, attributes: Attributes) -> SupervisorEnds:
    """Return the descriptors for PID 1 at the start of a pod, as far as a host and a machine agree."""
    with Step("open the control group hierarchies"):
        shown = open_hierarchies(prepared.hierarchies)
    return SupervisorEnds(
        specs=prepared.specs,
        sidecar_filter=read_sidecar_filter(),
        launcher=launcher,
        lock=lock,
        root=open_stage1_root(),
        image=None,
        tasks=prepared.groups.tasks,
        groups=prepared.groups.apps,
        hierarchies=shown,
        attributes=attributes,
        trees=prepared.trees,
        sockets=prepared.sockets,
    )


def no_sockets(plan: PodPlan) -> AppSockets:
    """Return no inherited descriptor for any socket of the apps."""
    return tuple((None,) * len(app.process.sockets) for app in plan.apps)


def place_groups(plan: PodPlan, hierarchies: Sequence[Hierarchy]) -> str:
    """Return the path of the pod's groups, before another process of ours might be in the way."""
    if not hierarchies:
        return ""
    if plan.group_parent is not None:
        return f"{plan.group_parent}/{paths.pod_cgroup_name(plan.uuid)}".lstrip("/")
    if not plan.controllers:
        return pod_subcgroup(hierarchies, plan.uuid)
    return place_pod(hierarchies, plan.uuid, plan.controllers)


def _open_host_sockets(plan: PodPlan, sockets: AppSockets) -> AppSockets:
    """
    Open the sockets of apps that PID 1 cannot open, but for inherited ones; None stands for a socket that PID 1 is to
    open.
    """
    if plan.private_users is None or not plan.has_host_network:
        return sockets
    with Step("open sockets"):
        # Here, as root of a user namespace may not bind to low ports of the host.
        return tuple(open_sockets(app.name, app.process.sockets, fds) for app, fds in zip(plan.apps, sockets))


def _make_groups(placed: Placed) -> PodGroups:
    plan = placed.plan
    return make_pod_groups(
        placed.hierarchies,
        placed.subcgroup,
        [app.name for app in plan.apps],
        private_users=plan.private_users is not None,
        of_apps_only=plan.group_parent is not None,
    )


def _set_device_policy(
    start: Start, placed: Placed, devices: DeviceHelper | None, helpers: list[PodHelper]
) -> int | None:
    """Set the policies of the apps; have the helper follow devices, or end it; return the helper's pipe to live by."""
    plan, hierarchies, subcgroup = placed.plan, placed.hierarchies, placed.subcgroup
    names = [app.name for app in plan.apps]
    rules = [app.resources.devices for app in plan.apps] if devices is None else devices.find_rules(plan.apps)
    for line in apply_policies(hierarchies, subcgroup, zip(names, rules)):
        complain(f"stage1: {line}")
    if devices is None:
        return None
    if not devices.follows:
        helpers.remove(devices)
        devices.end()
        return None
    followed = {name: device_group(hierarchies, subcgroup, name) for name in names}
    if start.pod is not None:
        return devices.follow_and_stay(followed, start.pod)
    devices.follow(followed)
    return None


def _open_volumes(plan: PodPlan) -> tuple[tuple[int, ...], ...]:
    if not any(app.storage.volumes for app in plan.apps):
        return ((),) * len(plan.apps)
    trees = tuple(open_volumes(app, plan.private_users) for app in plan.apps)
    if plan.private_users is not None and any(volume.idmap for app in plan.apps for volume in app.storage.volumes):
        _map_owners(plan.apps, trees, plan.private_users)
    return trees


def _look_for_devices(plan: PodPlan, trees: tuple[tuple[int, ...], ...]) -> DeviceHelper | None:
    """Start looking for the devices of the apps' volumes, if any."""
    volumes: tuple[DeviceVolume, ...] = ()
    if any(app.storage.late_volumes or any(map(has_devices, app.storage.volumes)) for app in plan.apps):
        volumes = find_device_volumes(plan, trees)
    for app in plan.apps:
        if app.resources.hotplug and not any(volume.app is app for volume in volumes):
            complain(f'stage1: warning: app "{app.name}": minit/hotplug: no volume of it is a device')
    return DeviceHelper(volumes, debug=plan.debug) if volumes else None


def set_limits(plan: PodPlan, hierarchies: Sequence[Hierarchy], subcgroup: str) -> list[str]:
    """
    Write the limits of `plan` into control groups without processes, and return the warnings to show.

    The limits of the pod are set for `system.slice`, the group around all apps: PID 1 and the sidecars take nothing
    from the apps' share, and an app that uses up everything does not stop PID 1. LaunchError names a file that cannot
    be written.
    """
    for hierarchy in hierarchies:
        wanted = plan.controllers & read_controllers(hierarchy.mount_point) if hierarchy.is_v2 else None
        if wanted:
            give_controllers(hierarchy, f"/{subcgroup}/{APPS}", wanted)
    warnings = []
    if plan.limits is not None:
        groups = [(hierarchy, apps_group(hierarchy, subcgroup)) for hierarchy in hierarchies]
        warnings += _limit("pod", plan.limits, groups)
    for app in plan.apps:
        if app.resources.limits is not None:
            groups = [(hierarchy, app_group(hierarchy, subcgroup, app.name)) for hierarchy in hierarchies]
            warnings += _limit(f'app "{app.name}"', app.resources.limits, groups)
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
                # v2 takes a value above the limit of a group around, without a meaning there.
                warnings.append(f"warning: {owner}: a control group around the pod allows less processor time already")
    return warnings


def _has_controller(hierarchy: Hierarchy, group: str, controller: str) -> bool:
    # A controller is in one hierarchy at a time; in the unified one a group need not have it.
    return controller in (read_controllers(group) if hierarchy.is_v2 else hierarchy.controllers)


def _map_owners(apps: Sequence[AppPlan], trees: Sequence[Sequence[int]], mapped: IdRange) -> None:
    """
    Have volumes with the option show a pod with a user namespace the owners on the disk: idmapped mounts.

    The kernel wants a user namespace for a mapping, mount_setattr(2): another one than the pod's, which does not exist
    yet. So a filesystem without mapped owners is noticed before anything of the pod exists.

    `trees` are the mounts of each app's volumes, attached nowhere yet. LaunchError names a volume that cannot be
    mapped. Warns of volumes unfit for files of the pod's root.
    """
    namespace = open_user_namespace(mapped)
    try:
        for app, opened in zip(apps, trees):
            for volume, tree in zip(app.storage.volumes, opened):
                if volume.idmap:
                    _map(volume, tree, namespace)
                    if not volume.read_only and _is_in_reach(volume.source):
                        complain(
                            f'stage1: warning: {volume.place}: volume "{volume.volume}": whoever can reach'
                            f" {volume.source} on the host can run setuid programs that root of the pod leaves there:"
                            " put it in a directory of root's alone, or on a filesystem that is mounted nosuid"
                        )
    finally:
        os.close(namespace)


def _map(volume: VolumeMount, tree: int, namespace: int) -> None:
    try:
        syscalls.mount_setattr(
            tree, flags=syscalls.AT_RECURSIVE, set=syscalls.MOUNT_ATTR_IDMAP, user_namespace=namespace
        )
    except OSError as error:
        which = " or one that is mounted below it" if volume.recursive else ""
        raise LaunchError(
            f'{volume.place}: volume "{volume.volume}": minit/idmap: the filesystem of {volume.source}{which}'
            f" cannot map owners: {describe(error)}"
        ) from error


def _is_in_reach(source: str) -> bool:
    """Tell whether a program in a directory of the host can be run by others than root, with the owner's rights."""
    if os.statvfs(source).f_flag & os.ST_NOSUID:
        return False
    path = os.path.realpath(source)
    while _lets_others_pass(path):
        if path == "/":
            return True
        path = os.path.dirname(path)
    return False


def _lets_others_pass(path: str) -> bool:
    status = os.stat(path)
    mode = status.st_mode
    return bool(mode & stat.S_IXOTH or mode & stat.S_IXGRP and status.st_gid or mode & stat.S_IXUSR and status.st_uid)
