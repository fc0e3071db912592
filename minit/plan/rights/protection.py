"""
The hidden and the read-only paths of an app's /proc and /sys.

Some files of the kernel there tell about the whole machine, some change the machine, and uid 0 of a pod can use such
files as uid 0 of the host can. A caller may give other paths of the app's root in place of minit's.
"""

from __future__ import annotations

import posixpath

from minit.base.value import Value, replace
from minit.manifest.annotations import Annotation
from minit.manifest.pod import RuntimeApp
from minit.manifest.reader import Node, read_json
from minit.plan.root.mountoperations import PROC

# stage1 contract 9.3; rkt leaves the last two directories alone.
_READ_ONLY = (
    *("/proc/bus", "/proc/sysrq-trigger"),
    *("/sys/block", "/sys/bus", "/sys/class", "/sys/dev", "/sys/devices", "/sys/kernel"),
    *("/proc/fs", "/proc/irq", "/proc/mtrr"),
)
# systemd-nspawn, rkt's container, makes the whole of it read-only, not just the three files that rkt names.
_PARAMETERS = "/proc/sys"
# In these, since Linux 5.12, another network namespace than the machine's first has only own entries. All else
# stays read-only, as an entry may be there in every namespace and yet be the machine's: netfilter/nf_hooks_lwtunnel.
_NETWORK_PARAMETERS = (
    *("/proc/sys/net/core/somaxconn", "/proc/sys/net/ipv4", "/proc/sys/net/ipv6"),
    *("/proc/sys/net/mptcp", "/proc/sys/net/sctp", "/proc/sys/net/unix"),
)
_MASKED = (
    *("/sys/firmware", "/sys/fs", "/sys/hypervisor", "/sys/module", "/sys/power"),
    *("/proc/config.gz", "/proc/kallsyms", "/proc/sched_debug", "/proc/kcore", "/proc/kmem", "/proc/mem"),
    # Not in rkt's list: more files of the whole machine (runc and crun hide them by default).
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/keys", "/proc/latency_stats", "/proc/scsi"),
    *("/proc/timer_list", "/proc/timer_stats"),
    # Nor in anybody's: uid 0 may read them without any capability, or write to them.
    *("/proc/allocinfo", "/proc/dynamic_debug", "/proc/key-users", "/proc/kpagecgroup", "/proc/kpagecount"),
    *("/proc/kpageflags", "/proc/lock_stat", "/proc/pagetypeinfo", "/proc/slabinfo", "/proc/vmallocinfo"),
)
# Root of an app could have PID 1 killed first when memory is short: oom_score_adj, under several names.
_PID_1 = "/proc/1"

_KEY_MASKED, _KEY_READ_ONLY = "masked", "readOnly"
_MOST = 512
# Each start of an app that is PID 1 mounts a new /proc; a mount over /proc would be in the way.
_REFUSED = ("/", PROC.target)


class Protection(Value):
    """Paths of an app's root that are changed after every mount; missing paths are ignored."""

    masked: tuple[str, ...] = ()
    """Replaced by empty files or directories that nobody may open."""
    read_only: tuple[str, ...] = ()
    """Read-only with everything below, but for `writable`."""
    writable: tuple[str, ...] = ()
    is_exact: bool = False
    """Whether the caller gave the paths, which are then changed even where something is mounted."""

    def below(self, path: str) -> Protection:
        """Return the part below a directory."""

        def of(paths: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(each for each in paths if each.startswith(f"{path}/"))

        return replace(self, masked=of(self.masked), read_only=of(self.read_only), writable=of(self.writable))

    def describe(self) -> list[str]:
        """Return the paths as lines for --debug."""
        parts = (("masked", self.masked), ("read-only", self.read_only), ("writable", self.writable))
        lines = [f"{name} {' '.join(paths)}" for name, paths in parts if paths]
        return [*lines, "no other paths protected"] if self.is_exact else lines


def plan_protection(disabled: bool, own_network: bool) -> Protection:
    """Return what is protected in every app of a pod; `disabled` is --disable-paths."""
    if disabled:
        return Protection()
    writable = _NETWORK_PARAMETERS if own_network else ()
    return Protection(masked=_MASKED, read_only=(*_READ_ONLY, _PARAMETERS), writable=writable)


def with_pid_1(protection: Protection) -> Protection:
    """Return the protection with the files of PID 1, for an app that sees PID 1; no protection stays none."""
    is_disabled = protection == Protection()
    return protection if is_disabled else replace(protection, read_only=(*protection.read_only, _PID_1))


def plan_given_protection(runtime: RuntimeApp) -> Protection | None:
    """Return the paths of an app's annotation, None without an annotation; ManifestError for bad paths."""
    text = runtime.annotation(Annotation.PROTECTED_PATHS)
    if text is None:
        return None
    where = f'app "{runtime.name}": annotation {Annotation.PROTECTED_PATHS}'
    root = read_json(text.encode(errors="surrogateescape"), where)
    given = root.raw()
    if not isinstance(given, dict) or not set(given) <= {_KEY_MASKED, _KEY_READ_ONLY}:
        raise root.error(f"an object with {_KEY_MASKED}, {_KEY_READ_ONLY} or both")
    return Protection(masked=_read_paths(root[_KEY_MASKED]), read_only=_read_paths(root[_KEY_READ_ONLY]), is_exact=True)


def _read_paths(node: Node) -> tuple[str, ...]:
    paths = node.each(lambda each: posixpath.normpath(each.matching(_is_path, "an absolute path below /")))
    if len(paths) > _MOST:
        raise node.error(f"at most {_MOST} paths", str(len(paths)))
    return tuple(dict.fromkeys(paths))


def _is_path(path: str) -> bool:
    # normpath keeps two slashes at the beginning.
    is_plain = path.startswith("/") and not path.startswith("//") and ".." not in path.split("/")
    return is_plain and posixpath.normpath(path) not in _REFUSED
