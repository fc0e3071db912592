"""What a pod's start costs on a machine with thousands of control groups and hundreds of mounts, in system calls."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minit.launcher.cgroups import read_hierarchies
from minit.linux import syscalls
from minit.podfiles import paths
from tests.support.owngroup import group_below_own
from tests.support.stage0_world import World

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace"),
]

GROUPS = 3000
MOUNTS = 400
# What a look at each of them would be made of; a list of all mounts is read in a few pieces.
LOOKING = ("read", "openat", "openat2", "getdents64", "newfstatat", "statx", "readlink", "umount2", "mount", "rmdir")


@contextmanager
def left_groups(count: int) -> Iterator[None]:
    """Groups of pods that are gone, where those of the next pod will be, in a hierarchy that is cheap to fill."""
    hierarchy = next(each for each in read_hierarchies() if each.is_v2 or "name=systemd" in each.controllers)
    groups = [group_below_own(hierarchy, paths.pod_cgroup_name(str(uuid.uuid4()))) for _ in range(count)]
    try:
        for group in groups:
            group.mkdir()
        yield
    finally:
        for group in groups:
            if group.exists():
                group.rmdir()


@contextmanager
def left_mounts(directory: Path, count: int) -> Iterator[None]:
    """Mounts of the host that have nothing to do with pods."""
    directory.mkdir()
    syscalls.mount("tmpfs", str(directory), "tmpfs", 0)
    try:
        for number in range(count):
            (directory / str(number)).mkdir()
            syscalls.mount("tmpfs", str(directory / str(number)), "tmpfs", 0)
        yield
    finally:
        syscalls.umount2(str(directory), syscalls.MNT_DETACH)


def calls_of_a_start(world: World) -> Counter[str]:
    """Return how often each system call is made by a pod's start and end, by its name."""
    trace = world.root / "trace"
    words = world.command("run", "--quiet", "--rm", "--net=none", f"--stage1-path={world.stage1}", world.app)
    subprocess.run(
        ["strace", "-f", "-qq", "-c", "-U", "calls,name", "-o", str(trace), *words],
        check=True,
        env=world.environment(),
        cwd=world.root,
    )
    counts: Counter[str] = Counter()
    for line in trace.read_text().splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdecimal():
            counts[name.strip()] = int(number)
    return counts


def test_what_others_left_costs_no_system_calls(world: World, stage1_image: Path) -> None:
    """A pod among 3,000 groups and 400 mounts starts without a system call for each of either."""
    world.stage1 = stage1_image
    calls_of_a_start(world)
    before = calls_of_a_start(world)
    with left_groups(GROUPS), left_mounts(world.root / "mounts", MOUNTS):
        after = calls_of_a_start(world)
    assert {name: (before[name], after[name]) for name in LOOKING if after[name] >= before[name] + MOUNTS} == {}
