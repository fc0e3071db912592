"""minit.launcher.cgroups and minit.supervisor.apps.controlgroup on the real hierarchies of this machine."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from minit.base.value import replace
from minit.launcher.cgroups import (
    Hierarchy,
    PodGroups,
    make_pod_groups,
    pod_subcgroup,
    read_hierarchies,
    remove_pod_groups,
)
from minit.linux import syscalls
from minit.linux.process import join_cgroups
from minit.supervisor.apps.controlgroup import Group, GroupEnds
from tests.support.waiting import wait_for

Spawn = Callable[..., int]


@pytest.fixture
def hierarchies() -> list[Hierarchy]:
    """The hierarchies of this machine."""
    return read_hierarchies()


@pytest.fixture
def subcgroup(hierarchies: list[Hierarchy]) -> Iterator[str]:
    """The path of a pod's groups; whatever was made there is removed after the test."""
    path = pod_subcgroup(hierarchies, str(uuid.uuid4()))
    yield path
    assert remove_pod_groups(hierarchies, path) == []


@pytest.fixture
def groups(hierarchies: list[Hierarchy], subcgroup: str) -> Iterator[PodGroups]:
    """The groups of a pod with the apps `a` and `b`."""
    made = make_pod_groups(hierarchies, subcgroup, ["a", "b"])
    yield made
    for fd in (*made.tasks, *(fd for ends in made.apps for fd in ends.descriptors())):
        os.close(fd)
    if made.supervisor is not None:
        os.close(made.supervisor)


@pytest.fixture
def spawn(groups: PodGroups) -> Iterator[Spawn]:
    """A function that runs another in a new process of an app's group; it pauses until killed when that returns."""
    children: list[int] = []

    def start(app: str, work: Callable[[], object] = lambda: None) -> int:
        [ends] = [ends for ends in groups.apps if ends.app == app]
        reader, writer = os.pipe()
        pid, pidfd = syscalls.clone3(cgroup=ends.directory if ends.is_v2 else None)
        if pid == 0:
            try:
                join_cgroups(ends.tasks)
                work()
                os.write(writer, b".")
                while True:
                    signal.pause()
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        children.append(pid)
        os.close(pidfd)
        os.close(writer)
        assert os.read(reader, 1) == b"."
        os.close(reader)
        return pid

    yield start
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def group_of(groups: PodGroups, app: str) -> Group:
    """Return an app's group as PID 1 would have it."""
    [ends] = [ends for ends in groups.apps if ends.app == app]
    return Group(ends)


def paths_of(pid: int) -> dict[str, str]:
    """Return the group of a process in every hierarchy."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return {names: path for _, names, path in (line.split(":", 2) for line in lines)}


def test_every_hierarchy_gets_the_same_groups(hierarchies: list[Hierarchy], subcgroup: str, groups: PodGroups) -> None:
    """PID 1's group and one per app are there under one path everywhere, and a cpuset can take tasks."""
    for hierarchy in hierarchies:
        top = Path(f"{hierarchy.mount_point}/{subcgroup}")
        assert (top / "init.scope").is_dir()
        assert sorted(path.name for path in (top / "system.slice").iterdir() if path.is_dir()) == [
            "a.service",
            "b.service",
        ]
        if "cpuset" in hierarchy.controllers:
            assert (top / "system.slice/a.service/cpuset.cpus").read_text().strip()


def test_only_the_pods_own_cpuset_is_filled(hierarchies: list[Hierarchy], subcgroup: str, groups: PodGroups) -> None:
    """Each group in it, made by anybody, begins with the processors and nodes of the group around."""
    tops = [f"{hierarchy.mount_point}/{subcgroup}" for hierarchy in hierarchies if "cpuset" in hierarchy.controllers]
    if not tops:
        pytest.skip("needs the v1 controller cpuset")
    [top] = map(Path, tops)
    later = top / "system.slice/later.service"
    later.mkdir()
    for file in ("cpuset.cpus", "cpuset.mems"):
        values = {(group / file).read_text() for group in (top.parent, top, top / "init.scope", later)}
        assert len(values) == 1 and values != {"\n"}


def test_groups_around_the_pods_are_made(hierarchies: list[Hierarchy], subcgroup: str) -> None:
    """A hierarchy that lacks a group around the pod gets it, with processors in it."""
    around = f"{os.path.dirname(subcgroup)}/{uuid.uuid4()}/b"
    inner = f"{around}/{os.path.basename(subcgroup)}".lstrip("/")
    try:
        made = make_pod_groups(hierarchies, inner, ["a"])
        pid, pidfd = syscalls.clone3(cgroup=made.supervisor)
        if pid == 0:
            try:
                join_cgroups(made.apps[0].tasks)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        for fd in (pidfd, *made.tasks, *(fd for ends in made.apps for fd in ends.descriptors())):
            os.close(fd)
        if made.supervisor is not None:
            os.close(made.supervisor)
    finally:
        assert remove_pod_groups(hierarchies, os.path.dirname(around).lstrip("/")) == []


def test_making_them_twice_is_no_error(hierarchies: list[Hierarchy], subcgroup: str, groups: PodGroups) -> None:
    """Groups that are there already are used."""
    again = make_pod_groups(hierarchies, subcgroup, ["a", "b"])
    for ends in again.apps:
        assert Group(ends).processes() == []


def test_a_process_joins_all_of_them(
    hierarchies: list[Hierarchy], subcgroup: str, groups: PodGroups, spawn: Spawn
) -> None:
    """A child started in the v2 group that joined the v1 groups is in the app's group everywhere."""
    pid = spawn("a")
    mounted = {",".join(hierarchy.controllers) for hierarchy in hierarchies}
    paths = {",".join(sorted(names.split(","))): path for names, path in paths_of(pid).items()}
    assert {paths[names] for names in mounted} == {f"/{subcgroup}/system.slice/a.service"}
    assert group_of(groups, "a").processes() == [pid]
    assert group_of(groups, "b").processes() == []


def test_a_signal_reaches_all_of_the_group_and_nobody_else(groups: PodGroups, spawn: Spawn) -> None:
    """Every process of the app gets each signal, in order, and those of another app none."""
    first, second, other = spawn("a"), spawn("a"), spawn("b")
    group_of(groups, "a").signal(signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT)
    for pid in (first, second):
        _, status = os.waitpid(pid, 0)
        assert os.WTERMSIG(status) == signal.SIGTERM
    assert os.waitpid(other, os.WNOHANG) == (0, 0)


def test_kill_catches_what_forks_meanwhile(
    hierarchies: list[Hierarchy], subcgroup: str, groups: PodGroups, spawn: Spawn
) -> None:
    """A group whose members fork all the time is empty afterwards where the kernel can kill a group."""
    if not hierarchies[0].is_v2:
        pytest.skip("cgroup.kill needs a v2 hierarchy")

    def fork_for_ever() -> None:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            while True:
                if os.fork() == 0:
                    os._exit(0)

    pid = spawn("a", fork_for_ever)
    group_of(groups, "a").kill()
    os.waitpid(pid, 0)
    assert remove_pod_groups(hierarchies, subcgroup) == []


def test_kill_reaches_all_in_any_hierarchy(
    hierarchies: list[Hierarchy], subcgroup: str, groups: PodGroups, spawn: Spawn
) -> None:
    """By cgroup.kill or without, every process of the group is sent SIGKILL, a stopped one too."""
    # v2 last: since Linux 6.14 whatever clone3(2) puts into a group that was once killed is killed, too.
    for hierarchy in reversed(hierarchies):
        pids = [spawn("a"), spawn("a")]
        os.kill(pids[0], signal.SIGSTOP)
        directory = os.open(f"{hierarchy.mount_point}/{subcgroup}/system.slice/a.service", os.O_RDONLY | os.O_DIRECTORY)
        group = Group(GroupEnds(app="a", directory=directory, is_v2=hierarchy.is_v2))
        assert sorted(group.processes()) == sorted(pids)
        group.kill()
        os.close(directory)
        assert {os.WTERMSIG(os.waitpid(pid, 0)[1]) for pid in pids} == {signal.SIGKILL}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("version", ["v1", "v2", "both"])
def test_a_frozen_group_is_thawed(
    hierarchies: list[Hierarchy], subcgroup: str, groups: PodGroups, spawn: Spawn, number: int, version: str
) -> None:
    """Whichever freezer it was, what it is sent is acted on; the next process of the group is not frozen."""
    places = {",".join(hierarchy.controllers): f"{hierarchy.mount_point}/{subcgroup}" for hierarchy in hierarchies}
    if not {"", "freezer"} <= set(places):
        pytest.skip("needs both freezers")
    pid = spawn("a")
    if version != "v2":
        Path(places["freezer"], "system.slice/a.service/freezer.state").write_text("FROZEN")
    if version != "v1":
        Path(places[""], "system.slice/a.service/cgroup.freeze").write_text("1")
    group = group_of(groups, "a")
    if number == signal.SIGKILL:
        group.kill()
    else:
        group.signal(number)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == number
    assert Path(places["freezer"], "system.slice/a.service/freezer.state").read_text() == "THAWED\n"
    assert Path(places[""], "system.slice/a.service/cgroup.freeze").read_text() == "0\n"


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_group_is_frozen(
    hierarchies: list[Hierarchy], subcgroup: str, groups: PodGroups, spawn: Spawn, version: str
) -> None:
    """v2 freezes by itself, v1 by the hierarchy of the freezer, until the thaw; a group without either says so."""
    places = {",".join(hierarchy.controllers): f"{hierarchy.mount_point}/{subcgroup}" for hierarchy in hierarchies}
    if not {"", "freezer"} <= set(places):
        pytest.skip("needs both freezers")
    spawn("a")
    ends = groups.apps[0]
    group = Group(ends if version == "v2" else replace(ends, is_v2=False))
    place = places["freezer" if version == "v1" else ""]
    state = Path(place, "system.slice/a.service", "freezer.state" if version == "v1" else "cgroup.events")
    assert group.freeze() and group.is_frozen
    wait_for(lambda: state.read_text().endswith(("FROZEN\n", "frozen 1\n")), "the freeze")
    group.thaw()
    assert not group.is_frozen
    wait_for(lambda: state.read_text().endswith(("THAWED\n", "frozen 0\n")), "the thaw")
    bare = Group(replace(ends, is_v2=False, freezer=None))
    assert not bare.freeze() and not bare.is_frozen


def test_a_group_tells_when_it_is_empty(hierarchies: list[Hierarchy], groups: PodGroups, spawn: Spawn) -> None:
    """Its events poll as exceptional, and again after they were read; v1 has none."""
    [ends, _] = groups.apps
    assert Group(replace(ends, is_v2=False)).open_events() is None
    if not ends.is_v2:
        pytest.skip("needs a v2 hierarchy")
    events = Group(ends).open_events()
    assert events is not None
    poller = select.poll()
    poller.register(events, select.POLLPRI)
    for _ in range(2):
        pid = spawn("a")
        os.pread(events, 256, 0)
        os.kill(pid, signal.SIGKILL)
        # The kernel may put off an event by some 10 ms: that of the process's coming is met here then.
        assert poller.poll(10_000)
        while b"populated 1" in os.pread(events, 256, 0):
            assert poller.poll(10_000)
        os.waitpid(pid, 0)
    os.close(events)


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """Leave this process so many descriptors that it can open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = 1 + max(int(fd) for fd in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + count, limits[1]))
    opened = []
    try:
        with suppress(OSError):
            while True:
                opened.append(os.open("/dev/null", os.O_RDONLY))
        for fd in opened[len(opened) - count :]:
            os.close(fd)
        del opened[len(opened) - count :]
        yield
    finally:
        for fd in opened:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("free", [2, 7, 150])
def test_more_processes_than_are_looked_at_at_once(groups: PodGroups, spawn: Spawn, free: int) -> None:
    """Each gets the signal, however few descriptors are to be had."""

    def start_many() -> None:
        # Forks of a small process: the memory of one that runs tests takes long to copy.
        fork = "for _ in range(599):\n if os.fork() == 0: break\nelse: print(flush=True)\n"
        code = f"import os, signal\n{fork}signal.pause()"
        many = subprocess.Popen([sys.executable, "-ISc", code], stdout=subprocess.PIPE)
        assert many.stdout is not None and many.stdout.readline() == b"\n"
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    pid = spawn("a", start_many)
    group = group_of(groups, "a")
    assert len(group.processes()) == 601
    with free_descriptors(free):
        group.signal(signal.SIGTERM)
    os.waitpid(pid, 0)
    wait_for(lambda: group.processes() == [], "the end of all")


def test_an_empty_group_and_a_removed_one_have_no_processes(
    hierarchies: list[Hierarchy], subcgroup: str, groups: PodGroups
) -> None:
    """Looking into a group, signalling and killing it never fails because it is gone."""
    group = group_of(groups, "a")
    assert group.processes() == []
    assert remove_pod_groups(hierarchies, subcgroup) == []
    assert group.processes() == []
    group.signal(signal.SIGTERM)
    group.kill()


def test_removal_is_idempotent(hierarchies: list[Hierarchy], subcgroup: str, groups: PodGroups) -> None:
    """A second removal finds nothing to do."""
    assert remove_pod_groups(hierarchies, subcgroup) == []
    assert remove_pod_groups(hierarchies, subcgroup) == []
    assert not [hierarchy for hierarchy in hierarchies if os.path.exists(f"{hierarchy.mount_point}/{subcgroup}")]


def test_a_busy_group_is_reported(
    hierarchies: list[Hierarchy], subcgroup: str, groups: PodGroups, spawn: Spawn
) -> None:
    """A group that a process lives in stays, and is named with the reason once for each hierarchy."""
    v2_or_first = hierarchies[:1]
    pid = spawn("a")
    problems = remove_pod_groups(v2_or_first, subcgroup)
    assert any(problem.endswith("a.service: device or resource busy") for problem in problems)
    assert os.path.isdir(f"{v2_or_first[0].mount_point}/{subcgroup}/system.slice/a.service")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_groups_of_a_dying_process_are_waited_for(
    hierarchies: list[Hierarchy], subcgroup: str, groups: PodGroups, spawn: Spawn
) -> None:
    """A process that was killed but not yet reaped does not keep its groups."""
    pid = spawn("a")
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert remove_pod_groups(hierarchies, subcgroup) == []
