"""Facts about the machine that planning needs."""

from __future__ import annotations

from minit.base.errors import PlanError
from minit.base.idrange import HeldIds
from minit.base.processors import MINIMUM_KERNEL, parse_kernel_release
from minit.base.value import Value
from minit.linux.attributes import UNLIMITED, Limit


class HostNode(Value):
    """A device node of the host; `owner` are the user and the group."""

    path: str
    is_block: bool
    major: int
    minor: int
    mode: int
    owner: tuple[int, int]


class HostFacts(Value):
    """Facts about the machine, collected before planning."""

    effective_uid: int
    kernel_release: str
    has_cgroups: bool
    machine: str = ""
    """The architecture, as uname(2) has the name."""
    delegated_groups: bool | None = None
    """Whether a user without root has control groups to write to, delegated by root; None for root."""
    lowest_port: int = 0
    """The first port of the machine that the caller may have."""
    is_unified: bool = False
    """Whether the unified hierarchy of control groups is the only one."""
    terminal_type: str | None = None
    """The caller's TERM."""
    limits: tuple[Limit, ...] = ()
    """The resource limits of the caller."""
    hard_limits: tuple[int, ...] = (UNLIMITED,) * 16
    """The widest limit that an app can have of each resource, by the rights of the caller."""
    threads_max: int = 1 << 16
    """The most threads of the kernel."""
    tells_host: bool = False
    """Whether the caller wants to know when the pod is ready."""
    ignored_variables: tuple[str, ...] = ()
    """Environment variables that ask for an unbuilt feature."""
    has_queues: bool = True
    """Whether the kernel has POSIX message queues."""
    controllers: frozenset[str] = frozenset()
    """The controllers of control groups, looked at for isolators only."""
    capabilities: int = 0
    """A mask of the capabilities that the caller can pass on, looked at for isolators only."""
    missing_devices: frozenset[str] = frozenset()
    """Missing sources of volumes below /dev, of a pod whose devices may come and go."""
    shown_hierarchies: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The mount point and the controllers of each hierarchy in which apps see their own groups."""
    device_nodes: tuple[HostNode, ...] = ()
    """The device nodes of the host that apps can have, looked at for a pod with privileged apps only."""
    shown_devices: frozenset[str] | None = None
    """Device nodes of the host for a caller who may make none, root of a user namespace; None for a maker of nodes."""
    held_ids: HeldIds | None = None
    """The users and groups of the caller's user namespace, None for every id."""
    loaded_profiles: frozenset[str] | None = None
    """The profiles of AppArmor, looked at for an app with a profile only; None for a kernel without AppArmor."""

    @property
    def is_of_user(self) -> bool:
        """Tell whether the caller is a user without root."""
        return self.delegated_groups is not None


def check_host(facts: HostFacts) -> None:
    """Raise PlanError for a machine or a caller that cannot run pods."""
    if facts.effective_uid != 0:
        raise PlanError("a pod can only be run as root")
    if parse_kernel_release(facts.kernel_release) < MINIMUM_KERNEL:
        needed = ".".join(map(str, MINIMUM_KERNEL))
        raise PlanError(f"kernel {facts.kernel_release} is too old: Linux {needed} or newer is needed")
    if not facts.has_cgroups:
        raise PlanError("no cgroup hierarchy is mounted: mount one below /sys/fs/cgroup")
