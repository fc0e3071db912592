"""
The use of a control group, by the accounting files of v1 and v2, and the time that its processes wait for resources.

The kernel's documents are admin-guide/cgroup-v1, admin-guide/cgroup-v2.rst and accounting/psi.rst. The groups of a pod
of any stage1 are found if `subcgroup` has the path: the groups of apps have the names that rkt's own tools look for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from minit.base.value import Value
from minit.linux.mountinfo import Mount
from minit.linux.pidnamespaces import read_stat

# The place of the apps' groups in the pod's group, in rkt's layout.
APPS = "system.slice"

_MICROSECOND_NS = 1000
_MILLICORES = 1000
# In v1 "no limit" is the largest multiple of a page in a signed 64-bit number.
_UNLIMITED_BYTES = 1 << 62
_MAX_FILE_BYTES = 1 << 20
_KIB = 1024
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
# Of proc_pid_stat(5), counted behind the name: the process's own, and that of children that it has waited for.
_OF_PROCESSES = (
    ("page_faults", (10 - 3, 11 - 3), 1),
    ("major_page_faults", (12 - 3, 13 - 3), 1),
    ("cpu_user_ns", (14 - 3, 16 - 3), _TICK_NS),
    ("cpu_system_ns", (15 - 3, 17 - 3), _TICK_NS),
)
_OF_STATUS = {"memory_bytes": "VmRSS", "memory_anonymous_bytes": "RssAnon", "swap_bytes": "VmSwap"}


class Hierarchy(Value):
    """A mounted hierarchy of control groups; v2 has no `controllers` here."""

    mount_point: str
    controllers: frozenset[str] = frozenset()


class Usage(Value):
    """
    The use of a group's processes, so far and now; None for a use that the machine does not count.

    `memory_working_set_bytes` is the memory without the part of the file cache that can be given up first,
    `memory_anonymous_bytes` the memory of no file. Without a limit of swap `swap_limit_bytes` is None.
    """

    cpu_ns: int | None = None
    cpu_user_ns: int | None = None
    cpu_system_ns: int | None = None
    cpu_throttled_ns: int | None = None
    cpu_limit_millicores: int | None = None
    memory_bytes: int | None = None
    memory_working_set_bytes: int | None = None
    memory_anonymous_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    page_faults: int | None = None
    major_page_faults: int | None = None
    swap_bytes: int | None = None
    swap_limit_bytes: int | None = None
    processes: int | None = None
    processes_limit: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    reads: int | None = None
    writes: int | None = None
    oom_kills: int | None = None


def find_hierarchies(mounts: Iterable[Mount]) -> list[Hierarchy]:
    """Return the hierarchies of control groups among `mounts`, each once."""
    found: dict[frozenset[str], Hierarchy] = {}
    for mount in mounts:
        if mount.fstype not in ("cgroup", "cgroup2"):
            continue
        names = frozenset(mount.super_options.split(",")) if mount.fstype == "cgroup" else frozenset()
        found.setdefault(names, Hierarchy(mount_point=mount.mount_point, controllers=names))
    return list(found.values())


def find_group(hierarchies: Iterable[Hierarchy], path: str) -> list[tuple[Hierarchy, str]]:
    """Return the directories of a group in all hierarchies that have the group; `path` is below the mount points."""
    places = ((hierarchy, os.path.join(hierarchy.mount_point, path)) for hierarchy in hierarchies)
    return [(hierarchy, directory) for hierarchy, directory in places if os.path.isdir(directory)]


def read_usage(places: Sequence[tuple[Hierarchy, str]]) -> Usage:
    """Return the use of a group, by the directories; the use of a removed group is not known."""
    fields: dict[str, int | None] = {}
    for hierarchy, directory in places:
        # A hybrid machine counts time in both, and v2 without controllers counts hardly more than time.
        found = _read_v1(hierarchy, directory) if hierarchy.controllers else _read_v2(directory)
        for name, value in found.items():
            if value is not None and (fields.get(name) is None or hierarchy.controllers):
                fields[name] = value
    return Usage(**fields)


def read_usage_of_processes(pids: Iterable[int]) -> Usage:
    """
    Return what living processes use together, by proc(5), where there are no control groups.

    The time of an ended process counts while the parent lives, if the parent has waited for the process. Memory shared
    by processes counts once for each.
    """
    sums: dict[str, int] = {}

    def add(name: str, value: int) -> None:
        sums[name] = sums.get(name, 0) + value

    for pid in pids:
        try:
            fields = read_stat(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
        for name, (own, waited), unit in _OF_PROCESSES:
            add(name, (int(fields[own]) + int(fields[waited])) * unit)
        lines = dict(line.partition(":")[::2] for line in read_file(f"/proc/{pid}", "status").splitlines())
        for name, key in _OF_STATUS.items():
            # A process of the kernel, or a dead one, has no memory.
            add(name, int(lines.get(key, "0").split()[0]) * _KIB)
        add("processes", int(lines.get("Threads", "1")))
    user, system = sums.get("cpu_user_ns", 0), sums.get("cpu_system_ns", 0)
    # What is resident has no part in the cache of files that can be given up.
    return Usage(cpu_ns=user + system, memory_working_set_bytes=sums.get("memory_bytes"), **sums)


def read_file(directory: str, name: str) -> str:
    """Return a file of a control group, empty if the group has none."""
    try:
        with open(os.path.join(directory, name), encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_FILE_BYTES)
    except OSError:  # ENODEV if the group was removed meanwhile
        return ""


def _read_v2(directory: str) -> dict[str, int | None]:
    cpu = parse_table(read_file(directory, "cpu.stat"))
    memory = _number(read_file(directory, "memory.current"))
    memory_stat = parse_table(read_file(directory, "memory.stat"))
    io = parse_io(read_file(directory, "io.stat"))
    return {
        "cpu_ns": _times(cpu.get("usage_usec"), _MICROSECOND_NS),
        "cpu_user_ns": _times(cpu.get("user_usec"), _MICROSECOND_NS),
        "cpu_system_ns": _times(cpu.get("system_usec"), _MICROSECOND_NS),
        "cpu_throttled_ns": _times(cpu.get("throttled_usec"), _MICROSECOND_NS),
        "cpu_limit_millicores": _parse_cpu_limit(read_file(directory, "cpu.max")),
        "memory_bytes": memory,
        "memory_working_set_bytes": _working_set(memory, memory_stat.get("inactive_file")),
        "memory_anonymous_bytes": memory_stat.get("anon"),
        "memory_peak_bytes": _number(read_file(directory, "memory.peak")),
        "memory_limit_bytes": _number(read_file(directory, "memory.max")),
        "page_faults": memory_stat.get("pgfault"),
        "major_page_faults": memory_stat.get("pgmajfault"),
        "swap_bytes": _number(read_file(directory, "memory.swap.current")),
        "swap_limit_bytes": _number(read_file(directory, "memory.swap.max")),
        "processes": _number(read_file(directory, "pids.current")),
        "processes_limit": _number(read_file(directory, "pids.max")),
        "read_bytes": io.get("rbytes"),
        "written_bytes": io.get("wbytes"),
        "reads": io.get("rios"),
        "writes": io.get("wios"),
        "oom_kills": parse_table(read_file(directory, "memory.events")).get("oom_kill"),
    }


def _read_v1(hierarchy: Hierarchy, directory: str) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for controller, read in _V1_READERS.items():
        if controller in hierarchy.controllers:
            found.update(read(directory))
    return found


def _read_cpuacct(directory: str) -> dict[str, int | None]:
    return {
        "cpu_ns": _number(read_file(directory, "cpuacct.usage")),
        "cpu_user_ns": _number(read_file(directory, "cpuacct.usage_user")),
        "cpu_system_ns": _number(read_file(directory, "cpuacct.usage_sys")),
    }


def _read_cpu(directory: str) -> dict[str, int | None]:
    quota, period = read_file(directory, "cpu.cfs_quota_us"), read_file(directory, "cpu.cfs_period_us")
    return {
        "cpu_throttled_ns": parse_table(read_file(directory, "cpu.stat")).get("throttled_time"),
        "cpu_limit_millicores": _parse_cpu_limit(f"{quota} {period}"),
    }


def _read_memory(directory: str) -> dict[str, int | None]:
    memory = _number(read_file(directory, "memory.usage_in_bytes"))
    memory_stat = parse_table(read_file(directory, "memory.stat"))
    limit = _number(read_file(directory, "memory.limit_in_bytes"))
    return {
        "memory_bytes": memory,
        "memory_working_set_bytes": _working_set(memory, memory_stat.get("total_inactive_file")),
        "memory_anonymous_bytes": memory_stat.get("total_rss"),
        "memory_peak_bytes": _number(read_file(directory, "memory.max_usage_in_bytes")),
        "memory_limit_bytes": None if limit is None or limit >= _UNLIMITED_BYTES else limit,
        "page_faults": memory_stat.get("total_pgfault"),
        "major_page_faults": memory_stat.get("total_pgmajfault"),
        "swap_bytes": memory_stat.get("total_swap"),
        "oom_kills": parse_table(read_file(directory, "memory.oom_control")).get("oom_kill"),
    }


def _read_pids(directory: str) -> dict[str, int | None]:
    return {
        "processes": _number(read_file(directory, "pids.current")),
        "processes_limit": _number(read_file(directory, "pids.max")),
    }


def _read_blkio(directory: str) -> dict[str, int | None]:
    sizes = parse_blkio(read_file(directory, "blkio.throttle.io_service_bytes_recursive"))
    counts = parse_blkio(read_file(directory, "blkio.throttle.io_serviced_recursive"))
    return {
        "read_bytes": sizes.get("Read"),
        "written_bytes": sizes.get("Write"),
        "reads": counts.get("Read"),
        "writes": counts.get("Write"),
    }


_V1_READERS: Mapping[str, Callable[[str], dict[str, int | None]]] = {
    "cpuacct": _read_cpuacct,
    "cpu": _read_cpu,
    "memory": _read_memory,
    "pids": _read_pids,
    "blkio": _read_blkio,
}


def parse_table(text: str) -> dict[str, int]:
    """Return the lines `NAME NUMBER` of a file; other lines are left out."""
    words = [line.split() for line in text.splitlines()]
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and _is_number(pair[1])}


def _parse_cpu_limit(text: str) -> int | None:
    """Return the limit of the words `QUOTA PERIOD`, both in microseconds; None if the first is no number."""
    words = text.split()
    if len(words) != 2 or not all(map(_is_number, words)) or not int(words[1]):
        return None
    return int(words[0]) * _MILLICORES // int(words[1])


def parse_io(text: str) -> dict[str, int]:
    """Return the sums over all devices of io.stat; zeros for a file without counts."""
    sums = dict.fromkeys(("rbytes", "wbytes", "rios", "wios"), 0)
    for line in text.splitlines():
        for word in line.split()[1:]:
            name, _, value = word.partition("=")
            if name in sums and _is_number(value):
                sums[name] += int(value)
    return sums if text else {}


def parse_blkio(text: str) -> dict[str, int]:
    """Return the sums over all devices of a file of blkio.throttle, which ends with a total, even 0."""
    sums = dict.fromkeys(("Read", "Write"), 0)
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[1] in sums and _is_number(words[2]):
            sums[words[1]] += int(words[2])
    return sums if text else {}


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if _is_number(text) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 20


def _times(value: int | None, factor: int) -> int | None:
    return None if value is None else value * factor


def _working_set(memory: int | None, inactive_cache: int | None) -> int | None:
    return None if memory is None else max(0, memory - (inactive_cache or 0))


class Stall(Value):
    """The share of time in percent, of the last 10, 60 and 300 seconds, and the whole time so far."""

    avg10: float
    avg60: float
    avg300: float
    total_ns: int


class Pressure(Value):
    """The stall of `some` processes of a group, and of all processes at the same time, `full`."""

    some: Stall
    full: Stall


def read_pressure(directory: str, resource: str) -> Pressure | None:
    """Return the pressure of "cpu", "memory" or "io" by a directory of v2; None if the kernel counts no pressure."""
    return parse_pressure(read_file(directory, f"{resource}.pressure"))


def parse_pressure(text: str) -> Pressure | None:
    """Return the pressure in a file; zeros without a line `full`, None without a line `some`."""
    stalls = {kind: _parse_stall(words) for kind, _, words in (line.partition(" ") for line in text.splitlines())}
    nothing = Stall(avg10=0.0, avg60=0.0, avg300=0.0, total_ns=0)
    return Pressure(some=stalls["some"], full=stalls.get("full", nothing)) if "some" in stalls else None


def _parse_stall(words: str) -> Stall:
    values = dict(word.split("=", 1) for word in words.split())
    return Stall(
        avg10=float(values["avg10"]),
        avg60=float(values["avg60"]),
        avg300=float(values["avg300"]),
        total_ns=int(values["total"]) * _MICROSECOND_NS,
    )
