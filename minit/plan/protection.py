"""
Deciding which paths of an app's /proc and /sys are hidden or read-only.

The kernel's files there are not all of one pod: some tell about the whole machine, some change it, and to uid 0 they
are as open in a pod as on the host.
"""

from __future__ import annotations

from minit.value import Value

# stage1 contract 9.3; rkt leaves the last two directories alone.
_READ_ONLY = (
    *("/proc/bus", "/proc/sysrq-trigger"),
    *("/sys/block", "/sys/bus", "/sys/class", "/sys/dev", "/sys/devices", "/sys/kernel"),
    *("/proc/fs", "/proc/irq"),
)
# systemd-nspawn, rkt's container, makes the whole of it read-only, not just the three files that rkt names.
_PARAMETERS = "/proc/sys"
_NETWORK_PARAMETERS = "/proc/sys/net"
_MASKED = (
    *("/sys/firmware", "/sys/fs", "/sys/hypervisor", "/sys/module", "/sys/power"),
    *("/proc/config.gz", "/proc/kallsyms", "/proc/sched_debug", "/proc/kcore", "/proc/kmem", "/proc/mem"),
    # Not in rkt's list: these too are the whole machine's (runc and crun hide them by default).
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/keys", "/proc/latency_stats", "/proc/scsi"),
    *("/proc/timer_list", "/proc/timer_stats"),
)


class Protection(Value):
    """
    Paths of an app's root that are treated once everything else is mounted; missing ones are ignored.

    `masked` are replaced by empty files or directories that nobody may open; `read_only` can be read with all below
    them, except that the `writable` ones stay as they are.
    """

    masked: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()

    def describe(self) -> list[str]:
        """Return the paths as lines for --debug."""
        parts = (("masked", self.masked), ("read-only", self.read_only), ("writable", self.writable))
        return [f"{name} {' '.join(paths)}" for name, paths in parts if paths]


def plan_protection(disabled: bool, own_network: bool) -> Protection:
    """Return what is protected in every app of a pod; `disabled` is --disable-paths."""
    if disabled:
        return Protection()
    # Parameters of a network namespace are the pod's own.
    writable = (_NETWORK_PARAMETERS,) if own_network else ()
    return Protection(masked=_MASKED, read_only=(*_READ_ONLY, _PARAMETERS), writable=writable)
