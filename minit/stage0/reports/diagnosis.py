"""
All about one pod that helps to explain a failure, as one JSON value, with what looks like a secret hidden.

A damaged pod fails nothing here: a part that cannot be read is an object with only `error`. Pods that run, have ended,
never started or are damaged are examined alike, and so are pods of another stage1.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator, Sequence

from minit import __version__
from minit.base import jsontext
from minit.base.errors import MinitError, describe
from minit.base.utctime import utc_text
from minit.linux.mountinfo import Mount, find_mounts, read_mountinfo
from minit.manifest.names import is_ac_name
from minit.podfiles import paths
from minit.podfiles.usersdirectory import is_of_user
from minit.stage0.pods import overlay
from minit.stage0.pods.poddirectory import ENDED_STATES, Pod, PodState
from minit.stage0.pods.podstatus import (
    is_ready,
    read_app_image,
    read_created_ns,
    read_exit_code,
    read_manifest_bytes,
    read_networks,
    read_pid_to_enter,
    read_shown_pid,
    read_started_ns,
)
from minit.stage0.reports import podtraces
from minit.stage0.reports.stats import processes_behind, read_subcgroup
from minit.stage0.reports.usage import (
    APPS,
    Hierarchy,
    Usage,
    find_group,
    find_hierarchies,
    parse_table,
    read_file,
    read_usage,
)
from minit.stage0.reports.verdict import AppFacts, PodFacts, conclusions
from minit.stage0.stage1 import entrypoints

MASK = "********"

_NAME = re.compile(
    r"pass(wd|word|phrase|code)?|secret|token|api.?key|access.?key|private|credential|auth|cookie|session|salt|dsn|\bkey\b"
    r"|_key$|-key$|signature",
    re.IGNORECASE,
)
_OF_USERS_SYSTEMD = re.compile(r"/user@\d+\.service/")
_USER_IN_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_OPTION = re.compile(r"(--?[\w.-]+)=(.*)", re.DOTALL)
# Shorter secrets would be hidden in the middle of words.
_MIN_LENGTH = 6

_Json = object

Json = dict[str, object]

_MAX_MOUNTS = 500
_MAX_PROCESSES = 500
_MAX_FACT_CHARACTERS = 4096
_LIMIT_FILES = (
    *("memory.max", "cpu.max", "cpu.weight", "memory.limit_in_bytes", "cpu.cfs_quota_us", "cpu.shares"),
    *("pids.max", "cgroup.freeze", "freezer.state"),
)
_KERNEL_FILES = (
    *("/proc/loadavg", "/proc/sys/kernel/pid_max", "/proc/sys/user/max_user_namespaces"),
    *("/proc/sys/user/max_mnt_namespaces", "/proc/sys/net/ipv4/ip_forward", "/sys/kernel/security/lsm"),
)
_MEMORY_LINES = ("MemTotal", "MemAvailable", "SwapFree")


def _is_secret_name(name: str) -> bool:
    """Return whether a variable, option or annotation called `name` may have a secret."""
    return _NAME.search(name) is not None


def find_secrets(value: _Json) -> frozenset[str]:
    """Return the values in a JSON value that may be secrets: of `name` and `value` pairs, and of options in lists."""
    return frozenset(text for text in _secrets(value) if text)


def masked(value: _Json, secrets: frozenset[str]) -> _Json:
    """Return a JSON value with MASK in the place of secrets: of whole texts, and of long secrets within texts."""
    long = sorted((text for text in secrets if len(text) >= _MIN_LENGTH), key=len, reverse=True)
    return _mask(value, secrets, long)


def _secrets(value: _Json) -> Iterator[str]:
    if isinstance(value, dict):
        name, content = value.get("name"), value.get("value")
        if isinstance(name, str) and isinstance(content, str) and _is_secret_name(name):
            yield content
        for item in value.values():
            yield from _secrets(item)
    elif isinstance(value, list):
        yield from _secrets_of_words([item for item in value if isinstance(item, str)])
        for item in value:
            yield from _secrets(item)


def _secrets_of_words(words: list[str]) -> Iterator[str]:
    previous = ""
    for word in words:
        option = _OPTION.fullmatch(word)
        if option is not None and _is_secret_name(option[1]):
            yield option[2]
        elif (
            previous.startswith("-") and "=" not in previous and _is_secret_name(previous) and not word.startswith("-")
        ):
            yield word
        previous = word


def _mask(value: _Json, secrets: frozenset[str], long: list[str]) -> _Json:
    if isinstance(value, dict):
        return {name: _mask(item, secrets, long) for name, item in value.items()}
    if isinstance(value, list):
        return [_mask(item, secrets, long) for item in value]
    if not isinstance(value, str):
        return value
    if value in secrets:
        return MASK
    option = _OPTION.fullmatch(value)
    if option is not None and option[2] in secrets and _is_secret_name(option[1]):
        return f"{option[1]}={MASK}"
    for secret in long:
        value = value.replace(secret, MASK)
    return _USER_IN_URL.sub(MASK, value)


def diagnose(pod: Pod, lines: int, *, show_secrets: bool) -> Json:
    """
    Return the report of a pod, with the last `lines` of each log.

    The parts are `pod`, `conclusions` (sentences, the most important first), `apps`, `manifest`, `plan`, `events`,
    `supervisor_log`, `networks`, `mounts`, `control_groups`, `processes` and `machine`. Values that look like secrets
    are masked, unless `show_secrets`: values with certain names, and passwords in URLs. A masked value is masked
    everywhere.
    """
    manifest = _part(lambda: jsontext.parse(read_manifest_bytes(pod), "pod manifest"))
    hierarchies = _hierarchies()
    names = _app_names(manifest)
    apps = {name: _App(pod, name, lines, hierarchies) for name in names}
    report: Json = {
        "pod": _part(lambda: _pod(pod)),
        "conclusions": _part(lambda: conclusions(_facts(pod, list(apps.values())))),
        "apps": [_part(app.json) for app in apps.values()],
        "manifest": manifest,
        "plan": _part(lambda: podtraces.read_plan(pod)),
        "events": _part(lambda: podtraces.read_events(pod, lines)),
        "supervisor_log": _part(lambda: podtraces.read_supervisor_log(pod, lines)),
        "networks": _part(lambda: _networks(pod)),
        "mounts": _part(lambda: _mounts(pod)),
        "control_groups": _part(lambda: _groups(pod, names, hierarchies)),
        "processes": _part(lambda: _processes(pod, hierarchies)),
        "machine": _part(lambda: _machine(pod, hierarchies, lines)),
    }
    shown = _printable(report if show_secrets else masked(report, find_secrets(manifest)))
    assert isinstance(shown, dict)
    return shown


class _App:
    """One app in the manifest of the pod, and the traces of the app."""

    def __init__(self, pod: Pod, name: str, lines: int, hierarchies: Sequence[Hierarchy]) -> None:
        self.name = name
        self._pod = pod
        self.end = podtraces.read_end(pod, name)
        self.status = _status(pod, name)
        self.was_started = podtraces.was_started(pod, name)
        self.log = podtraces.read_log(pod, name, lines)
        subcgroup = read_subcgroup(pod)
        self._places = [] if subcgroup is None else find_group(hierarchies, f"{subcgroup}/{APPS}/{name}.service")
        self.usage = read_usage(self._places) if self._places else Usage()

    def facts(self) -> AppFacts:
        """Return the facts for conclusions."""
        end = self.end.get("end") if self.end is not None else None
        restarts = self.end.get("restarts") if self.end is not None else None
        return AppFacts(
            name=self.name,
            status=self.status,
            end=None if end is None else str(end),
            was_started=self.was_started,
            restarts=restarts if isinstance(restarts, int) else 0,
            last_line=self.log[-1].split(" ", 2)[-1] if self.log else None,
            oom_kills=self.usage.oom_kills,
            memory_limit_bytes=self.usage.memory_limit_bytes,
            refused_forks=self._refused_forks(),
            lost_output_bytes=podtraces.read_lost_output(self._pod, self.name),
        )

    def json(self) -> Json:
        """Return everything."""
        return {
            "name": self.name,
            "image": _part(lambda: read_app_image(self._pod, self.name).name),
            "status": self.status,
            "end": self.end,
            "was_started": self.was_started,
            "used": {
                field: getattr(self.usage, field) for field in Usage._fields if getattr(self.usage, field) is not None
            },
            "log": self.log,
        }

    def _refused_forks(self) -> int | None:
        texts = [read_file(directory, "pids.events") for _, directory in self._places]
        return max((parse_table(text).get("max", 0) for text in texts), default=None)


def _part(read: Callable[[], object]) -> object:
    try:
        return read()
    except (OSError, MinitError) as error:
        return {"error": describe(error)}
    except Exception as error:
        # A report with a hole is better than no report.
        return {"error": f"{type(error).__name__}: {describe(error)}"}


def _printable(value: object) -> object:
    """Return a JSON value with escapes for bytes that are no UTF-8, as in paths."""
    if isinstance(value, dict):
        return {_printable(name): _printable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _app_names(manifest: object) -> list[str]:
    """Return the names of apps in a manifest, which may be broken."""
    apps = manifest.get("apps") if isinstance(manifest, dict) else None
    names = [app.get("name") for app in apps if isinstance(app, dict)] if isinstance(apps, list) else []
    return [name for name in dict.fromkeys(names) if isinstance(name, str) and is_ac_name(name)]


def _status(pod: Pod, app: str) -> int | None:
    try:
        return read_exit_code(pod, app)
    except (OSError, MinitError):
        return None


def _is_ready(pod: Pod) -> bool:
    try:
        return is_ready(pod)
    except (OSError, MinitError):
        return False


def _facts(pod: Pod, apps: Sequence[_App]) -> PodFacts:
    kill = podtraces.read_kill(pod) if pod.state in ENDED_STATES else None
    return PodFacts(
        state=pod.state,
        failure=podtraces.read_failure(pod),
        has_pid=read_shown_pid(pod) is not None,
        is_ready=_is_ready(pod),
        panic=next(iter(podtraces.read_panic(pod, 1) or ()), None),
        kill=None if kill is None else str(kill.get("end")),
        errors=podtraces.count_errors(pod),
        ended_in_order=podtraces.has_ended_in_order(pod),
        apps=tuple(app.facts() for app in apps),
        free_share=_free_share(pod),
    )


def _free_share(pod: Pod) -> float | None:
    space = os.fstatvfs(pod.fd)
    return space.f_bavail / space.f_blocks if space.f_blocks else None


def _pod(pod: Pod) -> Json:
    fields: dict[str, Callable[[], object]] = {
        "uuid": lambda: pod.uuid,
        "state": lambda: str(pod.state),
        "path": lambda: str(pod.path),
        "created": lambda: _time(read_created_ns(pod)),
        "started": lambda: _time(read_started_ns(pod)),
        "pid": lambda: read_shown_pid(pod),
        "ready": lambda: _is_ready(pod),
        "failure": lambda: podtraces.read_failure(pod),
        "supervisor_errors": lambda: podtraces.count_errors(pod),
        "stage1": lambda: _stage1_name(pod),
        "overlay": lambda: pod.has_file(paths.POD_OVERLAY_PREPARED),
        "private_users": lambda: _first_line(pod, paths.POD_PRIVATE_USERS),
        "control_group": lambda: read_subcgroup(pod),
        **({"delegated_groups": lambda: _delegated(pod)} if is_of_user() else {}),
        "free_bytes": lambda: os.fstatvfs(pod.fd).f_bavail * os.fstatvfs(pod.fd).f_frsize,
    }
    return {name: _part(read) for name, read in fields.items()}


def _delegated(pod: Pod) -> str:
    """Return which groups the pod of a user without root has, with the controllers that are delegated, and others."""
    subcgroup = read_subcgroup(pod)
    if subcgroup is None:
        return "no control group is delegated to the user: no limits, and each app has a PID namespace"
    where = "a scope of the user's systemd" if _OF_USERS_SYSTEMD.search(subcgroup) else "groups delegated to the user"
    hierarchies = _hierarchies()
    places = find_group(hierarchies, subcgroup)
    if not places:
        return where
    # Under v2 a group has the controllers that the group around may give.
    delegated = {name for each, directory in places for name in _controllers(each, os.path.dirname(directory))}
    others = {name for each in hierarchies for name in _controllers(each, each.mount_point)} - delegated
    missing = f"; not delegated: {' '.join(sorted(others))}" if others else ""
    return f"{where}: {' '.join(sorted(delegated)) or 'no controllers'}{missing}"


def _controllers(hierarchy: Hierarchy, directory: str) -> frozenset[str]:
    """Return the controllers of a group."""
    if not hierarchy.controllers:
        return frozenset(read_file(directory, "cgroup.controllers").split())
    # Options of the mount are among the names of v1.
    return hierarchy.controllers.intersection(read_file("/proc", "cgroups").split())


def _stage1_name(pod: Pod) -> str:
    manifest = entrypoints.read_stage1_manifest(pod)
    version = manifest.label("version")
    return manifest.name if version is None else f"{manifest.name}:{version}"


def _first_line(pod: Pod, name: str) -> str | None:
    try:
        return pod.read_file(name).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None


def _time(time_ns: int | None) -> str | None:
    if time_ns is None:
        return None
    return utc_text(time_ns // 1_000_000_000)


def _networks(pod: Pod) -> Json:
    return {
        "networks": _part(lambda: [dict(network) for network in read_networks(pod)]),
        "namespace": _first_line(pod, paths.POD_NETNS),
        "configurations": sorted(os.listdir(pod.path / paths.POD_NET)) if pod.has_file(paths.POD_NET) else [],
    }


def _mounts(pod: Pod) -> Json:
    own = [mount for mount in find_mounts(str(pod.path)) if f"{mount.mount_point}/".startswith(f"{pod.path}/")]
    pid = read_shown_pid(pod) if pod.state is PodState.RUNNING else None
    inside = [] if pid is None else _part(lambda: _mount_lines(read_mountinfo(f"/proc/{pid}/mountinfo")))
    return {"host": _mount_lines(own), "pod": inside}


def _mount_lines(mounts: Sequence[Mount]) -> list[str]:
    return [
        f"{mount.mount_point} {mount.fstype} {mount.source} {mount.options} {mount.root}"
        for mount in mounts[:_MAX_MOUNTS]
    ]


def _hierarchies() -> list[Hierarchy]:
    try:
        return find_hierarchies(find_mounts("cgroup"))
    except (OSError, ValueError):
        return []


def _groups(pod: Pod, apps: Sequence[str], hierarchies: Sequence[Hierarchy]) -> Json:
    subcgroup = read_subcgroup(pod)
    if subcgroup is None:
        return {}
    found: Json = {}
    for path in (subcgroup, f"{subcgroup}/{APPS}", *(f"{subcgroup}/{APPS}/{app}.service" for app in apps)):
        limits: dict[str, str] = {}
        for hierarchy, directory in find_group(hierarchies, path):
            texts = ((name, read_file(directory, name).strip()) for name in _LIMIT_FILES)
            limits.update({os.path.join(hierarchy.mount_point, name): text for name, text in texts if text})
        found[path] = limits
    return found


def _processes(pod: Pod, hierarchies: Sequence[Hierarchy]) -> list[str]:
    """Return a line `PID STATE NAME` for each process in the pod's control groups, or else in the PID namespace."""
    subcgroup = read_subcgroup(pod)
    pids: set[int] = set()
    first = read_pid_to_enter(pod) if subcgroup is None and is_of_user() and pod.state is PodState.RUNNING else None
    if first is not None:
        pids.update((first, *processes_behind(first)))
    for _, top in [] if subcgroup is None else find_group(hierarchies, subcgroup):
        for directory, _, _ in os.walk(top):
            pids.update(int(word) for word in read_file(directory, "cgroup.procs").split() if word.isdecimal())
    return [line for pid in sorted(pids)[:_MAX_PROCESSES] if (line := _process_line(pid))]


def _process_line(pid: int) -> str:
    fields = dict(line.split(":", 1) for line in read_file(f"/proc/{pid}", "status").splitlines() if ":" in line)
    return f"{pid} {fields['State'].split()[0]} {fields['Name'].strip()}" if "State" in fields else ""


def _machine(pod: Pod, hierarchies: Sequence[Hierarchy], lines: int) -> Json:
    memory = [line for line in read_file("/proc", "meminfo").splitlines() if line.startswith(_MEMORY_LINES)]
    panic = podtraces.read_panic(pod, lines)
    return {
        **({} if panic is None else {"panic": panic}),
        "kernel": f"{os.uname().release} {os.uname().machine}",
        "minit": __version__,
        "python": platform.python_version(),
        "control_groups": _kind_of(hierarchies),
        "overlay_obstacle": _part(lambda: overlay.overlay_obstacle(pod.data)),
        "memory": [" ".join(line.split()) for line in memory],
        "files": {path: text for path in _KERNEL_FILES if (text := _fact(path))},
    }


def _kind_of(hierarchies: Sequence[Hierarchy]) -> str:
    kinds = {bool(hierarchy.controllers) for hierarchy in hierarchies}
    return {frozenset({True}): "v1", frozenset({False}): "v2", frozenset({True, False}): "v1 and v2"}.get(
        frozenset(kinds), "none"
    )


def _fact(path: str) -> str:
    directory, name = os.path.split(path)
    return read_file(directory, name).strip()[:_MAX_FACT_CHARACTERS]
