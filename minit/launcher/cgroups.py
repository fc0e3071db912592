"""
The pod's control groups in every hierarchy of the host: v1, hybrid and v2 (cgroups(7)).

A pod's groups have the same path everywhere, `subcgroup`, by which gc finds the groups.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from minit.base.errors import LaunchError, describe
from minit.base.value import Value, replace
from minit.linux import syscalls
from minit.linux.mountinfo import Mount, find_mounts
from minit.plan.appspec import AppSpec
from minit.plan.root.groupmounts import GROUPS, is_shown
from minit.plan.root.mountoperations import BindTree
from minit.podfiles import paths
from minit.podfiles.boundedfile import read_bounded
from minit.supervisor.apps.controlgroup import PROCS, WRITTEN, GroupEnds

# The names of systemd, where rkt's tools look.
_INIT_SCOPE = "init.scope"
LAUNCHER_SCOPE = "launcher.scope"
APPS = "system.slice"
_KILL = "cgroup.kill"
_FREEZER_STATE = "freezer.state"
_KILL_PATIENCE_SECONDS = 5.0
# As descriptors of the launcher.
_KILLED_AT_ONCE = 256
MAX_PATH_BYTES = 4096  # PATH_MAX
_CPUSET_FILES = ("cpuset.cpus", "cpuset.mems")
_CLONE_CHILDREN = "cgroup.clone_children"
# How long removing waits for processes to leave, in all: a lasting process must not hold up rkt per group.
_REMOVE_PATIENCE_SECONDS = 1.0
_REMOVE_PAUSE_SECONDS = 0.02


class Hierarchy(Value):
    """
    One cgroup hierarchy of the host: with the mount point, and the path of this process.

    `controllers` holds the v1 controllers, or `name=…` of a named hierarchy; empty for v2.
    """

    mount_point: str
    own_path: str
    controllers: tuple[str, ...] = ()

    @property
    def is_v2(self) -> bool:
        """Tell whether the hierarchy is the unified one."""
        return not self.controllers


class PodGroups(Value):
    """
    Descriptors of a pod's groups. `tasks` are the v1 `tasks` files of the supervisor's group, one per hierarchy;
    `supervisor` is the directory of the supervisor's v2 group, None on a host without v2. Both are empty for a
    supervisor without own groups.
    """

    supervisor: int | None
    tasks: tuple[int, ...]
    apps: tuple[GroupEnds, ...]


def read_hierarchies() -> list[Hierarchy]:
    """Return the mounted hierarchies of this process, v2 first."""
    return hierarchies_of("self")


def hierarchies_of(process: int | str) -> list[Hierarchy]:
    """Return the same with the paths of another process."""
    with open(f"/proc/{process}/cgroup", encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
        return find_hierarchies(find_mounts("cgroup"), lines)


def find_hierarchies(mounts: Iterable[Mount], memberships: Iterable[str]) -> list[Hierarchy]:
    """
    Return the hierarchies among `mounts`, v2 first; `memberships` are the lines of /proc/PID/cgroup.

    Once all have been found `mounts` is looked at no further.
    """
    own_paths = {}
    for line in memberships:
        _, names, path = line.rstrip("\n").split(":", 2)
        own_paths[tuple(sorted(names.split(","))) if names else ()] = path
    hierarchies = []
    for mount in mounts:
        controllers = next((controllers for controllers in own_paths if _shows(mount, controllers)), None)
        if controllers is not None:
            own_path = _path_below(mount.root, own_paths.pop(controllers))
            hierarchies.append(Hierarchy(mount_point=mount.mount_point, own_path=own_path, controllers=controllers))
            if not own_paths:
                break
    return sorted(hierarchies, key=lambda hierarchy: hierarchy.controllers)


def offered_controllers(hierarchies: Sequence[Hierarchy], *, in_own_group: bool = False) -> frozenset[str]:
    """Return the controllers offered by any hierarchy; of v2 those of the root, or of the own group."""
    offered = {name for hierarchy in hierarchies for name in hierarchy.controllers}
    unified = [each.mount_point + (each.own_path if in_own_group else "") for each in hierarchies if each.is_v2]
    return frozenset(offered.union(*map(read_controllers, unified)))


def read_controllers(group: str, file: str = "cgroup.controllers") -> set[str]:
    """Return the controllers in a file of a v2 group: the group's own, or the given ones (`cgroup.subtree_control`)."""
    with open(f"{group}/{file}", encoding="utf-8") as names:
        return set(names.read().split())


def pod_subcgroup(hierarchies: Sequence[Hierarchy], uuid: str) -> str:
    """Return the path of the pod's groups, without a leading slash: below the group of this process."""
    by_name = {name: hierarchy for hierarchy in hierarchies for name in hierarchy.controllers or ("",)}
    first = next((by_name[name] for name in ("name=systemd", "cpu", "") if name in by_name), hierarchies[0])
    return f"{first.own_path.rstrip('/')}/{paths.pod_cgroup_name(uuid)}".lstrip("/")


def below_parent(hierarchies: Sequence[Hierarchy], parent: str) -> list[Hierarchy]:
    """
    Return the hierarchies with a group `parent`, from the top of each, that this process can write to; LaunchError
    without any. There are no `hierarchies` for a user to whom root has delegated none.
    """
    found = [hierarchy for hierarchy in hierarchies if os.path.isdir(f"{hierarchy.mount_point}{parent}")]
    if hierarchies and not found:
        raise LaunchError(f"no hierarchy of control groups has {parent}: make that group before the pod")
    writable = [hierarchy for hierarchy in found if os.access(f"{hierarchy.mount_point}{parent}", os.W_OK)]
    if not writable:
        raise LaunchError(f"the control group {parent} is not delegated to you (see docs/rootless.md)")
    return writable


def read_subcgroup() -> str:
    """
    Return `subcgroup` of the pod with the working directory as its directory.

    FileNotFoundError if the pod has none, LaunchError if the file cannot be read.
    """
    try:
        # Without waiting, and following no link: a cleaner may find anything there.
        fd = os.open(paths.POD_SUBCGROUP, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        return os.fsdecode(read_bounded(fd, paths.POD_SUBCGROUP, MAX_PATH_BYTES)).strip().lstrip("/")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LaunchError(f"failed to read {paths.POD_SUBCGROUP}: {describe(error)}") from error


def write_group_file(path: str, text: str) -> None:
    """Write a file of a control group, all at once."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def apps_group(hierarchy: Hierarchy, subcgroup: str) -> str:
    """Return the directory of the group around all apps of a pod."""
    return f"{hierarchy.mount_point}/{subcgroup}/{APPS}"


def app_group(hierarchy: Hierarchy, subcgroup: str, app: str) -> str:
    """Return the directory of an app's group in a hierarchy."""
    return f"{apps_group(hierarchy, subcgroup)}/{app}.service"


def memory_group_of_pid_1(hierarchies: Sequence[Hierarchy], subcgroup: str | None) -> tuple[str, bool]:
    """
    Return the directory of the group with the memory of PID 1, and whether the group is of v1.

    Without a `subcgroup` PID 1 is in the groups of this process.
    """
    hierarchy = max(hierarchies, key=lambda each: ("memory" in each.controllers, each.is_v2), default=None)
    if hierarchy is None:
        return "", False
    path = hierarchy.own_path if subcgroup is None else f"/{subcgroup}/{_INIT_SCOPE}"
    return f"{hierarchy.mount_point}{path}", "memory" in hierarchy.controllers


def make_pod_groups(
    hierarchies: Sequence[Hierarchy],
    subcgroup: str,
    apps: Iterable[str],
    *,
    private_users: bool = False,
    of_apps_only: bool = False,
) -> PodGroups:
    """
    Make the groups of PID 1 and of each app in every hierarchy; LaunchError names the group that failed.

    With `private_users` PID 1 is not root on the host, and gets open descriptors of everything to write to. With
    `of_apps_only` PID 1 stays in the groups of the launcher.
    """
    supervisor: int | None = None
    tasks = []
    try:
        for hierarchy in hierarchies:
            base = f"{hierarchy.mount_point}/{subcgroup}"
            _make_pod_group(hierarchy, base)
            # A mutable pod may have no apps yet, and the limit of all together holds for later ones.
            _make_group(f"{base}/{APPS}")
            if not of_apps_only:
                _make_group(f"{base}/{_INIT_SCOPE}")
                if hierarchy.is_v2:
                    supervisor = _open_directory(f"{base}/{_INIT_SCOPE}")
                else:
                    tasks.append(_open_tasks(f"{base}/{_INIT_SCOPE}"))
        ends = [_make_app_group(hierarchies, subcgroup, name, private_users=private_users) for name in apps]
    except OSError as error:
        raise LaunchError(f"failed to make control group: {describe(error)}") from error
    return PodGroups(supervisor=supervisor, tasks=tuple(tasks), apps=tuple(ends))


def _make_app_group(hierarchies: Sequence[Hierarchy], subcgroup: str, app: str, *, private_users: bool) -> GroupEnds:
    """Make the group of an app in every hierarchy; the first hierarchy, v2 if there is one, has the directory."""
    if not hierarchies:
        return GroupEnds(app=app)
    tasks = []
    files: tuple[tuple[str, int], ...] = ()
    freezer: int | None = None
    memory: int | None = None
    for hierarchy in hierarchies:
        group = app_group(hierarchy, subcgroup, app)
        _make_group(group)
        if not hierarchy.is_v2:
            tasks.append(_open_tasks(group))
        elif private_users:
            tasks.append(_open_for_writing(f"{group}/{PROCS}"))
            files = _open_written(group)
        if "freezer" in hierarchy.controllers:
            freezer = os.open(f"{group}/{_FREEZER_STATE}", os.O_WRONLY | os.O_CLOEXEC)
        if "memory" in hierarchy.controllers:
            memory = _open_directory(group)
    return GroupEnds(
        app=app,
        directory=_open_directory(app_group(hierarchies[0], subcgroup, app)),
        is_v2=hierarchies[0].is_v2,
        tasks=tuple(tasks),
        freezer=freezer,
        files=files,
        memory=memory,
    )


def open_hierarchies(hierarchies: Sequence[Hierarchy]) -> int | None:
    """Return a detached, read-only copy of the host's /sys/fs/cgroup; None if the hierarchies are elsewhere."""
    if not any(f"{hierarchy.mount_point}/".startswith(f"{GROUPS}/") for hierarchy in hierarchies):
        return None
    tree = syscalls.open_tree(syscalls.AT_FDCWD, GROUPS, syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE)
    attributes = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_NOEXEC
    syscalls.mount_setattr(
        tree,
        flags=syscalls.AT_RECURSIVE,
        set=attributes | syscalls.MOUNT_ATTR_RDONLY,
        propagation=syscalls.MS_PRIVATE,
    )
    return tree


def shown_hierarchies(hierarchies: Sequence[Hierarchy]) -> list[Hierarchy]:
    """Return the hierarchies in which apps see their own groups."""
    is_unified = all(each.is_v2 for each in hierarchies)
    return [each for each in hierarchies if is_shown((each.mount_point, each.controllers), is_unified=is_unified)]


def show_groups(app: AppSpec, hierarchies: Sequence[Hierarchy], subcgroup: str) -> AppSpec:
    """Return an app with its groups as mounts from the tree of `open_hierarchies`; none for an app with open paths."""
    if not (app.storage.protection.masked or app.storage.protection.is_exact):
        return app
    shown = shown_hierarchies(hierarchies)
    binds = (BindTree(source=app_group(each, subcgroup, app.name), target=each.mount_point) for each in shown)
    return replace(app, groups=tuple(binds))


def remove_app_groups(hierarchies: Sequence[Hierarchy], subcgroup: str, app: str) -> list[str]:
    """Remove the groups of an app while the pod goes on, as `remove_pod_groups` removes all."""
    problems = []
    patient_until = time.monotonic() + _REMOVE_PATIENCE_SECONDS
    for hierarchy in hierarchies:
        for directory in _deepest_first(app_group(hierarchy, subcgroup, app)):
            try:
                _remove_group(directory, patient_until)
            except OSError as error:
                problems.append(describe(error))
    return problems


def remove_pod_groups(
    hierarchies: Sequence[Hierarchy], subcgroup: str, patience_seconds: float = _REMOVE_PATIENCE_SECONDS
) -> list[str]:
    """
    Remove the pod's groups from every hierarchy, deepest first, and return the failures.

    A hierarchy without such groups is done already; the function leaves alone the groups of this very process.
    """
    problems = []
    patient_until = time.monotonic() + patience_seconds
    below: list[str] = []
    for hierarchy in hierarchies:
        top = f"{hierarchy.mount_point}/{subcgroup}"
        if f"{hierarchy.own_path}/".startswith(f"/{subcgroup}/"):
            problems.append(f"{top}: this process is in the group")
            continue
        # Most hierarchies have the same groups, and a list of a group's files costs more than a removal.
        if _removes_all(top, below):
            continue
        below = []
        for directory in _deepest_first(top):
            below.append(directory.removeprefix(top))
            try:
                _remove_group(directory, patient_until)
            except OSError as error:
                problems.append(describe(error))
    return problems


def kill_pod_groups(hierarchies: Sequence[Hierarchy], subcgroup: str) -> list[int]:
    """Kill all processes in the pod's groups, which no end of a namespace ends, and return the remaining ones."""
    until = time.monotonic() + _KILL_PATIENCE_SECONDS
    tops = [f"{hierarchy.mount_point}/{subcgroup}" for hierarchy in hierarchies]
    while pids := processes_left(hierarchies, subcgroup):
        for top in tops:
            _write_if_there(f"{top}/{_KILL}", "1")
            # Nothing forks any more.
            _write_if_there(f"{top}/{_FREEZER_STATE}", "FROZEN")
        pidfds = _open_processes(pids)
        # A pid may have been reused between the two; the groups decide about the present owner.
        left = {*processes_left(hierarchies, subcgroup)}
        for pid, pidfd in pidfds.items():
            if pid in left:
                with suppress(ProcessLookupError):
                    syscalls.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        for directory in (directory for top in tops for directory in _deepest_first(top)):
            _write_if_there(f"{directory}/{_FREEZER_STATE}", "THAWED")
        if time.monotonic() >= until:
            break
        time.sleep(_REMOVE_PAUSE_SECONDS)
    return pids


def _open_processes(pids: Sequence[int]) -> dict[int, int]:
    found = {}
    for pid in pids[:_KILLED_AT_ONCE]:
        with suppress(ProcessLookupError):
            found[pid] = os.pidfd_open(pid)
    return found


def _write_if_there(path: str, text: str) -> None:
    with suppress(OSError):
        write_group_file(path, text)


def processes_left(hierarchies: Sequence[Hierarchy], subcgroup: str) -> list[int]:
    """Return the processes in the pod's groups, in any hierarchy."""
    pids: set[int] = set()
    for hierarchy in hierarchies:
        for directory in _deepest_first(f"{hierarchy.mount_point}/{subcgroup}"):
            try:
                with open(f"{directory}/{PROCS}", encoding="utf-8") as file:
                    pids.update(map(int, file.read().split()))
            except OSError:
                continue  # it is gone by now
    return sorted(pids)


def _shows(mount: Mount, controllers: tuple[str, ...]) -> bool:
    # A controller is in one hierarchy only, so the other mount options do not matter.
    if not controllers:
        return mount.fstype == "cgroup2"
    return mount.fstype == "cgroup" and set(controllers) <= set(mount.super_options.split(","))


def _path_below(root: str, path: str) -> str:
    """Return a path of the hierarchy as seen in a mount with the part below `root`, as in a container."""
    root = root.rstrip("/")
    # A mount without the group of this process can still hold groups of the pod.
    return path[len(root) :] or "/" if f"{path}/".startswith(f"{root}/") else "/"


def _make_pod_group(hierarchy: Hierarchy, path: str) -> None:
    """Make the group around all of a pod, and the groups around, where missing."""
    try:
        is_new = _make_group(path)
    except FileNotFoundError:
        around = os.path.dirname(path)
        if around == hierarchy.mount_point:
            raise
        _make_pod_group(hierarchy, around)
        is_new = _make_group(path)
    if is_new and "cpuset" in hierarchy.controllers:
        _fill_cpuset(path)


def _make_group(path: str) -> bool:
    """Make a group; False for an existing one."""
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        return False
    return True


def _fill_cpuset(directory: str) -> None:
    # A v1 cpuset starts empty, and an empty one takes no tasks (cpusets(7)). Each write of processors has the kernel
    # look for other scheduling domains: the groups below begin with the same processors.
    for name in _CPUSET_FILES:
        with open(f"{os.path.dirname(directory)}/{name}", encoding="utf-8") as parent:
            write_group_file(f"{directory}/{name}", parent.read())
    write_group_file(f"{directory}/{_CLONE_CHILDREN}", "1")


def _open_directory(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _open_written(group: str) -> tuple[tuple[str, int], ...]:
    files = []
    for name in WRITTEN:
        try:
            files.append((name, _open_for_writing(f"{group}/{name}")))
        except FileNotFoundError:
            pass  # cgroup.kill is of Linux 5.14
    return tuple(files)


def _open_tasks(path: str) -> int:
    # Not cgroup.procs: the first write costs a grace period of the kernel, 13 ms.
    return _open_for_writing(f"{path}/tasks")


def _open_for_writing(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC)


def _deepest_first(top: str) -> Iterator[str]:
    for directory, _, _ in os.walk(top, topdown=False):
        yield directory


def _removes_all(top: str, below: Sequence[str]) -> bool:
    """Remove the groups of these paths below `top`, of which the last is `top`; False if there may be groups left."""
    try:
        for path in below:
            with suppress(FileNotFoundError):
                os.rmdir(f"{top}{path}")
    except OSError:
        return False
    return bool(below)


def _remove_group(directory: str, patient_until: float) -> None:
    while True:
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            return
        except OSError as error:
            # Dead processes leave their group a moment after the parent has been told.
            if error.errno != errno.EBUSY or time.monotonic() >= patient_until:
                raise
            time.sleep(_REMOVE_PAUSE_SECONDS)
        else:
            return
