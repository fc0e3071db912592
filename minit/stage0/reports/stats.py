"""
The resource use of a running pod and its apps at one point of time: control groups and network interfaces.

proc(5) has the counters of interfaces, in a file of the pod's network namespace.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from minit.base.errors import MinitError, PodError
from minit.base.value import Value, replace
from minit.linux.mountinfo import find_mounts
from minit.linux.pidnamespaces import children_of, members_of
from minit.podfiles import paths
from minit.podfiles.usersdirectory import is_of_user
from minit.stage0.pods.poddirectory import Pod, PodState
from minit.stage0.pods.podstatus import read_pid_to_enter, read_pod_manifest
from minit.stage0.reports.podtraces import count_restarts, read_end
from minit.stage0.reports.usage import (
    APPS,
    Hierarchy,
    Usage,
    find_group,
    find_hierarchies,
    read_file,
    read_usage,
    read_usage_of_processes,
)

# The command line of the first process of an app's PID namespace, before the name.
_INIT = "init: "
_HEADING_LINES = 2
_COUNTERS = ("bytes", "packets", "errors", "dropped")
# In each direction; four more follow.
_ALL_COUNTERS = 8


class InterfaceUsage(Value):
    """
    The counters of one interface, in the pod's view: rx is received, tx is sent.

    Packets that a network card missed count as dropped, too.
    """

    name: str
    rx_bytes: int
    rx_packets: int
    rx_errors: int
    rx_dropped: int
    tx_bytes: int
    tx_packets: int
    tx_errors: int
    tx_dropped: int


class PodInterfaces:
    """The interfaces of the pod with the process `pid`, to be closed; OSError if the process is gone."""

    def __init__(self, pid: int) -> None:
        # An open file belongs to the namespace, also after the process. Unbuffered reads ask the kernel anew.
        self._file = open(f"/proc/{pid}/net/dev", "rb", buffering=0)

    def close(self) -> None:
        """Let go of the pod's network."""
        self._file.close()

    def read(self) -> tuple[InterfaceUsage, ...]:
        """Return the counters of all interfaces but `lo`, by name."""
        self._file.seek(0)
        found = []
        for line in self._file.readall().decode().splitlines()[_HEADING_LINES:]:
            name, _, numbers = line.partition(":")
            if name.strip() != "lo":
                found.append(_usage(name.strip(), [int(number) for number in numbers.split()]))
        return tuple(sorted(found, key=lambda usage: usage.name))


def has_own_network(pid: int) -> bool:
    """Return whether a process is in another network namespace than the caller; OSError if the process is gone."""
    return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")


def _usage(name: str, numbers: list[int]) -> InterfaceUsage:
    received = zip([f"rx_{counter}" for counter in _COUNTERS], numbers)
    sent = zip([f"tx_{counter}" for counter in _COUNTERS], numbers[_ALL_COUNTERS:])
    return InterfaceUsage(name=name, **dict(received), **dict(sent))


class AppSample(Value):
    """The resource use of one app, and the number of restarts."""

    name: str
    usage: Usage
    restarts: int = 0


class PodSample(Value):
    """
    The use of a pod at a point of time; `time_ns` since 1970, `clock_ns` of the monotonic clock.

    `usage` counts the whole pod, supervisor included; `interfaces` are None for a pod in the host's network, or in an
    unreadable network.
    """

    uuid: str
    time_ns: int
    clock_ns: int
    usage: Usage
    apps: tuple[AppSample, ...]
    interfaces: tuple[InterfaceUsage, ...] | None


class PodMeter:
    """Samples of one running pod, again and again; a context manager. The pod stays the caller's."""

    def __init__(self, pod: Pod, apps: Sequence[str] = ()) -> None:
        """Choose the apps, all by default; PodError if the pod does not run or has no such app."""
        if pod.state is not PodState.RUNNING:
            raise PodError(f'pod "{pod.uuid}" is not running: its state is "{pod.state}"')
        self.pod = pod
        self.apps = _chosen_apps(pod, apps)
        self._interfaces: PodInterfaces | None = None

    def __enter__(self) -> PodMeter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the pod's network."""
        if self._interfaces is not None:
            self._interfaces.close()
            self._interfaces = None

    def read(self) -> PodSample | None:
        """Return the use up to now, None once the pod has ended; PodError if the pod's groups are not found."""
        if not self.pod.refresh() or self.pod.state is not PodState.RUNNING:
            return None
        subcgroup = read_subcgroup(self.pod)
        if subcgroup is None and is_of_user():
            usage, of_apps = _usage_of_namespaces(self.pod)
            return self._sample(usage, lambda app: of_apps.get(app, Usage()))
        hierarchies = find_hierarchies(find_mounts("cgroup"))
        whole = [] if subcgroup is None else find_group(hierarchies, subcgroup)
        if subcgroup is None or not whole:
            if not self.pod.refresh() or self.pod.state is not PodState.RUNNING:
                return None
            raise PodError(f'pod "{self.pod.uuid}": its control groups are not there (yet)')
        path = subcgroup
        return self._sample(read_usage(whole), lambda app: _app_usage(hierarchies, path, app))

    def _sample(self, usage: Usage, usage_of: Callable[[str], Usage]) -> PodSample | None:
        sample = PodSample(
            uuid=self.pod.uuid,
            time_ns=time.time_ns(),
            clock_ns=time.monotonic_ns(),
            usage=usage,
            apps=tuple(
                AppSample(
                    name=app,
                    usage=usage_of(app),
                    restarts=count_restarts(self.pod, app, read_end(self.pod, app) or {}),
                )
                for app in self.apps
            ),
            interfaces=self._read_interfaces(),
        )
        # The groups of a pod that ended meanwhile may be removed half-way.
        return sample if self.pod.refresh() and self.pod.state is PodState.RUNNING else None

    def _read_interfaces(self) -> tuple[InterfaceUsage, ...] | None:
        try:
            if self._interfaces is None:
                pid = read_pid_to_enter(self.pod)
                if pid is None or not has_own_network(pid):
                    return None
                self._interfaces = PodInterfaces(pid)
            return self._interfaces.read()
        except (OSError, MinitError):
            return None


def read_subcgroup(pod: Pod) -> str | None:
    """Return the path of the pod's control groups below the mount points of hierarchies, None for an unknown path."""
    try:
        path = pod.read_file(paths.POD_SUBCGROUP).decode("utf-8").strip().strip("/")
    except (OSError, UnicodeDecodeError):
        return None
    return path if path and ".." not in path.split("/") and "\0" not in path else None


def _chosen_apps(pod: Pod, wanted: Sequence[str]) -> tuple[str, ...]:
    names = [app.name for app in read_pod_manifest(pod).apps]
    for name in wanted:
        if name not in names:
            raise PodError(f'no app "{name}" in pod "{pod.uuid}": it has {", ".join(names) or "none"}')
    return tuple(name for name in names if not wanted or name in wanted)


def _app_usage(hierarchies: Sequence[Hierarchy], subcgroup: str, app: str) -> Usage:
    around = os.path.join(subcgroup, APPS)
    usage = read_usage(find_group(hierarchies, os.path.join(around, f"{app}.service")))
    # The limit of the group around is the limit of each app, too.
    outer = read_usage(find_group(hierarchies, around))
    return replace(
        usage,
        cpu_limit_millicores=_smaller(usage.cpu_limit_millicores, outer.cpu_limit_millicores),
        memory_limit_bytes=_smaller(usage.memory_limit_bytes, outer.memory_limit_bytes),
        processes_limit=_smaller(usage.processes_limit, outer.processes_limit),
    )


def _usage_of_namespaces(pod: Pod) -> tuple[Usage, dict[str, Usage]]:
    """Return the use of a pod without control groups, and of its apps, each of which has a PID namespace."""
    first = read_pid_to_enter(pod)
    if first is None:
        return Usage(), {}
    of_apps = {}
    for init in children_of(first):
        words = read_file(f"/proc/{init}", "cmdline").partition("\0")[0].strip()
        if words.startswith(_INIT):
            of_apps[words.removeprefix(_INIT)] = read_usage_of_processes(processes_behind(init))
    return read_usage_of_processes((first, *processes_behind(first))), of_apps


def processes_behind(init: int) -> list[int]:
    """Return the processes of the PID namespace with this first process, but for that process."""
    try:
        return members_of(init, os.stat(f"/proc/{init}/ns/pid").st_ino)
    except (FileNotFoundError, ProcessLookupError):
        return []


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)
