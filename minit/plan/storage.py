"""The storage of an app: the mounts, volumes and files of its root, and the paths that are protected."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from minit.base.errors import PlanError
from minit.base.value import Value, replace
from minit.manifest.annotations import Annotation
from minit.plan.inputs.hostfacts import HostNode
from minit.plan.loadedpod import AppInput, PodInput
from minit.plan.networks.podnetwork import has_own_hosts, is_contained, plan_hostname, wants_names
from minit.plan.rights.protection import Protection, plan_given_protection, plan_protection, with_pid_1
from minit.plan.root.etcfiles import AppFile, plan_files, plan_hidden_files
from minit.plan.root.mountdetails import plan_idmap, plan_memory_volumes, plan_mount_details
from minit.plan.root.mountoperations import (
    CONSOLE,
    DEV,
    PROC,
    SYS,
    SYSFS,
    SYSFS_AND_CGROUPS,
    BindTree,
    MakeDirectory,
    MakeNode,
    MountOp,
    app_mounts,
)
from minit.plan.root.volumes import HOST, MEMORY, VolumeMount, host_files, names_file, plan_volumes
from minit.podfiles.usersdirectory import hosts_of_pod

_WRITABLE_SYSFS = BindTree(source=SYS, target=SYS, recursive=True, writable=True)


class StoragePlan(Value):
    """
    The mounts and files in the root of an app.

    PID 1 makes `mounts` first, then `sysfs`, `volumes` from the outer to the inner, and `files`; `protection` covers
    all of them.
    """

    mounts: tuple[MountOp, ...] = ()
    sysfs: BindTree = SYSFS
    sysfs_yields: bool = True
    """Whether a volume below /sys takes the place of the whole of sysfs, as stage1 contract 9.2 has it."""
    volumes: tuple[VolumeMount, ...] = ()
    late_volumes: tuple[VolumeMount, ...] = ()
    """Devices that do not exist yet."""
    memory_volumes: tuple[VolumeMount, ...] = ()
    """Volumes that PID 1 has in the stage1 root."""
    files: tuple[AppFile, ...] = ()
    hidden_files: tuple[str, ...] = ()
    """The paths of files of minit that volumes replace."""
    protection: Protection = Protection()
    read_only_root: bool = False
    """Whether the rest of the root is made read-only at last."""

    def describe(self) -> list[str]:
        """Return the mounts and files as lines for --debug."""
        volumes = (*self.volumes, *self.late_volumes, *self.memory_volumes)
        return [
            *(operation.describe() for operation in self.mounts),
            f"{self.sysfs.describe()}{', but below volumes there' if volumes and self.sysfs_yields else ''}",
            *(volume.describe() for volume in volumes),
            *(file.describe() for file in self.files),
            *self.protection.describe(),
            *(("root read-only",) if self.read_only_root else ()),
        ]


def plan_pod_volumes(pod: PodInput) -> tuple[list[tuple[VolumeMount, ...]], list[str]]:
    """Return the volumes of each app and the host's files for it, and the warnings to show."""
    manifest, flags = pod.manifest, pod.flags
    private_users = bool(flags.private_users)
    planned, warnings = plan_volumes(manifest, pod.sections, pod.images)
    planned = plan_idmap(manifest, planned, private_users=private_users)
    planned = plan_memory_volumes(manifest, planned)
    volumes = []
    for runtime, mounts in zip(manifest.apps, planned):
        mounts = plan_mount_details(runtime, mounts, private_users=private_users)
        hidden = plan_hidden_files(runtime, mounts)
        mounts = (*mounts, *(file for file in host_files(flags) if file.target not in hidden))
        if wants_names(manifest, flags) and flags.hosts_mode != "host":
            mounts = (*mounts, *names_file(flags.uuid, mounts))
        volumes.append(mounts)
    return volumes, warnings


def plan_storage(given: AppInput, *, has_console: bool, own_pids: bool, has_init: bool = False) -> StoragePlan:
    """
    Return the storage of an app, which may have the pod's console and a PID namespace of its own, where PID 1 may be
    ours.
    """
    pod, flags, facts = given.pod, given.pod.flags, given.pod.facts
    mounts = app_mounts(
        console=has_console,
        private_users=bool(flags.private_users),
        has_queues=pod.has_queues,
        shown_devices=facts.shown_devices,
    )
    if own_pids:
        mounts = tuple(PROC if isinstance(each, BindTree) and each.target == PROC.target else each for each in mounts)
    hidden = plan_hidden_files(given.runtime, given.volumes)
    late = tuple(each for each in given.volumes if given.has_hotplug and each.source in facts.missing_devices)
    if facts.shown_devices is not None:
        _refuse_read_only(late)
    given_protection = plan_given_protection(given.runtime)
    protection = given_protection or plan_protection(flags.disable_paths, is_contained(flags.networks))
    storage = StoragePlan(
        mounts=mounts,
        # Stage1 contract 9.2.
        sysfs=SYSFS
        if facts.shown_devices is None and pod.mapped is None and not facts.is_unified
        else SYSFS_AND_CGROUPS,
        # Agents of networks have /sys/fs/bpf of the host, and read the rest of /sys.
        sysfs_yields=given_protection is None and not given.is_privileged,
        volumes=tuple(each for each in given.volumes if each not in late and each.kind != MEMORY),
        late_volumes=late,
        memory_volumes=tuple(each for each in given.volumes if each.kind == MEMORY),
        files=tuple(file for file in _plan_files(given) if file.target not in hidden),
        hidden_files=hidden,
        protection=protection if own_pids and not has_init else with_pid_1(protection),
        read_only_root=given.runtime.read_only_root_fs,
    )
    if not given.is_privileged:
        return storage
    if facts.shown_devices is None:
        return _privileged(storage, facts.device_nodes)
    return _privileged_of_user(storage, facts.device_nodes, has_own_network=is_contained(flags.networks))


def _refuse_read_only(late: Sequence[VolumeMount]) -> None:
    """Raise PlanError for a device to come that an app may not write to, where no policy of devices can be written."""
    for each in late:
        if each.read_only or "w" not in (each.device_access or "w"):
            problem = f"{each.source} cannot be read-only, which takes root"
            raise PlanError(f'{each.place}: volume "{each.volume}": {problem}')


def _plan_files(given: AppInput) -> tuple[AppFile, ...]:
    """Return the files of an app, without a hosts file if a volume has that of the pod's networks."""
    flags, texts = given.pod.flags, given.pod.loaded.texts
    if any(each.source == hosts_of_pod(flags.uuid) for each in given.volumes):
        texts = replace(texts, hosts=None)
    return plan_files(plan_hostname(flags), flags, texts, has_own_hosts=has_own_hosts(given.pod.manifest))


def _privileged(storage: StoragePlan, nodes: Sequence[HostNode]) -> StoragePlan:
    """Return the storage of an app with all privileges, which gets the host's device `nodes` as well."""
    mounts = (*storage.mounts, *_with_directories(storage.mounts, nodes))
    return replace(storage, mounts=mounts, sysfs=_WRITABLE_SYSFS, protection=Protection())


def _privileged_of_user(storage: StoragePlan, nodes: Sequence[HostNode], *, has_own_network: bool) -> StoragePlan:
    """
    Return the storage of an app with all privileges that root of a user namespace can give: the host's device `nodes`
    are shown, and a /sys of the host's network stays read-only.
    """
    taken = [CONSOLE, *(operation.target for operation in storage.mounts if operation.target != DEV)]
    taken += [posixpath.normpath(f"/./{volume.target}").rstrip("/") for volume in storage.volumes]
    shown = tuple(
        VolumeMount(volume="devices", kind=HOST, source=node.path, target=node.path, place=Annotation.PRIVILEGED)
        for node in nodes
        if not any(node.path == path or node.path.startswith(f"{path}/") for path in taken)
    )
    sysfs = _WRITABLE_SYSFS if has_own_network else storage.sysfs
    return replace(storage, volumes=(*shown, *storage.volumes), sysfs=sysfs, protection=Protection())


def _with_directories(mounts: Sequence[MountOp], nodes: Sequence[HostNode]) -> list[MountOp]:
    # The console is the app's own, or there is none.
    present = {CONSOLE, DEV, *(operation.target for operation in mounts)}
    made: list[MountOp] = []
    for node in nodes:
        if node.path in present:
            continue
        missing = []
        directory = posixpath.dirname(node.path)
        while directory not in present:
            present.add(directory)
            missing.append(MakeDirectory(target=directory))
            directory = posixpath.dirname(directory)
        made += [*reversed(missing), _make(node)]
    return made


def _make(node: HostNode) -> MakeNode:
    uid, gid = node.owner
    return MakeNode(
        target=node.path,
        major=node.major,
        minor=node.minor,
        mode=node.mode,
        is_block=node.is_block,
        uid=uid,
        gid=gid,
    )
