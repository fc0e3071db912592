"""All decisions about a pod: namespaces, host name, apps."""

from __future__ import annotations

from collections.abc import Sequence

from minit.base.errors import PlanError
from minit.base.idrange import IdRange
from minit.base.value import Value, replace
from minit.manifest.annotations import Annotation
from minit.manifest.capabilities import DEFAULT
from minit.manifest.limits import CONTROLLERS, Limits
from minit.plan.appplan import AppPlan, plan_app
from minit.plan.confinement import plan_pod_bounding
from minit.plan.connection import addresses_of, connect, expand_texts
from minit.plan.groupparent import plan_group_parent
from minit.plan.inputs.hostfacts import HostFacts, check_host
from minit.plan.inputs.runflags import RunFlags
from minit.plan.life.stopping import plan_deadline
from minit.plan.lifeplan import check_order
from minit.plan.loadedpod import AppInput, Pod, PodInput
from minit.plan.networks.kernelsettings import Sysctl, plan_sysctls
from minit.plan.networks.networkplan import Connection, NetworkPlan
from minit.plan.networks.podnetwork import (
    is_contained,
    plan_hostname,
    plan_named_pod,
    plan_pod_network,
    wants_host_dns,
    wants_names,
)
from minit.plan.process import plan_host_pids
from minit.plan.refusals import refuse_shared_files, refuse_unbuilt
from minit.plan.resources import plan_isolations
from minit.plan.rights.isolators import Isolation
from minit.plan.rights.users import plan_private_users
from minit.plan.root.groupmounts import cover_of
from minit.plan.root.mountdetails import memory_mounts, plan_shared_memory
from minit.plan.root.mountoperations import TTY_GID, MountOp, pod_mounts
from minit.plan.root.volumes import VolumeMount
from minit.plan.storage import plan_pod_volumes
from minit.plan.streams import STREAM_CONSOLE, plan_kubernetes_directory, plan_log_directory


class PodTraits(Value):
    """The part of a plan that PID 1 needs for as long as the pod runs, beside the apps."""

    uuid: str
    has_private_users: bool = False
    host_pids: bool = False
    mutable: bool = False
    deadline_seconds: float | None = None
    tells_host: bool = False
    debug: bool = False


class PodPlan(Value):
    """Everything decided about a pod before any effect."""

    uuid: str
    hostname: str
    namespaces: tuple[str, ...]
    """The namespaces(7) that are made with PID 1, by the names under /proc/PID/ns."""
    apps: tuple[AppPlan, ...]
    bounding: int | None
    """A mask of the capabilities that PID 1 keeps, None for all."""
    mounts: tuple[MountOp, ...] = ()
    network: NetworkPlan | None = None
    """The networks to join, in a namespace that the network helper makes."""
    sysctls: tuple[Sysctl, ...] = ()
    """Settings of the pod's own namespaces."""
    has_dns_of_host: bool = False
    """Whether the pod is in the host's network and resolves names as the host does."""
    limits: Limits | None = None
    """The limits of all apps together, None without limits."""
    kubernetes_log_directory: str | None = None
    """The directory of the host for log files of the log mode k8s-plain, and for logs with a path."""
    private_users: IdRange | None = None
    """The ids of the user namespace, None without a user namespace."""
    keeps_saved_user: bool = False
    """Whether PID 1 of a user namespace of the pod's keeps the caller's user as its saved one."""
    host_pids: bool = False
    """Whether the pod has no PID namespace, so that PID 1 has any number."""
    mutable: bool = False
    """Whether the pod lives until a stop, independent of the apps, and may get more apps."""
    later_controllers: frozenset[str] = frozenset()
    """The controllers of control groups that later apps may need."""
    group_parent: str | None = None
    """The control group around the apps' groups, None for the launcher's own group."""
    deadline_seconds: float | None = None
    """The age at which the pod is stopped, None for never."""
    tells_host: bool = False
    """Whether the caller is told when the pod is ready."""
    warnings: tuple[str, ...] = ()
    debug: bool = False

    @property
    def traits(self) -> PodTraits:
        """The part for as long as the pod runs."""
        return PodTraits(
            uuid=self.uuid,
            has_private_users=self.private_users is not None,
            host_pids=self.host_pids,
            mutable=self.mutable,
            deadline_seconds=self.deadline_seconds,
            tells_host=self.tells_host,
            debug=self.debug,
        )

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
        """The controllers of control groups for the limits of the pod, the apps and later apps."""
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
    Return the plan of a pod with one app, which is added to the running apps; PlanError as for a whole pod.

    `connection` is the offer of the pod's networks, None without networks. Only the app in the plan counts: the
    networks, the common limits and the controllers for later apps exist already.
    """
    plan = _plan(pod, flags, facts, joined=True)
    apps = plan.apps if connection is None else connect(plan.apps, connection, flags.mds_token)
    apps = expand_texts(apps, addresses_of(flags.uuid, connection))
    return replace(plan, apps=apps, limits=None, later_controllers=frozenset())


def plan_machine(pod: Pod, flags: RunFlags, facts: HostFacts) -> PodPlan:
    """
    Return the plan of the pod of a machine; PlanError as for any pod.

    All but the mounts belongs to the machine, and somebody may stop an app and start the app again.
    """
    plan = plan_pod(pod, flags, facts)
    if plan.group_parent is not None:
        raise PlanError(f"annotation {Annotation.CGROUP_PARENT}: a machine has no group around it")
    if plan.host_pids:
        raise PlanError(f"annotation {Annotation.PID_NAMESPACE}: the processes of a machine are its own")
    apps = expand_texts(plan.apps, addresses_of(flags.uuid, None))
    return replace(plan, namespaces=("mnt",), apps=tuple(_restartable(app) for app in apps))


def plan_pod(pod: Pod, flags: RunFlags, facts: HostFacts) -> PodPlan:
    """Return the plan of a pod; PlanError for wishes that this machine or minit cannot meet."""
    refuse_shared_files(pod.manifest)
    return _plan(pod, flags, facts, joined=False)


def _plan(loaded: Pod, flags: RunFlags, facts: HostFacts, *, joined: bool) -> PodPlan:
    """Return the plan of a pod; a running pod has `joined` the networks."""
    check_host(facts)
    refuse_unbuilt(loaded.manifest, flags)
    mapped = plan_private_users(flags.private_users, has_unmapped_overlay=loaded.has_unmapped_overlay)
    pod = PodInput(loaded=loaded, flags=flags, facts=facts, mapped=mapped, joined=joined)
    manifest, hostname = pod.manifest, plan_hostname(flags)
    network = _plan_network(pod, hostname)
    volumes, warnings = plan_pod_volumes(pod)
    limits, isolations, notes = plan_isolations(loaded, pod.sections, facts)
    kubernetes_directory, more = plan_kubernetes_directory(manifest)
    in_kubernetes = kubernetes_directory is not None and not flags.interactive
    apps, of_apps = _plan_apps(pod, volumes, isolations, in_kubernetes=in_kubernetes)
    namespaces = _plan_namespaces(pod, network)
    return PodPlan(
        uuid=flags.uuid,
        hostname=hostname,
        namespaces=namespaces,
        apps=apps,
        bounding=plan_pod_bounding(pod, [DEFAULT if each is None else each.bounding for each in isolations]),
        mounts=_plan_mounts(pod, own_network="net" in namespaces),
        network=network,
        sysctls=plan_sysctls(manifest, own_ipc="ipc" in namespaces, own_network=is_contained(flags.networks)),
        has_dns_of_host=wants_host_dns(manifest, flags) and not is_contained(flags.networks),
        limits=limits,
        kubernetes_log_directory=plan_log_directory(manifest, kubernetes_directory),
        private_users=mapped,
        # The kernel lets a user without root move only processes of that user to groups of v1, cgroups(7).
        keeps_saved_user=mapped is not None and facts.held_ids is not None,
        host_pids="pid" not in namespaces,
        mutable=flags.mutable,
        later_controllers=facts.controllers & CONTROLLERS if flags.mutable else frozenset(),
        group_parent=plan_group_parent(manifest),
        deadline_seconds=plan_deadline(manifest),
        tells_host=facts.tells_host,
        warnings=(*_warn_of_groups(facts, joined=joined), *_warn_of_ignored(facts), *warnings, *notes, *more, *of_apps),
        debug=flags.debug,
    )


def _plan_network(pod: PodInput, hostname: str) -> NetworkPlan | None:
    """Return the networks that a pod joins, None without any, or if the pod has `joined` already."""
    network = None if pod.joined else plan_pod_network(pod.loaded, pod.flags, pod.sections, pod.facts.lowest_port)
    # First, so that a bad annotation is refused in every pod.
    if not wants_names(pod.manifest, pod.flags) or network is None:
        return network
    return replace(network, named=plan_named_pod(pod.loaded, pod.flags.uuid, hostname))


def _plan_apps(
    pod: PodInput,
    volumes: Sequence[tuple[VolumeMount, ...]],
    isolations: Sequence[Isolation | None],
    *,
    in_kubernetes: bool,
) -> tuple[tuple[AppPlan, ...], list[str]]:
    """Return the plans of the apps, in the manifest's order, and the warnings to show."""
    apps = []
    warnings: list[str] = []
    each = zip(pod.manifest.apps, pod.sections, pod.images, volumes, isolations)
    for runtime, app, image, mounts, isolation in each:
        given = AppInput(pod=pod, runtime=runtime, app=app, image=image, volumes=mounts)
        plan, notes = plan_app(given, isolation, in_kubernetes=in_kubernetes)
        apps.append(plan)
        warnings += notes
    if not pod.flags.mutable:
        check_order({app.name: app.life for app in apps})
    return tuple(apps), warnings


def _plan_namespaces(pod: PodInput, network: NetworkPlan | None) -> tuple[str, ...]:
    is_of_user = pod.facts.is_of_user
    host_pids = plan_host_pids(pod.manifest, private_users=pod.mapped is not None, is_of_user=is_of_user)
    namespaces = ["mnt", *(() if host_pids else ("pid",)), "uts"]
    if pod.flags.ipc != "parent":
        namespaces.append("ipc")
    elif is_of_user:
        raise PlanError("--ipc=parent needs root: a user may not mount the message queues of the host")
    if is_contained(pod.flags.networks) and network is None:
        namespaces.append("net")
    if pod.mapped is not None:
        namespaces.append("user")
    return tuple(namespaces)


def _plan_mounts(pod: PodInput, *, own_network: bool) -> tuple[MountOp, ...]:
    """Return the mounts of the stage1 root."""
    mounts = pod_mounts(
        writable=pod.flags.disable_paths,
        private_users=pod.mapped is not None,
        own_network=own_network,
        has_queues=pod.has_queues,
        shm_bytes=plan_shared_memory(pod.manifest),
        shown_devices=pod.facts.shown_devices,
        has_tty_group=pod.held is None or pod.held.find_lack(None, TTY_GID) is None,
    )
    return (*mounts, *cover_of(pod.facts.shown_hierarchies), *memory_mounts(pod.manifest))


def _warn_of_groups(facts: HostFacts, *, joined: bool) -> list[str]:
    if facts.delegated_groups is not False or joined:
        return []
    return [
        "warning: no control group is delegated to you: no limits and no pause, and each app has a PID namespace"
        " (see docs/rootless.md)"
    ]


def _warn_of_ignored(facts: HostFacts) -> list[str]:
    return [f"warning: ignoring {name}: not supported yet" for name in facts.ignored_variables]


def _restartable(app: AppPlan) -> AppPlan:
    return replace(app, life=replace(app.life, starts_again=True))
