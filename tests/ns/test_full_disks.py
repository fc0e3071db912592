"""A full file system is named by whoever meets it, whichever of those that a data directory may consist of it is."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minit.linux import syscalls
from tests.support.stage0_world import World

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, which needs root")

FULL = "no space left on device"
OTHER = f"{FULL}: free some on the file system at"


@contextmanager
def small_disk(path: Path, kibibytes: int) -> Iterator[Path]:
    """Mount a file system of a few pages on a directory, which is made."""
    path.mkdir(parents=True, exist_ok=True)
    syscalls.mount("tmpfs", str(path), "tmpfs", 0, f"size={kibibytes}k")
    try:
        yield path
    finally:
        syscalls.umount2(str(path), syscalls.MNT_DETACH)


def last_line(result: subprocess.CompletedProcess[str]) -> str:
    """Return the line with which a command failed."""
    return result.stderr.splitlines()[-1]


def test_images_that_are_on_a_disk_of_their_own(world: World) -> None:
    """Imported images and expanded archives are on the file system of minit's own store."""
    archive = world.root / "archive.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add("/usr/bin/busybox", "layer.tar")
    with small_disk(world.data / "minit", 256) as disk:
        line = last_line(world.minit("fetch", world.app, code=254))
        assert line == f"fetch: import {world.app}: {OTHER} {disk}, or use another one (--dir)"
        line = last_line(world.minit("fetch", f"docker-archive:{archive}", code=254))
        assert line == f"fetch: import docker-archive:{archive}: {OTHER} {disk}, or use another one (--dir)"


def test_trees_that_are_on_a_disk_of_their_own(world: World) -> None:
    """Rendered trees are on the file system of the tree store."""
    world.minit("fetch", world.app, world.stage1)
    with small_disk(world.data / "cas", 256) as disk:
        line = last_line(world.minit("prepare", f"--stage1-path={world.stage1}", world.app, code=254))
        assert line == f"prepare: extract image example.com/busybox: {OTHER} {disk}, or use another one"


def test_pods_that_are_on_a_disk_of_their_own(world: World) -> None:
    """Prepared pods are on the file system of the pods."""
    world.minit("rm", world.prepare())
    with small_disk(world.data / "pods", 4) as disk:
        line = last_line(world.minit("prepare", f"--stage1-path={world.stage1}", world.app, code=254))
        assert line == f"prepare: prepare pod: {OTHER} {disk}, or use another one (--dir)"


def test_outputs(world: World) -> None:
    """Output for the user is at the place he named, also by a link, and --dir does not change that."""
    image = world.minit("fetch", "--full", world.app).stdout.strip()
    with small_disk(world.root / "disk", 64) as disk:
        link = world.root / "link"
        link.symlink_to(disk)
        for line in (("image", "export", image, f"{link}/x.aci"), ("image", "render", image, f"{link}/x")):
            said = last_line(world.minit(*line, code=254))
            assert said.endswith(
                (f": {OTHER} {disk}, or write to another one", f": {OTHER} {disk}, or use another one")
            )


def test_the_file_for_the_uuid(world: World) -> None:
    """It is named, and not what the pod is written to."""
    with small_disk(world.root / "disk", 4) as disk:
        (disk / "ballast").write_bytes(bytes(4096))
        words = (f"--stage1-path={world.stage1}", f"--uuid-file-save={disk}/uuid", world.app)
        line = last_line(world.minit("run", *words, code=254))
        assert line == f"run: cannot save the UUID to {disk}/uuid: {FULL}"
