"""Facts about the machine that planning needs."""

from __future__ import annotations

from minit.base.errors import PlanError
from minit.base.processors import MINIMUM_KERNEL, parse_kernel_release
from minit.base.value import Value


class HostNode(Value):
    """A device node of the host; `owner` are its user and its group."""

    path: str
    is_block: bool
    major: int
    minor: int
    mode: int
    owner: tuple[int, int]


class HostFacts(Value):
    """
    Facts about the machine that planning needs, collected beforehand.

    `machine` is its architecture, as uname(2) has it. `is_unified` tells that there is no hierarchy of control groups
    but the unified one. `terminal_type` is the caller's TERM. `tells_host` tells that the caller wants to know when the
    pod is ready. `ignored_variables` are environment variables that ask for something which is not built. With
    `has_queues` the kernel has POSIX message queues. `controllers` are those of control groups that there are,
    `capabilities` is a mask of those that the caller can pass on; both are looked at by the planning of isolators only.
    `missing_devices` are sources of volumes below /dev that are not there, of a pod whose devices may come and go.
    `shown_hierarchies` are those in which apps see their own groups: where each is mounted, and its controllers.
    `device_nodes` are those of the host, looked at for a pod with privileged apps only. `loaded_profiles` are those of
    AppArmor, looked at for an app that has one only; None for a kernel without.
    """

    effective_uid: int
    kernel_release: str
    has_cgroups: bool
    machine: str = ""
    is_unified: bool = False
    terminal_type: str | None = None
    tells_host: bool = False
    ignored_variables: tuple[str, ...] = ()
    has_queues: bool = True
    controllers: frozenset[str] = frozenset()
    capabilities: int = 0
    missing_devices: frozenset[str] = frozenset()
    shown_hierarchies: tuple[tuple[str, tuple[str, ...]], ...] = ()
    device_nodes: tuple[HostNode, ...] = ()
    loaded_profiles: frozenset[str] | None = None


def check_host(facts: HostFacts) -> None:
    """Raise PlanError for a machine or a caller that cannot run pods."""
    if facts.effective_uid != 0:
        raise PlanError("a pod can only be run as root")
    if parse_kernel_release(facts.kernel_release) < MINIMUM_KERNEL:
        needed = ".".join(map(str, MINIMUM_KERNEL))
        raise PlanError(f"kernel {facts.kernel_release} is too old: Linux {needed} or newer is needed")
    if not facts.has_cgroups:
        raise PlanError("no cgroup hierarchy is mounted: mount one below /sys/fs/cgroup")
