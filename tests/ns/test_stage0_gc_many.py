"""The collection of many pods: by one program where stage1 has one for that, and with several of stage0's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from uuid import uuid4

import pytest

from minit.stage0.pods.poddirectory import PLACES
from tests.support.stage0_world import World, write_stage1

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")


@pytest.fixture
def world(world: World) -> World:
    """A data directory of its own, with a stage1 that has `gc-many`."""
    write_stage1(world.stage1, entrypoints=("run", "gc", "gc-many"))
    return world


def run(world: World, count: int, *options: str) -> list[str]:
    """Have that many pods run to their end and return their UUIDs, sorted."""
    before = world.pods("run")
    for _ in range(count):
        world.minit("run", f"--stage1-path={world.stage1}", "--net=none", *options, world.app)
    return sorted(set(world.pods("run")) - set(before))


def lines(world: World, name: str) -> list[str]:
    """Return the lines of a file that stage1 has written, none if there is no such file."""
    path = world.dump / name
    return path.read_text().splitlines() if path.exists() else []


def all_pods(world: World) -> list[str]:
    """Return the pods in whatever place."""
    return [uuid for place in PLACES for uuid in world.pods(place)]


def collected(uuids: list[str]) -> str:
    """Return what `gc` prints of the pods it collects."""
    return "".join(f'Garbage collecting pod "{uuid}"\n' for uuid in uuids)


def test_one_program_for_many_pods(world: World) -> None:
    """It is started once, from the tree, where the pods are, with the flags of `gc`, and has no pod's lock."""
    uuids = run(world, 2) + run(world, 1, "--no-overlay")
    world.minit("gc", "--mark-only")
    result = world.minit("--debug", "--local-config=/my/config", "gc", "--grace-period=0s")
    assert (result.stdout, result.stderr) == (collected(sorted(uuids)), "")
    assert lines(world, "collected") == sorted(uuids)
    assert len(lines(world, "starts")) == 1
    call = world.call("gc-many")
    assert call.argv[1:] == ["--debug", "--local-config", "/my/config"]
    assert call.argv[0].startswith(f"{world.data}/cas/tree/")
    assert call.cwd == f"{world.data}/pods/exited-garbage"
    assert not [target for target in call.fds.values() if target.startswith(f"{world.data}/pods")]
    assert not (world.dump / "gc.argv").exists()
    assert all_pods(world) == []
    assert world.mounts() == []


def test_each_pod_has_a_result_of_its_own(world: World) -> None:
    """The outcome of one pod is told and decided as if it were alone, and the others are collected."""
    uuids = run(world, 5)
    acts = ("code=4", "code=75", "code=-9", "echo of itself >&2")
    for uuid, act in zip(uuids, acts):
        (world.dump / f"at-{uuid}").write_text(act)
    world.minit("gc", "--mark-only")
    result = world.minit("gc", "--grace-period=0s", code=254)
    assert result.stdout == collected(uuids)
    assert result.stderr.splitlines() == [
        f'gc: pod "{uuids[0]}": stage1 GC failed: exit status 4',
        f'gc: pod "{uuids[1]}": pod "{uuids[1]}" not removed: stage1 GC has not finished; remove the pod again',
        f'gc: pod "{uuids[2]}": pod "{uuids[2]}" not removed: stage1 GC was killed; remove the pod again',
        "of itself",
    ]
    assert all_pods(world) == uuids[1:3]
    assert len(lines(world, "starts")) == 1
    for uuid in uuids[1:3]:
        (world.dump / f"at-{uuid}").unlink()
    assert world.minit("rm", *uuids[1:3]).stdout == "".join(f'"{uuid}"\n' for uuid in uuids[1:3])
    assert len(lines(world, "starts")) == 2
    assert all_pods(world) == []


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("kill -KILL $$", 'pod "{}" not removed: stage1 GC was killed; remove the pod again'),
        ("exit 3", "stage1 GC failed: exit status 3"),
        ("exit 0", "stage1 GC failed: exit status 254"),
        ("echo nonsense", "stage1 GC failed: exit status 254"),
    ],
)
def test_a_program_that_ends(world: World, act: str, said: str) -> None:
    """The pod it was at has its exit code, and the next one gets another program."""
    uuids = run(world, 3)
    (world.dump / f"at-{uuids[1]}").write_text(act)
    world.minit("gc", "--mark-only")
    is_left = "not removed" in said
    result = world.minit("gc", "--grace-period=0s", code=254 if is_left else 0)
    assert result.stderr == f'gc: pod "{uuids[1]}": {said.format(uuids[1])}\n'
    assert lines(world, "collected") == uuids
    assert len(lines(world, "starts")) == 2
    assert all_pods(world) == uuids[1:2] * is_left


def test_pods_of_several_images(world: World) -> None:
    """Each image has its program, and one that has none, or whose tree is gone, its `gc`."""
    uuids = run(world, 2)
    write_stage1(world.stage1, entrypoints=("run", "gc", "gc-many"), annotations={"other": "yes"})
    uuids += run(world, 2)
    write_stage1(world.stage1, entrypoints=("run", "gc"))
    without = run(world, 1)
    write_stage1(world.stage1, entrypoints=("run", "gc", "gc-many"), annotations={"gone": "yes"})
    gone = run(world, 1)
    tree = (world.pod_path("run", gone[0]) / "stage1TreeStoreID").read_text()
    (world.data / "cas/tree" / tree / "rendered").unlink()
    world.minit("gc", "--mark-only")
    result = world.minit("gc", "--grace-period=0s")
    assert result.stdout == collected(sorted([*uuids, *without, *gone]))
    assert result.stderr == "gc on stderr\n" * 2
    assert lines(world, "collected") == sorted(uuids)
    assert len(lines(world, "starts")) == 2
    assert world.call("gc").argv[-1] == max(*without, *gone)
    assert all_pods(world) == []


def test_more_pods_than_a_batch(world: World) -> None:
    """All of them are deleted but the one that cannot be, which is said and stays."""
    template = world.prepare()
    prepared = world.pod_path("prepared", template)
    uuids = [str(uuid4()) for _ in range(150)]
    for uuid in uuids:
        shutil.copytree(prepared, world.pod_path("garbage", uuid), symlinks=True)
    kept = world.pod_path("garbage", uuids[70])
    subprocess.run(["chattr", "+i", kept / "pod"], check=True)
    result = world.minit("gc")
    assert result.stdout == collected(sorted(uuids))
    assert result.stderr == f'gc: pod "{kept.name}": pod "{kept.name}" not removed: pod: operation not permitted\n'
    assert world.pods("garbage") == [kept.name]
    subprocess.run(["chattr", "-i", kept / "pod"], check=True)
    world.minit("gc")
    assert all_pods(world) == [template]
