"""Apps that nobody can kill: they wait for a file system that does not answer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.owngroup import find_groups
from tests.support.pods import control_group_name
from tests.support.processes import named, status_of
from tests.support.stage0_world import World
from tests.support.stuckfs import StuckFilesystem
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no /dev/fuse"),
]


@pytest.fixture
def world(world: World, stage1_image: Path) -> World:
    """A data directory of its own, with the real stage1."""
    world.stage1 = stage1_image
    return world


def groups_of(uuid: str) -> list[Path]:
    """Return a pod's control groups."""
    return find_groups(control_group_name(uuid))


def test_a_pod_that_has_ended_but_for_a_process_is_not_forgotten(world: World) -> None:
    """Neither `rm` nor `gc` removes it while its groups cannot be, and `gc` does when they can."""
    stuck, saved = world.root / "stuck", world.root / "uuid"
    stuck.mkdir()
    words = ("run", "--quiet", f"--stage1-path={world.stage1}", "--net=none", f"--uuid-file-save={saved}")
    volume = (f"--volume=v,kind=host,source={stuck}", "--mount=volume=v,target=/v")
    command = world.command(*words, *volume, world.app, "--exec=/bin/busybox", "--", "stat", "/v/x")
    with StuckFilesystem(stuck) as filesystem:
        process = subprocess.Popen(command, env=world.environment(), stdout=subprocess.DEVNULL)
        assert filesystem.asked.wait(90)
        uuid = saved.read_text().strip()
        world.minit("stop", "--force", uuid)
        process.wait(timeout=90)
        [app] = _processes(groups_of(uuid), "busybox")
        assert status_of(app)["State"].startswith("D")
        for line in (("rm", uuid), ("gc", "--grace-period=0s")):
            result = world.minit(*line, code=254)
            assert f"; processes in them: {app} (" in result.stderr
            assert result.stderr.count("stage1 gc: ") == 1
            assert f'pod "{uuid}" not removed: stage1 GC has not finished; remove the pod again\n' in result.stderr
            assert world.pods("exited-garbage") == [uuid]
            assert groups_of(uuid)
    wait_for(lambda: not _processes(groups_of(uuid)), "the end of the app")
    world.minit("gc", "--grace-period=0s")
    assert (world.pods("exited-garbage"), groups_of(uuid)) == ([], [])


def _processes(groups: list[Path], name: str | None = None) -> list[int]:
    pids = {
        int(pid)
        for top in groups
        for directory, _, _ in os.walk(top)
        for pid in Path(directory, "cgroup.procs").read_text().split()
    }
    return sorted(pids if name is None else named(pids, name))
