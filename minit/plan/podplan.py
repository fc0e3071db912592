"""Deciding everything about a pod: its namespaces, its host name and its apps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from minit.base.errors import PlanError
from minit.base.hostname import default_name, find_fault
from minit.base.idrange import IdRange, parse_id_range
from minit.base.processors import parse_kernel_release
from minit.base.value import Value, replace
from minit.manifest.annotations import Annotation
from minit.manifest.app import App
from minit.manifest.capabilities import DEFAULT, NAMES, capability_mask
from minit.manifest.image import ImageManifest
from minit.manifest.limits import CONTROLLERS, Limits
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.plan.appplan import STREAM_CONSOLE, AppPlan, plan_app
from minit.plan.groupparent import plan_group_parent
from minit.plan.inputs.hostfacts import HostFacts, check_host
from minit.plan.inputs.origins import Origins, find_origins
from minit.plan.inputs.runflags import RunFlags
from minit.plan.inputs.switches import is_set
from minit.plan.life.appenvironment import user_variables, with_metadata
from minit.plan.life.expansion import plan_expansion
from minit.plan.life.health import plan_health
from minit.plan.life.logs import (
    plan_kubernetes_directory,
    plan_log,
    plan_log_directory,
)
from minit.plan.life.readiness import plan_readiness
from minit.plan.life.restart import plan_restart
from minit.plan.life.sockets import plan_sockets
from minit.plan.life.stopping import plan_deadline, plan_pod_grace, plan_stopping
from minit.plan.loadedpod import Pod, app_section
from minit.plan.networks.connection import addresses_of, connect, expand_texts
from minit.plan.networks.kernelsettings import Sysctl, plan_sysctls
from minit.plan.networks.networkplan import Connection, NetworkPlan
from minit.plan.networks.podnetwork import (
    has_own_hosts,
    is_contained,
    plan_named_pod,
    plan_pod_network,
    wants_host_dns,
    wants_names,
)
from minit.plan.order import check_order, plan_after
from minit.plan.pidnamespace import plan_host_pids, plan_pid_namespace
from minit.plan.podisolation import plan_isolations
from minit.plan.privilegedapps import is_privileged, may_be_privileged, privileged_fields
from minit.plan.refusals import refuse_shared_files, refuse_unbuilt, refuse_unknown_annotations
from minit.plan.rights.givenpaths import plan_given_protection
from minit.plan.rights.imagegroups import PRIMARY, plan_image_groups, plan_supplementary
from minit.plan.rights.isolators import Isolation
from minit.plan.rights.protection import plan_protection, with_pid_1
from minit.plan.rights.seccompprofile import (
    Surroundings,
    is_unconfined,
    open_by_capabilities,
    plan_apparmor,
    plan_guards,
    plan_profile,
    plan_refused_error,
)
from minit.plan.rights.users import AppLookups, check_mapped, plan_ids
from minit.plan.root.devicevolumes import DEFAULT_RULES, plan_hotplug
from minit.plan.root.etcfiles import EtcTexts, plan_files, plan_hidden_files
from minit.plan.root.groupmounts import cover_of
from minit.plan.root.idmap import plan_idmap
from minit.plan.root.mountdetails import memory_mounts, plan_memory_volumes, plan_mount_details, plan_shared_memory
from minit.plan.root.mountoperations import SYSFS, SYSFS_AND_CGROUPS, TTY_GID, MountOp, pod_mounts
from minit.plan.root.volumes import MEMORY, VolumeMount, host_files, names_file, plan_volumes
from minit.podfiles.paths import hosts_of_pod

T = TypeVar("T")

_HOST_LOOPBACK = "127.0.0.1"


class PodPlan(Value):
    """
    Everything decided about a pod before any effect.

    `namespaces` are namespaces(7) names under /proc/PID/ns of what is made together with PID 1. With a `network` it
    joins a namespace that is made for that. With `has_dns_of_host` it is in the host's and resolves names as that does.
    `limits` are those of all its apps together, None without any.
    The control groups of its apps are below `group_parent`, None for the launcher's own group.
    `kubernetes_log_directory` is where the host has the log files of the log mode k8s-plain, and logs by their path.
    `private_users` are the ids of its user namespace, None without one. A `mutable` pod lives until it is stopped,
    whatever becomes of its apps, and may get more of them, which may need `later_controllers` of control groups.
    With `host_pids` it has no PID namespace, and its PID 1 has any number.
    `sysctls` are settings of its own namespaces. It is stopped after `deadline_seconds`, None for never. `tells_host`
    says that who started the pod is told when it is ready.
    """

    uuid: str
    hostname: str
    namespaces: tuple[str, ...]
    apps: tuple[AppPlan, ...]
    bounding: int | None
    mounts: tuple[MountOp, ...] = ()
    network: NetworkPlan | None = None
    sysctls: tuple[Sysctl, ...] = ()
    has_dns_of_host: bool = False
    limits: Limits | None = None
    kubernetes_log_directory: str | None = None
    private_users: IdRange | None = None
    host_pids: bool = False
    mutable: bool = False
    later_controllers: frozenset[str] = frozenset()
    group_parent: str | None = None
    deadline_seconds: float | None = None
    tells_host: bool = False
    warnings: tuple[str, ...] = ()
    debug: bool = False

    @property
    def has_loopback_only(self) -> bool:
        """Tell whether the pod has a network namespace with nothing but lo."""
        return "net" in self.namespaces

    @property
    def has_host_network(self) -> bool:
        """Tell whether the pod is in the network of the host."""
        return self.network is None and not self.has_loopback_only

    @property
    def controllers(self) -> frozenset[str]:
        """The controllers of control groups that its limits need, or those of an app that is added later may."""
        every = [self.limits, *(app.resources.limits for app in self.apps)]
        return self.later_controllers.union(*(limits.needed_controllers for limits in every if limits is not None))

    @property
    def console_uid(self) -> int | None:
        """The owner of the pod's console: the first app with one; None without."""
        return next((app.confinement.uid for app in self.apps if app.streams.has_console), None)

    @property
    def reads_console(self) -> bool:
        """Tell whether any app reads from the pod's console."""
        return any(app.streams.stdin == STREAM_CONSOLE for app in self.apps)

    def notices(self) -> list[str]:
        """Return the lines to show: the warnings, and the decisions with --debug."""
        return [*self.warnings, *(self.describe() if self.debug else ())]

    def describe(self) -> list[str]:
        """Return the decisions as lines for --debug."""
        lines = [f"pod {self.uuid}: hostname {self.hostname}, namespaces {' '.join(self.namespaces)}"]
        lines += ["pod: mutable"] if self.mutable else []
        lines += [] if self.deadline_seconds is None else [f"pod: stopped after {self.deadline_seconds:g} s"]
        lines += [] if self.private_users is None else [f"pod: private users {self.private_users}"]
        lines += [f"pod: {operation.describe()}" for operation in self.mounts]
        lines += [f"pod: sysctl {setting.path} {setting.value}" for setting in self.sysctls]
        lines += [] if self.limits is None else [f"pod: limits {self.limits.describe()}"]
        return lines + [line for app in self.apps for line in app.describe()]


def plan_added_app(pod: Pod, flags: RunFlags, facts: HostFacts, connection: Connection | None) -> PodPlan:
    """
    Return the plan of a pod with one app, which is added to those that run; PlanError as for a whole pod.

    `connection` is what the networks of the pod offer, None if it has joined none.
    Only what it says about the app counts: its networks, and the limits of all apps together with the controllers that
    any may need, are there already.
    """
    plan = _Planning(pod, flags, facts, joined=True).plan()
    apps = plan.apps if connection is None else connect(plan.apps, connection, flags.mds_token)
    apps = expand_texts(apps, addresses_of(flags.uuid, connection))
    return replace(plan, apps=apps, limits=None, later_controllers=frozenset())


def plan_machine(pod: Pod, flags: RunFlags, facts: HostFacts) -> PodPlan:
    """
    Return the plan of the pod of a machine; PlanError as for any other.

    All but its mounts are the machine's own, and somebody may stop an app and start it again.
    """
    plan = plan_pod(pod, flags, facts)
    if plan.group_parent is not None:
        raise PlanError(f"annotation {Annotation.CGROUP_PARENT}: a machine has no group around it")
    if plan.host_pids:
        raise PlanError(f"annotation {Annotation.PID_NAMESPACE}: the processes of a machine are its own")
    apps = expand_texts(plan.apps, addresses_of(flags.uuid, None))
    return replace(plan, namespaces=("mnt",), apps=tuple(_restartable(app) for app in apps))


def plan_pod(pod: Pod, flags: RunFlags, facts: HostFacts) -> PodPlan:
    """Return the plan of a pod; PlanError for what this machine or minit cannot do."""
    refuse_shared_files(pod.manifest)
    return _Planning(pod, flags, facts, joined=False).plan()


class _Planning:
    """
    A pod that is being planned, and the warnings so far.

    If it runs, its networks are `joined` already. `mapped` are the ids of its user namespace, None without one.
    """

    def __init__(self, pod: Pod, flags: RunFlags, facts: HostFacts, *, joined: bool) -> None:
        check_host(facts)
        refuse_unbuilt(pod.manifest, flags)
        self._pod = pod
        self._flags = flags
        self._facts = facts
        self._joined = joined
        self._mapped = _plan_private_users(pod, flags)
        images = dict(pod.images)
        self._images = [images[runtime.name] for runtime in pod.manifest.apps]
        self._sections = [app_section(*each) for each in zip(pod.manifest.apps, self._images)]
        self._hostname = _plan_hostname(flags)
        # Those of the host are not for the root of a user namespace to mount.
        self._has_queues = facts.has_queues and (self._mapped is None or flags.ipc != "parent")
        self._warnings = [f"warning: ignoring {name}: not supported yet" for name in facts.ignored_variables]

    def plan(self) -> PodPlan:
        """Return the plan of the pod."""
        pod, flags, facts, mapped = self._pod, self._flags, self._facts, self._mapped
        network = None if self._joined else plan_pod_network(pod, flags, self._sections)
        volumes = self._heed(_plan_volumes(pod.manifest, self._sections, self._images, flags))
        has_names = wants_names(pod.manifest, flags)
        if has_names and flags.hosts_mode != "host":
            volumes = [(*mounts, *names_file(flags.uuid, mounts)) for mounts in volumes]
        if has_names and network is not None:
            network = replace(network, named=plan_named_pod(pod, flags.uuid, self._hostname))
        limits, isolations, notes = plan_isolations(pod, self._sections, facts)
        self._warnings += notes
        kubernetes_log_directory = self._heed(plan_kubernetes_directory(pod.manifest))
        logs_for_kubernetes = kubernetes_log_directory is not None and not flags.interactive
        apps = []
        each = zip(pod.manifest.apps, self._sections, self._images, volumes, isolations)
        for runtime, app, image, mounts, isolation in each:
            refuse_unknown_annotations(runtime, image)
            spec, fields = self._plan_app(runtime, app, image, mounts)
            fields |= plan_log(runtime, pod.manifest, logs_for_kubernetes)
            fields |= self._confine(spec, isolation, runtime, app, image)
            if self._is_privileged(runtime):
                fields |= privileged_fields(fields.get("mounts", spec.storage.mounts), facts.device_nodes)
            fields |= _plan_start(
                runtime, image, pod.manifest, len(fields["sockets"]), has_console=spec.streams.has_console
            )
            again = flags.mutable or fields["restart"] is not None
            # At once: an app has many fields to copy.
            apps.append(_with_fields(spec, {**fields, "starts_again": again}))
        if not flags.mutable:
            check_order(apps)
        namespaces = self._namespaces(network)
        return PodPlan(
            uuid=flags.uuid,
            hostname=self._hostname,
            namespaces=namespaces,
            apps=tuple(apps),
            bounding=self._bounding(isolations),
            mounts=(
                *pod_mounts(
                    writable=flags.disable_paths,
                    private_users=mapped is not None,
                    own_network="net" in namespaces,
                    has_queues=self._has_queues,
                    shm_bytes=plan_shared_memory(pod.manifest),
                ),
                *cover_of(facts.shown_hierarchies),
                *memory_mounts(pod.manifest),
            ),
            network=network,
            sysctls=plan_sysctls(pod.manifest, own_ipc="ipc" in namespaces, own_network=is_contained(flags.networks)),
            has_dns_of_host=wants_host_dns(pod.manifest, flags) and not is_contained(flags.networks),
            limits=limits,
            kubernetes_log_directory=plan_log_directory(pod.manifest, kubernetes_log_directory),
            private_users=mapped,
            host_pids="pid" not in namespaces,
            mutable=flags.mutable,
            later_controllers=facts.controllers & CONTROLLERS if flags.mutable else frozenset(),
            group_parent=plan_group_parent(pod.manifest),
            deadline_seconds=plan_deadline(pod.manifest),
            tells_host=facts.tells_host,
            warnings=tuple(self._warnings),
            debug=flags.debug,
        )

    def _heed(self, planned: tuple[T, list[str]]) -> T:
        """Return what was planned, and keep the warnings that came with it."""
        result, warnings = planned
        self._warnings += warnings
        return result

    def _plan_app(
        self, runtime: RuntimeApp, app: App, image: ImageManifest, mounts: tuple[VolumeMount, ...]
    ) -> tuple[AppPlan, dict[str, Any]]:
        """Return an app and what to change of it, but for its log, its isolators, and when it is started."""
        pod, flags = self._pod, self._flags
        uid, gid, groups = self._ids(runtime, app, image, mounts)
        stopping = plan_stopping(runtime, image, plan_pod_grace(pod.manifest))
        passwd = dict(pod.lookups).get(runtime.name, AppLookups()).passwd
        variables = user_variables(app.user, uid, passwd)
        terminal = self._facts.terminal_type
        spec = self._heed(plan_app(runtime, app, flags, terminal, variables, has_queues=self._has_queues))
        hotplug = plan_hotplug(runtime, pod.manifest)
        pids = plan_pid_namespace(runtime, pod.manifest, spec, mounts, hotplug=hotplug, mutable=flags.mutable)
        texts = _texts_beside(pod.texts, mounts, flags)
        files = plan_files(self._hostname, flags, texts, has_own_hosts=has_own_hosts(pod.manifest))
        hidden = plan_hidden_files(runtime, mounts)
        protection = plan_given_protection(runtime) or plan_protection(
            flags.disable_paths, is_contained(flags.networks)
        )
        late = tuple(mount for mount in mounts if hotplug and mount.source in self._facts.missing_devices)
        return spec, {
            "uid": uid,
            "gid": gid,
            "apparmor_profile": plan_apparmor(runtime, self._facts),
            "supplementary_gids": groups,
            "environment": _with_metadata(spec.process.environment, flags),
            # Stage1 contract 9.2.
            "sysfs": SYSFS_AND_CGROUPS if self._facts.is_unified or self._mapped is not None else SYSFS,
            "volumes": tuple(mount for mount in mounts if mount not in late and mount.kind != MEMORY),
            "late_volumes": late,
            **pids,
            "is_sidecar": is_set(runtime, Annotation.SIDECAR),
            "finds_executable_late": is_set(runtime, Annotation.LATE_EXECUTABLE),
            "makes_working_directory": is_set(runtime, Annotation.MAKE_WORKING_DIRECTORY),
            "expansion": plan_expansion(runtime),
            "memory_volumes": tuple(mount for mount in mounts if mount.kind == MEMORY),
            "files": tuple(file for file in files if file.target not in hidden),
            "hidden_files": hidden,
            "protection": protection if "own_pids" in pids else with_pid_1(protection),
            "sockets": self._heed(
                plan_sockets(pod.manifest, runtime, app, in_host_network=not is_contained(flags.networks))
            ),
            "devices": None if flags.disable_paths else DEFAULT_RULES,
            "hotplug": hotplug,
            "health": plan_health(runtime, can_be_removed=flags.mutable and not self._joined),
            "stop_signal": stopping.signal,
            "stop_grace_seconds": stopping.grace_seconds,
        }

    def _ids(
        self, runtime: RuntimeApp, app: App, image: ImageManifest, mounts: Sequence[VolumeMount]
    ) -> tuple[int, int, tuple[int, ...]]:
        """Return user and groups of an app; PlanError if an id that it needs is not in the user namespace."""
        lookups = dict(self._pod.lookups).get(runtime.name, AppLookups())
        wanted = plan_image_groups(runtime)
        ids = plan_ids(runtime.name, app, image, lookups, self._mapped, is_primary=PRIMARY in wanted)
        for number in app.supplementary_gids:
            check_mapped(number, f'app "{runtime.name}": supplementary group', self._mapped)
        for volume in mounts:
            for number in (volume.uid, volume.gid):
                check_mapped(number, f'{volume.place}: owner of volume "{volume.volume}"', self._mapped)
        return *ids, plan_supplementary(runtime.name, app, ids, lookups, wanted, self._mapped)

    def _confine(
        self, spec: AppPlan, isolation: Isolation | None, runtime: RuntimeApp, app: App, image: ImageManifest
    ) -> dict[str, Any]:
        flags = self._flags
        trusted = is_set(runtime, Annotation.TRUSTED_ISOLATORS)
        origins = Origins()
        if app.isolators and not self._is_privileged(runtime):
            origins = find_origins(spec.name, app, image, flags, trusted=trusted)
        fields = self._filter(spec, DEFAULT if isolation is None else isolation.bounding, runtime, origins)
        fields |= plan_refused_error(fields["seccomp"], runtime, self._pod.manifest)
        if isolation is not None:
            limits = isolation.limits if isolation.limits != Limits() else None
            fields |= {"bounding": isolation.bounding, "oom_score_adj": isolation.oom_score_adj, "limits": limits}
        if flags.disable_capabilities:
            fields["bounding"] = None
        return fields

    def _is_privileged(self, runtime: RuntimeApp) -> bool:
        privileged = is_privileged(runtime, self._pod.manifest)
        if privileged and self._mapped is not None:
            raise PlanError(f'app "{runtime.name}": {Annotation.PRIVILEGED}: not with --private-users')
        return privileged

    def _filter(self, spec: AppPlan, bounding: int, runtime: RuntimeApp, origins: Origins) -> dict[str, Any]:
        """Return the fields about system calls of an app that has the capabilities `bounding`."""
        flags, facts = self._flags, self._facts
        if self._is_privileged(runtime):
            return {"seccomp": None, "profile": None, "guards": frozenset()}
        if flags.disable_capabilities:
            bounding = capability_mask(*NAMES)
        elif origins.capabilities is not None:
            bounding &= DEFAULT  # the rest is not the caller's gift
        kernel = parse_kernel_release(facts.kernel_release)
        profile = plan_profile(runtime, Surroundings(capabilities=bounding, machine=facts.machine, kernel=kernel))
        if profile is not None and flags.disable_seccomp and not profile.allows_everything:
            profile = None
        seccomp = spec.confinement.seccomp
        if seccomp is not None and seccomp.is_default:
            seccomp = open_by_capabilities(runtime, seccomp, bounding) if profile is None else None
        wants_vsock = is_set(runtime, Annotation.VSOCK, self._pod.manifest)
        guards = plan_guards(
            flags,
            origins,
            seccomp,
            has_profile=profile is not None,
            is_unconfined=is_unconfined(runtime),
            is_admin=bool(bounding & capability_mask("CAP_SYS_ADMIN")),
            wants_vsock=wants_vsock,
        )
        return {"seccomp": seccomp, "profile": profile, "guards": guards}

    def _bounding(self, isolations: Sequence[Isolation | None]) -> int | None:
        """Return the capabilities that PID 1 keeps; None for all."""
        # An app that is added to a mutable pod may retain any of them.
        if self._flags.disable_capabilities or self._flags.mutable or may_be_privileged(self._pod.manifest):
            return None
        # What PID 1 gives up does not come back, to it or to any app.
        bounding = DEFAULT
        for isolation in isolations:
            bounding |= DEFAULT if isolation is None else isolation.bounding
        return bounding

    def _namespaces(self, network: NetworkPlan | None) -> tuple[str, ...]:
        host_pids = plan_host_pids(self._pod.manifest, private_users=self._mapped is not None)
        namespaces = ["mnt", *(() if host_pids else ("pid",)), "uts"]
        if self._flags.ipc != "parent":
            namespaces.append("ipc")
        if is_contained(self._flags.networks) and network is None:
            namespaces.append("net")
        if self._mapped is not None:
            namespaces.append("user")
        return tuple(namespaces)


def _restartable(app: AppPlan) -> AppPlan:
    return replace(app, life=replace(app.life, starts_again=True))


def _with_fields(app: AppPlan, fields: dict[str, Any]) -> AppPlan:
    """Return an app with some fields of its values changed."""
    parts = {part: getattr(app, part) for part in app._fields if part != "name"}
    return replace(
        app,
        **{
            part: replace(value, **{name: fields[name] for name in value._fields if name in fields})
            for part, value in parts.items()
        },
    )


def _texts_beside(texts: EtcTexts, mounts: Iterable[VolumeMount], flags: RunFlags) -> EtcTexts:
    """Return the texts for /etc of an app that may have the hosts file of its networks."""
    return replace(texts, hosts=None) if any(each.source == hosts_of_pod(flags.uuid) for each in mounts) else texts


def _plan_private_users(pod: Pod, flags: RunFlags) -> IdRange | None:
    if not flags.private_users:
        return None
    mapped = parse_id_range(flags.private_users)
    if mapped is None or mapped.to_host(TTY_GID) is None:
        raise PlanError(
            f"--private-users={flags.private_users}: expected SHIFT:COUNT, SHIFT above 0, COUNT above {TTY_GID},"
            f" and every id below 4294967295"
        )
    if pod.has_unmapped_overlay:
        raise PlanError("--private-users: cannot use both overlay and user namespace (try --no-overlay)")
    return mapped


def _plan_volumes(
    manifest: PodManifest, sections: Sequence[App], images: Sequence[ImageManifest], flags: RunFlags
) -> tuple[list[tuple[VolumeMount, ...]], list[str]]:
    """Return the volumes of each app and the host's files it gets, and the warnings to show."""
    planned, warnings = plan_volumes(manifest, sections, images)
    planned = plan_idmap(manifest, planned, private_users=bool(flags.private_users))
    planned = plan_memory_volumes(manifest, planned)
    planned = [
        plan_mount_details(runtime, volumes, private_users=bool(flags.private_users))
        for runtime, volumes in zip(manifest.apps, planned)
    ]
    hidden = (plan_hidden_files(runtime, volumes) for runtime, volumes in zip(manifest.apps, planned))
    return [
        (*volumes, *(file for file in host_files(flags) if file.target not in targets))
        for volumes, targets in zip(planned, hidden)
    ], warnings


def _plan_start(
    runtime: RuntimeApp, image: ImageManifest, manifest: PodManifest, sockets: int, *, has_console: bool
) -> dict[str, Any]:
    """Return the fields that say when an app is started, is ready, and is started again."""
    notifies, number = plan_readiness(runtime, image, sockets)
    after = plan_after(runtime)
    policy = plan_restart(runtime, manifest, has_console=has_console)
    return {"notifies": notifies, "notify_fd": number, "after": after, "restart": policy}


def _with_metadata(environment: tuple[tuple[str, str], ...], flags: RunFlags) -> tuple[tuple[str, str], ...]:
    """Return an app's variables with rkt's metadata service, if that is asked for and reached by the host's network."""
    if not flags.mds_token or is_contained(flags.networks):
        return environment
    return with_metadata(environment, flags.mds_token, _HOST_LOOPBACK)


def _plan_hostname(flags: RunFlags) -> str:
    if not flags.hostname:
        return default_name(flags.uuid)
    fault = find_fault(flags.hostname)
    if fault is not None:
        raise PlanError(f'hostname "{flags.hostname}" {fault}')
    return flags.hostname
