"""The use of apps in a pod of another stage1, which only tells where its control groups are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from minit.linux.mountinfo import read_mountinfo
from minit.stage0.reports.usage import find_hierarchies
from tests.support.stage0_world import World

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")


@pytest.fixture
def group() -> Iterator[str]:
    """The path of a control group, in every hierarchy, with that of an app below it."""
    path = f"minit-stats-{os.getpid()}"
    tops = [Path(hierarchy.mount_point, path) for hierarchy in find_hierarchies(read_mountinfo())]
    for top in tops:
        (top / "system.slice/busybox.service").mkdir(parents=True)
    yield path
    for top in tops:
        for directory in ("system.slice/busybox.service", "system.slice", "."):
            (top / directory).rmdir()


def test_another_stage1(world: World, group: str) -> None:
    """Its groups are found by `subcgroup`; one that writes none is told so, and is in no list of all pods."""
    with world.start() as pod:
        result = world.minit("app", "stats", pod.uuid, code=254)
        assert f'pod "{pod.uuid}": its control groups are not there' in result.stderr
        assert "skipping pod" in world.minit("app", "stats").stderr
        (world.pod_path("run", pod.uuid) / "subcgroup").write_text(f"{group}\n")
        sample = json.loads(world.minit("app", "stats", "--format=json", pod.uuid).stdout)
        [app] = sample["apps"]
        assert app["name"] == "busybox" and isinstance(app["cpu_ns"], int)
        assert "networks" not in sample, "it has the network of the test"
        report = json.loads(world.minit("diagnose", "--format=json", pod.uuid).stdout)
        assert report["conclusions"] == ["The pod is running and ready; nothing is wrong that can be seen from here."]
