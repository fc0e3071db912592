"""minit.launcher.cgroups: which hierarchies a host has and where in them this process is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minit.launcher.cgroups import Hierarchy, find_hierarchies, pod_subcgroup, read_hierarchies, remove_pod_groups
from minit.launcher.start.delegation import at_one_path, give_controllers
from minit.linux.mountinfo import Mount, parse_line

UUID = "6c1ab9d3-1c0b-4c0f-9c4e-0f7c2a0c7b11"
NAME = r"machine-rkt\x2d6c1ab9d3\x2d1c0b\x2d4c0f\x2d9c4e\x2d0f7c2a0c7b11.scope"


def mount(point: str, fstype: str = "cgroup", options: str = "", root: str = "/") -> Mount:
    """Return a mount of a hierarchy as mountinfo shows it."""
    return parse_line(f"30 24 0:26 {root} /sys/fs/cgroup/{point} rw,nosuid - {fstype} cgroup rw{options}\n")


def hierarchy(point: str, own_path: str, *controllers: str) -> Hierarchy:
    """Return a hierarchy below /sys/fs/cgroup."""
    return Hierarchy(mount_point=f"/sys/fs/cgroup/{point}", own_path=own_path, controllers=controllers)


ROOT = parse_line("24 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n")


def test_v1() -> None:
    """Each v1 hierarchy is found by its controllers, a named one by its name, co-mounted ones together."""
    mounts = [
        ROOT,
        mount("systemd", options=",xattr,release_agent=/lib/systemd/agent,name=systemd"),
        mount("cpu,cpuacct", options=",cpu,cpuacct"),
        mount("memory", options=",memory"),
        mount("cpuset", options=",cpuset,clone_children"),
    ]
    lines = [
        "5:cpuset:/\n",
        "4:cpu,cpuacct:/user.slice\n",
        "2:memory:/user.slice\n",
        "1:name=systemd:/user.slice/a:b\n",
    ]
    assert find_hierarchies(mounts, lines) == [
        hierarchy("cpu,cpuacct", "/user.slice", "cpu", "cpuacct"),
        hierarchy("cpuset", "/", "cpuset"),
        hierarchy("memory", "/user.slice", "memory"),
        hierarchy("systemd", "/user.slice/a:b", "name=systemd"),
    ]


def test_hybrid() -> None:
    """The v2 hierarchy of a hybrid host comes first."""
    mounts = [
        mount("systemd", options=",name=systemd"),
        mount("unified", "cgroup2", ",nsdelegate"),
        mount("pids", options=",pids"),
    ]
    lines = ["2:pids:/\n", "1:name=systemd:/init.scope\n", "0::/init.scope\n"]
    assert find_hierarchies(mounts, lines) == [
        hierarchy("unified", "/init.scope"),
        hierarchy("systemd", "/init.scope", "name=systemd"),
        hierarchy("pids", "/", "pids"),
    ]
    assert [found.is_v2 for found in find_hierarchies(mounts, lines)] == [True, False, False]


def test_v2_only() -> None:
    """A unified host has one hierarchy without names."""
    unified = mount(".", "cgroup2", ",nsdelegate,memory_recursiveprot")
    assert find_hierarchies([ROOT, unified], ["0::/user.slice/session-1.scope\n"]) == [
        hierarchy(".", "/user.slice/session-1.scope")
    ]


def test_a_mount_of_another_security_module() -> None:
    """Options that are no controllers, such as SELinux' seclabel, do not hide a hierarchy."""
    mounts = [mount("memory", options=",seclabel,memory"), mount("systemd", options=",seclabel,xattr,name=systemd")]
    assert [found.controllers for found in find_hierarchies(mounts, ["2:memory:/\n", "1:name=systemd:/\n"])] == [
        ("memory",),
        ("name=systemd",),
    ]


def test_a_hierarchy_that_is_not_mounted_is_left_out() -> None:
    """A membership without a mount, and a mount without a membership, are no use."""
    mounts = [mount("memory", options=",memory"), mount("net", options=",net_cls")]
    assert find_hierarchies(mounts, ["3:cpu:/\n", "2:memory:/\n", "0::/\n"]) == [hierarchy("memory", "/", "memory")]
    assert find_hierarchies([ROOT], ["1:memory:/\n", "0::/\n"]) == []
    assert find_hierarchies([mount("cpu", options=",cpu")], ["1:cpuset:/\n"]) == []


def test_the_first_of_several_mounts_is_taken() -> None:
    """A hierarchy that is mounted twice is used where it was mounted first."""
    mounts = [mount("unified", "cgroup2"), mount("again", "cgroup2")]
    assert find_hierarchies(mounts, ["0::/\n"]) == [hierarchy("unified", "/")]


def test_mounts_after_the_last_hierarchy_are_not_looked_at() -> None:
    """A machine with many mounts has its hierarchies among the first, and no more of them are read."""
    mounts = iter([mount("unified", "cgroup2"), ROOT, mount("memory", options=",memory"), ROOT])
    assert len(find_hierarchies(mounts, ["2:memory:/\n", "0::/\n"])) == 2
    assert next(mounts) is ROOT


@pytest.mark.parametrize(
    ("root", "path", "visible"),
    [
        ("/docker/abc", "/docker/abc", "/"),
        ("/docker/abc", "/docker/abc/web", "/web"),
        ("/docker/abc", "/docker/abcdef", "/"),
        ("/docker/abc", "/", "/"),
        ("/", "/docker/abc", "/docker/abc"),
        ("/", "/", "/"),
    ],
)
def test_in_a_container(root: str, path: str, visible: str) -> None:
    """A mount shows a part of the hierarchy: paths are as seen there, and its own top where they are outside."""
    for fstype, options, names in (("cgroup", ",memory", "memory"), ("cgroup2", "", "")):
        [found] = find_hierarchies([mount("x", fstype, options, root)], [f"1:{names}:{path}\n"])
        assert found.own_path == visible


def test_this_host() -> None:
    """The groups found on this machine exist: every own path is a directory below its mount point."""
    hierarchies = read_hierarchies()
    assert hierarchies
    for found in hierarchies:
        assert os.path.isfile(f"{found.mount_point}{found.own_path}/cgroup.procs")
    assert [found.is_v2 for found in hierarchies] == sorted((found.is_v2 for found in hierarchies), reverse=True)


@pytest.mark.parametrize(
    ("hierarchies", "subcgroup"),
    [
        (
            [hierarchy("unified", "/u"), hierarchy("cpu", "/c", "cpu"), hierarchy("s", "/s", "name=systemd")],
            f"s/{NAME}",
        ),
        ([hierarchy("unified", "/u"), hierarchy("cpu", "/c", "cpu", "cpuacct")], f"c/{NAME}"),
        ([hierarchy("unified", "/u/v"), hierarchy("memory", "/m", "memory")], f"u/v/{NAME}"),
        ([hierarchy("memory", "/m", "memory")], f"m/{NAME}"),
        ([hierarchy("unified", "/")], NAME),
        ([hierarchy("s", "/", "name=systemd")], NAME),
    ],
)
def test_where_a_pods_groups_are(hierarchies: list[Hierarchy], subcgroup: str) -> None:
    """Below this process in systemd's hierarchy, else in cpu's, else in v2, else in whatever there is."""
    assert pod_subcgroup(hierarchies, UUID) == subcgroup


def test_groups_that_are_not_there_are_removed_already(tmp_path: Path) -> None:
    """Nothing to remove is no problem, in any hierarchy."""
    found = [Hierarchy(mount_point=str(tmp_path / name), own_path="/", controllers=(name,)) for name in ("a", "b")]
    assert remove_pod_groups(found, NAME) == []


def test_the_group_of_this_process_is_left_alone(tmp_path: Path) -> None:
    """A pod's groups are not removed from within, and the other hierarchies are all the same."""
    (tmp_path / "a" / NAME / "init.scope").mkdir(parents=True)
    (tmp_path / "b" / NAME / "init.scope").mkdir(parents=True)
    found = [
        Hierarchy(mount_point=str(tmp_path / "a"), own_path=f"/{NAME}/init.scope", controllers=("a",)),
        Hierarchy(mount_point=str(tmp_path / "b"), own_path=f"/{NAME}x", controllers=("b",)),
    ]
    assert remove_pod_groups(found, NAME) == [f"{tmp_path}/a/{NAME}: this process is in the group"]
    assert (tmp_path / "a" / NAME / "init.scope").is_dir()
    assert not (tmp_path / "b" / NAME).exists()


def test_what_cannot_be_removed_is_named(tmp_path: Path) -> None:
    """A directory that is not empty stays, and so do those above it, each with its reason."""
    group = tmp_path / NAME / "system.slice"
    group.mkdir(parents=True)
    (group / "file").touch()
    found = [Hierarchy(mount_point=str(tmp_path), own_path="/", controllers=("a",))]
    assert remove_pod_groups(found, NAME) == [f"{group}: directory not empty", f"{group.parent}: directory not empty"]


def test_the_groups_of_a_user_have_one_path() -> None:
    """A hierarchy in which the user is elsewhere than in that of systemd is left out, and none is no error."""
    systemd, memory = hierarchy("systemd", "/user/1", "name=systemd"), hierarchy("memory", "/user/1", "memory")
    assert at_one_path([hierarchy("pids", "/other", "pids"), memory, systemd]) == [memory, systemd]
    assert at_one_path([]) == []


def test_a_group_with_processes_gives_nothing(tmp_path: Path) -> None:
    """The kernel lets such a group give `cpu`, after which groups inside take no processes; only the root may."""
    group = tmp_path / "own"
    group.mkdir()
    (group / "cgroup.type").write_text("domain\n")
    for directory, given in (tmp_path, "cpu"), (group, ""):
        (directory / "cgroup.procs").write_text("1\n")
        (directory / "cgroup.subtree_control").write_text(given)
    unified = Hierarchy(mount_point=str(tmp_path), own_path="/own")
    assert give_controllers(unified, "/own", {"cpu"}) == "/own"
    (group / "cgroup.procs").write_text("")
    assert give_controllers(unified, "/own", {"cpu"}) is None
    assert (group / "cgroup.subtree_control").read_text() == "+cpu"
