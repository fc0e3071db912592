"""The data directory on the filesystems people have: images, overlays where they work, and copies elsewhere."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from minit.linux import syscalls
from minit.stage0.pods.overlay import overlay_obstacle
from tests import tars
from tests.support.incommand import command_on
from tests.support.loopdevices import require_loop_devices
from tests.support.stage0_world import World

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts filesystems, which needs root")

_CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)
_SIZE = 320 << 20  # of a sparse file; mkfs.xfs takes no less


def _mount_image(kind: str, directory: Path, point: Path, flags: list[str]) -> None:
    if shutil.which(f"mkfs.{kind}") is None or kind not in Path("/proc/filesystems").read_text().split():
        pytest.skip(f"no mkfs.{kind}, or no {kind} in the kernel")
    require_loop_devices()
    image = directory / "image"
    with open(image, "wb") as file:
        file.truncate(_SIZE)
    subprocess.run([f"mkfs.{kind}", "-q", *flags, image], check=True)
    subprocess.run(["mount", "-o", "loop", image, point], check=True)


@pytest.fixture(params=["ext4", "xfs", "tmpfs", "overlay"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A data directory on a filesystem of its own."""
    point = tmp_path / request.param
    point.mkdir()
    if request.param == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", point], check=True)
    elif request.param == "overlay":
        for name in ("lower", "upper", "work"):
            (tmp_path / name).mkdir()
        options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, point], check=True)
    else:
        _mount_image(request.param, tmp_path, point, [])
    world = World(point)
    yield world
    world.clean_up()
    subprocess.run(["umount", point], check=True)


def test_a_pods_life(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Images are kept and rendered, pods prepared, run, exported and removed; where no overlay works, that is said."""
    minit = command_on(world.data, capsys)
    image = tars.write_image(
        world.root / "image.aci",
        tars.file("rootfs/x", b"hello", mode=0o4755, uid=5),
        tars.hard_link("rootfs/y", "rootfs/x"),
        tars.pax({"SCHILY.xattr.security.capability": _CAPABILITY}) + tars.file("rootfs/capable"),
        tars.header("rootfs/null", b"3", device=(1, 3)),
        manifest_bytes=tars.manifest("example.com/x"),
    )
    minit("fetch", image)
    assert "successfully" in minit("image", "verify", "example.com/x").stdout
    [tree] = (world.data / "cas/tree").glob("*/rootfs")
    assert os.getxattr(tree / "capable", "security.capability") == _CAPABILITY
    prepared = world.minit("prepare", f"--stage1-path={world.stage1}", world.app)
    uuid = prepared.stdout.strip()
    pod = world.pod_path("prepared", uuid)
    if world.root.name == "overlay":
        expected = (
            f"prepare: disabling overlay support: {world.data} is on overlay, where no overlay can be written to: "
        )
        assert prepared.stderr.startswith(expected)
        assert (pod / "stage1/rootfs/opt/stage2/busybox/rootfs/bin/busybox").exists()
    else:
        assert prepared.stderr == "" and (pod / "overlay-prepared").exists()
    (world.dump / "code").write_text("7")
    world.minit("run-prepared", uuid, code=7)
    rootfs = world.pod_path("run", uuid) / "stage1/rootfs/opt/stage2/busybox/rootfs"
    (rootfs / "new").write_text("new")
    (rootfs / "bin/sh").unlink()
    minit("export", "--quiet", uuid, world.root / "exported.aci")
    minit(
        "image",
        "render",
        "--rootfs-only",
        minit("fetch", "--full", "--quiet", world.root / "exported.aci").stdout.strip(),
        world.root / "out",
    )
    assert (world.root / "out/new").read_text() == "new" and os.listdir(world.root / "out/bin") == ["busybox"]
    minit("rm", uuid)
    minit("image", "gc", "--grace-period=0s")
    assert world.mounts() == [] and os.listdir(world.data / "cas/tree") == []


def test_overlays_on_a_filesystem_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filesystem of unknown kind is tried out, which leaves nothing there."""
    monkeypatch.setattr(syscalls, "filesystem_type", lambda path: 0)
    assert overlay_obstacle(tmp_path) is None
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("features", ["^filetype", "filetype"])
def test_types_of_entries(tmp_path: Path, features: str) -> None:
    """A filesystem that does not tell them is no place for overlays, whether there is an entry or not."""
    point = tmp_path / "point"
    (tmp_path / "point").mkdir()
    _mount_image("ext4", tmp_path, point, ["-O", features])
    try:
        for name in ("empty", "full/entry"):
            (point / name).mkdir(parents=True)
            directory = point / name.partition("/")[0]
            obstacle = f"the filesystem of {directory} does not tell the types of directory entries (d_type)"
            assert overlay_obstacle(directory) == (obstacle if features == "^filetype" else None)
            assert os.listdir(directory) == name.split("/")[1:]
    finally:
        subprocess.run(["umount", point], check=True)
