"""minit.launcher.start.preparation and minit.launcher.start.delegation on the real hierarchies of this machine."""

from __future__ import annotations

import os
import signal
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minit.base.errors import LaunchError
from minit.base.value import replace
from minit.launcher.cgroups import (
    Hierarchy,
    make_pod_groups,
    offered_controllers,
    pod_subcgroup,
    read_hierarchies,
    remove_pod_groups,
)
from minit.launcher.start.delegation import give_controllers, place_pod
from minit.launcher.start.preparation import set_limits
from minit.linux import syscalls
from minit.manifest.limits import CpuQuota, Limits
from minit.plan.appplan import AppPlan
from minit.plan.podplan import PodPlan
from minit.plan.process import ProcessPlan
from minit.plan.resources import ResourcePlan
from minit.podfiles.usersdirectory import RUNTIME_VARIABLE
from tests.support.owngroup import group_elsewhere

UUID = str(uuid.uuid4())
PLAN = PodPlan(
    uuid=UUID,
    hostname="h",
    namespaces=(),
    apps=(AppPlan(name="a", process=ProcessPlan(candidates=("/a",))),),
    bounding=None,
)


def limited(limits: Limits, pod: Limits | None = None) -> PodPlan:
    """Return the plan of a pod whose app has some limits."""
    return replace(PLAN, apps=(replace(PLAN.apps[0], resources=ResourcePlan(limits=limits)),), limits=pod)


# Limits.


@pytest.fixture
def hierarchies() -> list[Hierarchy]:
    """The hierarchies of this machine."""
    return read_hierarchies()


@pytest.fixture
def subcgroup(hierarchies: list[Hierarchy]) -> Iterator[str]:
    """The path of a pod's groups below one of the test's own, both made."""
    top = pod_subcgroup(hierarchies, UUID)
    path = f"{top}/{Path(top).name}"
    made = make_pod_groups(hierarchies, path, ["a"])
    for fd in (*made.tasks, *made.apps[0].descriptors(), *([] if made.supervisor is None else [made.supervisor])):
        os.close(fd)
    yield path
    assert remove_pod_groups(hierarchies, top) == []


def directory_of(hierarchies: list[Hierarchy], controller: str, subcgroup: str) -> Path:
    """Return the pod's group in the hierarchy of a v1 controller."""
    for hierarchy in hierarchies:
        if controller in hierarchy.controllers:
            return Path(hierarchy.mount_point, subcgroup)
    pytest.skip(f"needs the v1 controller {controller}")


def test_a_group_around_that_allows_less(hierarchies: list[Hierarchy], subcgroup: str) -> None:
    """v1 refuses a quota above that of a group around; the app goes on with that, and a warning says so."""
    pod = directory_of(hierarchies, "cpu", subcgroup)
    (pod.parent / "cpu.cfs_quota_us").write_text("20000")
    warning = 'warning: app "a": a control group around the pod allows less processor time already'
    assert set_limits(limited(Limits(cpu_quota=CpuQuota(quota=21_000), cpu_shares=7)), hierarchies, subcgroup) == [
        warning
    ]
    app = pod / "system.slice/a.service"
    assert (app / "cpu.cfs_quota_us").read_text() == "-1\n"
    assert (app / "cpu.shares").read_text() == "7\n"
    assert set_limits(limited(Limits(cpu_quota=CpuQuota(quota=20_000))), hierarchies, subcgroup) == []
    assert (app / "cpu.cfs_quota_us").read_text() == "20000\n"


def test_the_widest_limits(hierarchies: list[Hierarchy], subcgroup: str) -> None:
    """The kernel takes the highest and the lowest of what is planned at all."""
    widest = Limits(memory_bytes=(1 << 63) - 1, cpu_quota=CpuQuota(quota=10**13), cpu_shares=262144, processes=1 << 22)
    narrowest = Limits(memory_bytes=4096, cpu_quota=CpuQuota(quota=1_000), cpu_shares=2, processes=1)
    assert set_limits(limited(widest, widest), hierarchies, subcgroup) == []
    assert set_limits(limited(narrowest), hierarchies, subcgroup) == []


def test_a_limit_that_cannot_be_written(hierarchies: list[Hierarchy], subcgroup: str) -> None:
    """The error says whose it is, and names the file and the reason."""
    directory_of(hierarchies, "memory", subcgroup)
    with pytest.raises(LaunchError) as caught:
        set_limits(limited(Limits(memory_bytes=-2)), hierarchies, subcgroup)
    assert str(caught.value).startswith('failed to limit app "a": ')
    assert str(caught.value).endswith("/system.slice/a.service/memory.limit_in_bytes: invalid argument")


def test_a_controller_that_is_not_there(hierarchies: list[Hierarchy], subcgroup: str) -> None:
    """A limit that cannot be set is told."""
    others = [hierarchy for hierarchy in hierarchies if "pids" not in hierarchy.controllers and not hierarchy.is_v2]
    assert set_limits(limited(Limits(processes=5)), others, subcgroup) == [
        'warning: app "a": no limit of pids: its control group has no such controller'
    ]


# Controllers of the unified hierarchy.


class Unified:
    """A part of the unified hierarchy, as a container has it: `mount_point` is its root, in which `name` is had."""

    def __init__(self, mount_point: Path, name: str) -> None:
        self.mount_point = mount_point
        self.name = name
        self._children: list[int] = []

    def hierarchy(self, own_path: str) -> Hierarchy:
        """Return the hierarchy for a process that is in a group, which is made."""
        (self.mount_point / own_path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        return Hierarchy(mount_point=str(self.mount_point), own_path=own_path)

    def gives(self, path: str) -> bool:
        """Return whether a group gives the controller to those below."""
        return self.name in (self.mount_point / path.lstrip("/") / "cgroup.subtree_control").read_text().split()

    def fork(self, path: str, work: Callable[[], None] = lambda: None) -> int:
        """Return a new process in a group that has done some work and stays."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(reader)
                (self.mount_point / path.lstrip("/") / "cgroup.procs").write_text("0")
                work()
                os.write(writer, b".")
                while True:
                    signal.pause()
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        os.close(writer)
        self._children.append(pid)
        assert os.read(reader, 1) == b"."
        os.close(reader)
        return pid

    def place(self, own_path: str, directory: Path, *, of_user: bool = False) -> str:
        """Return where a launcher in a group would have its pod, whose directory is given."""
        hierarchy = self.hierarchy(own_path)

        def work() -> None:
            os.chdir(directory)
            if of_user:
                os.environ[RUNTIME_VARIABLE] = str(directory)
            Path("placed").write_text(place_pod([hierarchy], UUID, {self.name}))

        self.fork(own_path, work)
        return (directory / "placed").read_text()

    def group_of(self, index: int) -> str:
        """Return the group that the process forked so many before is in."""
        lines = Path(f"/proc/{self._children[index]}/cgroup").read_text().splitlines()
        path = next(line for line in lines if line.startswith("0::"))[3:]
        return path.removeprefix(f"/{self.mount_point.name}") or "/"

    def end(self) -> None:
        """End all processes and remove all groups."""
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for path, _, _ in os.walk(self.mount_point, topdown=False):
            os.rmdir(path)


@pytest.fixture
def unified(hierarchies: list[Hierarchy]) -> Iterator[Unified]:
    """A part of the unified hierarchy with a controller that it has on this machine."""
    found = [hierarchy for hierarchy in hierarchies if hierarchy.is_v2]
    offered = offered_controllers(found)
    if not offered:
        pytest.skip("needs a controller in the unified hierarchy")
    root, name = Path(found[0].mount_point), min(offered)
    control = root / "cgroup.subtree_control"
    was_given = name in control.read_text().split()
    control.write_text(f"+{name}")
    with group_elsewhere(root) as path:
        part = Unified(path, name)
        yield part
        part.end()
    if not was_given:
        control.write_text(f"-{name}")


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Make a file one that nobody can write."""
    tree = syscalls.open_tree(syscalls.AT_FDCWD, str(path), syscalls.OPEN_TREE_CLONE)
    syscalls.mount_setattr(tree, set=syscalls.MOUNT_ATTR_RDONLY)
    where = os.open(path, os.O_PATH)
    syscalls.move_mount(tree, where)
    os.close(where)
    os.close(tree)
    yield
    syscalls.umount2(str(path))


POD = "machine-rkt\\x2d" + UUID.replace("-", "\\x2d") + ".scope"


def test_huge_pages(unified: Unified) -> None:
    """Those of an app and of all apps are limited where there is the controller; elsewhere a warning says so."""
    hierarchy = unified.hierarchy("/")
    made = make_pod_groups([hierarchy], "pod", ["a"])
    for fd in (*made.tasks, *made.apps[0].descriptors(), *([] if made.supervisor is None else [made.supervisor])):
        os.close(fd)
    own, every = (Limits(hugepages=(("2MB", size),)) for size in (4194304, 8388608))
    warnings = set_limits(limited(own, every), [hierarchy], "pod")
    files = [unified.mount_point / "pod/system.slice" / group / "hugetlb.2MB.max" for group in ("a.service", "")]
    found = [file.read_text() for file in files if file.exists()]
    assert (found, len(warnings)) == ((["4194304\n", "8388608\n"], 0) if unified.name == "hugetlb" else ([], 2))


def test_controllers_are_given_all_the_way_down(unified: Unified) -> None:
    """Each group of the path gives them to those in it, also the second time; where there are processes it ends."""
    hierarchy = unified.hierarchy("/a/b/c")
    for _ in range(2):
        assert give_controllers(hierarchy, "/a/b/c", {unified.name}) is None
        assert all(unified.gives(path) for path in ("/", "/a", "/a/b", "/a/b/c"))
    unified.hierarchy("/x/y")
    unified.fork("/x")
    assert give_controllers(hierarchy, "/x/y", {unified.name}) == "/x"
    assert give_controllers(hierarchy, "/x/y", {"no-such-controller"}) == "/"


def test_a_launcher_with_a_group_of_its_own(unified: Unified, tmp_path: Path) -> None:
    """As of a unit of systemd: the pod lies below it, the launcher moves into the pod, and gc can find both."""
    assert unified.place("/slice/unit", tmp_path) == f"slice/unit/{POD}"
    assert unified.gives("/slice/unit")
    assert unified.group_of(0) == f"/slice/unit/{POD}/launcher.scope"
    assert (tmp_path / "subcgroup").read_text() == f"slice/unit/{POD}"


def test_a_launcher_with_others_in_its_group(unified: Unified, tmp_path: Path) -> None:
    """As in a login session: the pod lies beside it, and nobody is moved."""
    unified.hierarchy("/slice/session")
    unified.fork("/slice/session")
    assert unified.place("/slice/session", tmp_path) == f"slice/{POD}"
    assert unified.gives("/slice") and not unified.gives("/slice/session")
    assert unified.group_of(1) == "/slice/session"
    assert not (tmp_path / "subcgroup").exists()


def test_a_users_launcher_with_others_in_its_group(unified: Unified, tmp_path: Path) -> None:
    """The user cannot write to the group around, so the others move beside the pod, and the launcher into the pod."""
    unified.hierarchy("/slice/session")
    unified.fork("/slice/session")
    assert unified.place("/slice/session", tmp_path, of_user=True) == f"slice/session/{POD}"
    assert unified.gives("/slice/session")
    assert unified.group_of(0) == "/slice/session/session.scope"
    assert unified.group_of(1) == f"/slice/session/{POD}/launcher.scope"


def test_a_launcher_below_others(unified: Unified, tmp_path: Path) -> None:
    """The pod lies in the nearest group that can give controllers."""
    unified.hierarchy("/slice/busy/own")
    unified.fork("/slice/busy")
    assert unified.place("/slice/busy/own", tmp_path) == f"slice/{POD}"
    assert unified.group_of(1) == "/slice/busy/own"


def test_a_launcher_in_a_container(unified: Unified, tmp_path: Path) -> None:
    """Alone in the topmost group it moves."""
    assert unified.place("/", tmp_path) == POD
    assert unified.gives("/") and unified.group_of(0) == f"/{POD}/launcher.scope"


def test_a_launcher_in_a_container_with_others(unified: Unified, tmp_path: Path) -> None:
    """Nothing can be done, and the pod lies where it always does."""
    unified.fork("/")
    assert unified.place("/", tmp_path) == POD
    assert not unified.gives("/") and unified.group_of(1) == "/"


def test_a_group_that_cannot_give_after_all(unified: Unified, tmp_path: Path) -> None:
    """A launcher that has moved in vain moves back, and leaves no group."""
    unified.hierarchy("/slice/own")
    control = unified.mount_point / "slice/own/cgroup.subtree_control"
    with read_only(control):
        assert unified.place("/slice/own", tmp_path) == f"slice/{POD}"
        assert unified.group_of(0) == "/slice/own"
        assert not (control.parent / POD).exists()


def test_a_group_that_takes_no_more_groups(unified: Unified, tmp_path: Path) -> None:
    """A launcher that cannot even move stays, and its pod lies around."""
    unified.hierarchy("/slice/own")
    (unified.mount_point / "slice/own/cgroup.max.descendants").write_text("1")
    assert unified.place("/slice/own", tmp_path) == f"slice/{POD}"
    assert unified.group_of(0) == "/slice/own"
    assert not (unified.mount_point / "slice/own" / POD).exists()
