"""Named volumes: made, filled from images, shared, kept when pods are gone, and removed when nobody has them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest

from minit.stage0.files.locks import key_lock
from tests.support.pods import LOOPBACK_ONLY
from tests.support.stage0_world import World, add_directory, add_file, add_link, write_app
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

MANY = 1000


@pytest.fixture
def world(world: World, stage1_image: Path) -> World:
    """A data directory of its own, with the real stage1, and an image with a directory like a database's."""
    world.stage1 = stage1_image
    write_app(world.app)
    with tarfile.open(world.app, "a") as tar:
        add_directory(tar, "rootfs/srv", 0o755)
        add_directory(tar, "rootfs/srv/db", 0o2770, uid=5)
        add_file(tar, "rootfs/srv/db/seed", b"of the image\n", 0o640)
        add_link(tar, "rootfs/srv/db/link", "/etc/shadow")
        add_link(tar, "rootfs/data", "/srv/db")
        add_directory(tar, "rootfs/many", 0o755)
        for number in range(MANY):
            add_file(tar, f"rootfs/many/{number}", b"x")
    return world


def run(world: World, script: str, *words: object, code: int = 0, **variables: str) -> list[str]:
    """Run a shell in a pod without a network and return what it wrote."""
    result = world.minit(
        *("run", "--quiet", f"--stage1-path={world.stage1}", "--net=none", *words, world.app),
        *("--exec=/bin/sh", "--", "-c", script),
        code=code,
        **variables,
    )
    assert result.stderr.replace(LOOPBACK_ONLY, "") == ""
    return [line.partition("]: ")[2] for line in result.stdout.splitlines()]


def listed(world: World) -> dict[str, list[str]]:
    """Return the pods of each volume."""
    return {each["name"]: each["pods"] for each in json.loads(world.minit("volume", "ls", "--format=json").stdout)}


STATUS = "busybox stat -c '%a %u %g' /data/. /data/seed; busybox readlink /data/link; busybox cat /data/seed"


def test_a_volume_outlives_its_pods(world: World) -> None:
    """A volume begins with the image's files, owners and modes, keeps what pods write, and goes when no pod has it."""
    assert run(world, f"{STATUS}; echo changed > /data/seed", "--volume=pgdata:/data") == [
        *("2770 5 0", "640 0 0", "/etc/shadow", "of the image")
    ]
    long = ("--volume=x,kind=named,source=pgdata", "--mount=volume=x,target=/data")
    assert run(world, "busybox cat /data/seed", *long) == ["changed"]
    script = "busybox touch /data/new 2> /dev/null || busybox cat /data/seed"
    assert run(world, script, "-v", "pgdata:/data:ro") == ["changed"]
    result = world.minit("volume", "rm", "pgdata", "none", code=254)
    pods = listed(world)["pgdata"]
    assert len(pods) == 3
    assert f'rm: volume "pgdata" is in use: remove these pods first: {", ".join(pods)}\n' in result.stderr
    assert 'rm: there is no volume "none"' in result.stderr
    world.minit("gc", "--grace-period=0s")
    assert world.minit("volume", "ls", "--no-legend").stdout.startswith("pgdata\t")
    assert world.minit("volume", "rm", "pgdata").stdout == "pgdata\n"
    assert listed(world) == {}
    # Removed, and made anew: from the image again.
    assert run(world, STATUS, "--no-overlay", "--volume=pgdata:/data")[-1] == "of the image"


def test_what_is_there_already_stays(world: World) -> None:
    """A volume that somebody has put files into is not filled, one that was emptied is not filled again."""
    assert world.minit("volume", "create", "mine", "other", "mine").stdout == "mine\nother\nmine\n"
    [path] = [each["path"] for each in json.loads(world.minit("volume", "ls", "--format=json").stdout)][:1]
    (Path(path) / "own").write_text("own\n")
    words = ("--volume=mine:/many", "--volume=other:/srv/db", "--volume=none:/nowhere")
    assert run(world, "busybox ls /many /nowhere; busybox rm /srv/db/*", *words) == ["/many:", "own", "", "/nowhere:"]
    assert run(world, "busybox ls /srv/db", "--volume=other:/srv/db") == []
    assert world.minit("volume", "prune", "--dry-run").stdout == ""
    world.minit("volume", "create", "unused")
    assert world.minit("volume", "prune", "--dry-run").stdout == "unused\n"
    assert "--force" in world.minit("volume", "prune", code=254).stderr
    assert world.minit("volume", "prune", "--force").stdout == "unused\n"
    assert sorted(listed(world)) == ["mine", "none", "other"]


@pytest.mark.host_users
@pytest.mark.host_root("pods of a user have no other ids than the user's")
def test_with_users_of_the_pod_s_own(world: World) -> None:
    """Pods with different ids see one volume with the owners that the image has."""
    for _ in range(2):
        assert run(world, STATUS, "--no-overlay", "--private-users", "--volume=db:/data") == [
            *("2770 5 0", "640 0 0", "/etc/shadow", "of the image")
        ]
    assert run(world, STATUS, "--volume=db:/data")[0] == "2770 5 0"


def test_killed_while_it_is_filled(world: World) -> None:
    """A killed start leaves no half of an image in a volume; the next one fills it and removes the remains."""
    world.minit("fetch", "--quiet", world.app)
    world.prepare("--quiet", f"--stage1-path={world.stage1}", world.app)
    scratch = world.data / "minit/volumes/.tmp"
    process = subprocess.Popen(
        world.command("prepare", "--quiet", f"--stage1-path={world.stage1}", "--volume=many:/many", world.app),
        env=world.environment(),
        stdout=subprocess.DEVNULL,
    )
    wait_for(lambda: process.poll() is not None or any(scratch.glob("*/data/*")), "a file in the scratch directory")
    process.send_signal(signal.SIGKILL)
    process.wait()
    data = world.data / "minit/volumes/many/data"
    assert len(os.listdir(data)) in (0, MANY)
    assert run(world, "busybox ls /many | busybox wc -l", "--volume=many:/many") == [str(MANY)]
    assert list(scratch.iterdir()) == []


def test_a_removal_during_a_preparation(world: World) -> None:
    """A removal waits for the pods that are being made, and then finds those that have the volume."""
    world.prepare("--quiet", "--volume=v:/data", world.app)
    world.minit("gc", "--expire-prepared=0s")
    with key_lock(world.data / "locks", "prepareLock", exclusive=False):
        removal = subprocess.Popen(
            world.command("volume", "rm", "v"), env=world.environment(), stderr=subprocess.PIPE, text=True
        )
        wait_for(lambda: removal.poll() is not None or is_waiting(removal.pid), "the removal to wait")
        uuid = world.prepare("--quiet", "--volume=v:/data", world.app)
    assert removal.communicate()[1].startswith(f'rm: volume "v" is in use: remove these pods first: {uuid}\n')
    assert (world.data / "minit/volumes/v/data/seed").exists()
    world.minit("rm", uuid)
    assert world.succeeds("volume", "rm", "v")


def is_waiting(pid: int) -> bool:
    """Return whether a process waits for a lock."""
    return any("->" in line and line.split()[5] == str(pid) for line in Path("/proc/locks").read_text().splitlines())


def test_in_a_pod_whose_apps_come_and_go(world: World) -> None:
    """An app that is added mounts a volume of the pod, or of its own, filled like any other."""
    uuid = world.minit(
        "app", "sandbox", "--detach", f"--stage1-path={world.stage1}", "--net=none", "--volume=v,kind=named"
    ).stdout.strip()
    try:
        own = "--mnt-volume=name=w,kind=named,source=own,target=/srv/db"
        world.minit("app", "add", uuid, world.app, "--name=a", "--mount=volume=v,target=/data", own)
        assert listed(world) == {"own": [uuid], "v": [uuid]}
        for name in ("own", "v"):
            assert (world.data / f"minit/volumes/{name}/data/seed").read_text() == "of the image\n"
    finally:
        world.minit("stop", uuid)
        world.minit("status", "--wait", uuid)
