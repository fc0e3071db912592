"""`minit export`: what an app left behind, as an image."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import shutil
import socket
import stat
import struct
import subprocess
import tarfile
from pathlib import Path

import pytest

from minit.manifest.image import parse_image_manifest
from minit.stage0.images.treestore import tree_hash
from tests import tars
from tests.support.incommand import Command, command_on
from tests.support.stage0_world import World, image_id, write_app

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

# An effective and permitted CAP_NET_RAW, revision 2 and revision 3 with the root of a namespace, linux/capability.h.
CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)
SHIFT = 1 << 20


@pytest.fixture
def minit(world: World, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, on that directory."""
    return command_on(world.data, capsys)


def run(world: World, *arguments: object) -> tuple[str, Path]:
    """Run a pod to its end; return its UUID and where the root filesystem of its app is."""
    before = set(world.pods("run"))
    world.minit("run", f"--stage1-path={world.stage1}", "--net=none", *(arguments or (world.app,)))
    [uuid] = set(world.pods("run")) - before
    return uuid, world.pod_path("run", uuid) / "stage1/rootfs/opt/stage2/busybox/rootfs"


def change(root: Path) -> None:
    """Do to a root filesystem what apps do."""
    (root / "bin/sh").unlink()
    shutil.move(root / "etc", root / "etc.old")  # overlayfs does not rename it
    (root / "etc").mkdir(mode=0o700)
    (root / "etc/new").write_bytes(b"new")
    os.chown(root / "etc/new", 5, 6)
    (root / "etc/new").chmod(0o4750)
    os.utime(root / "etc/new", ns=(1, 1_000_000_000_123_456_789))
    os.link(root / "etc/new", root / "second")
    os.setxattr(root / "etc/new", "user.x", b"1\0\xff")
    (root / "capable").write_bytes(b"")
    os.setxattr(root / "capable", "security.capability", CAPABILITY)
    os.setxattr(root / "capable", "trusted.x", b"not kept")
    (root / "link").symlink_to("/etc/passwd")
    os.mkfifo(root / "fifo", 0o640)
    os.mknod(root / "disk", 0o600 | stat.S_IFBLK, os.makedev(259, 300))
    (root / os.fsdecode(b"\xff odd\n")).write_bytes(b"odd")
    (root / ("n" * 200)).write_bytes(b"long")
    with open(root / "sparse", "wb") as file:
        file.truncate(100 << 20)
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(root, os.O_PATH)
        listener.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)


def check(world: World, minit: Command, exported: Path) -> None:
    """The exported image can be imported, and renders to what `change` made."""
    minit("fetch", exported)
    out = world.root / "out"
    shutil.rmtree(out, ignore_errors=True)
    name = json.loads(minit("image", "list", "--format=json", "--sort=importtime", "--order=desc").stdout)[0]["id"]
    minit("image", "render", "--rootfs-only", name, out)
    entries = {os.fsencode(entry) for entry in os.listdir(out)}
    assert entries == {
        *(
            b"bin",
            b"etc",
            b"etc.old",
            b"second",
            b"capable",
            b"link",
            b"fifo",
            b"disk",
            b"\xff odd\n",
            b"n" * 200,
            b"sparse",
        )
    }
    assert os.listdir(out / "bin") == ["busybox"] and os.listdir(out / "etc") == ["new"]
    assert (out / "etc.old/mtab").is_symlink()
    status = (out / "etc/new").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777, status.st_nlink) == (5, 6, 0o4750, 2)
    assert status.st_mtime_ns == 1_000_000_000_123_456_789
    assert (out / "second").stat().st_ino == status.st_ino
    assert os.getxattr(out / "etc/new", "user.x") == b"1\0\xff"
    assert [os.getxattr(out / "capable", key) for key in os.listxattr(out / "capable")] == [CAPABILITY]
    assert os.readlink(out / "link") == "/etc/passwd"
    assert stat.S_ISFIFO((out / "fifo").stat().st_mode)
    assert (out / "disk").stat().st_rdev == os.makedev(259, 300)
    assert (out / "sparse").stat().st_size == 100 << 20


@pytest.mark.parametrize("flags", [[], ["--no-overlay"]], ids=["overlay", "flat"])
def test_what_an_app_left_is_an_image(world: World, minit: Command, flags: list[str]) -> None:
    """Everything but sockets comes back as it was, removed files stay away, the image's manifest comes last."""
    uuid, root = run(world, *flags, world.app)
    change(root)
    exported = world.root / "x.aci"
    mounts = world.mounts()
    assert minit("export", "--quiet", uuid[:8], exported).stderr == ""
    assert world.mounts() == mounts
    assert stat.S_IMODE(exported.stat().st_mode) == 0o644
    with tarfile.open(exported) as tar:
        names = tar.getnames()
        manifest = tar.extractfile("manifest")
        assert manifest is not None
        assert manifest.read() == (world.pod_path("run", uuid) / "appsinfo/busybox/manifest").read_bytes()
    assert (
        names[0] == "rootfs"
        and names[-1] == "manifest"
        and names[:-1] == sorted(names[:-1], key=lambda n: n.split("/"))
    )
    check(world, minit, exported)
    # As it was: the pod can be exported again after it was marked, and then collected.
    minit("gc", "--mark-only")
    again = world.root / "again.aci"
    minit("export", "--quiet", "--app=busybox", uuid, again)
    assert again.read_bytes() == exported.read_bytes()
    minit("rm", uuid)
    assert world.mounts() == []


def test_an_overlay_that_is_not_mounted_any_more(world: World, minit: Command) -> None:
    """After a reboot there are only the layers, which are enough."""
    uuid, root = run(world)
    change(root)
    world.clean_up()
    minit("export", "--quiet", uuid, world.root / "x.aci")
    check(world, minit, world.root / "x.aci")
    assert world.mounts() == []


def test_owners_of_private_users_are_shifted_back(world: World, minit: Command) -> None:
    """Owners and capabilities become the image's again; what belongs to nobody of the pod is left out, and said."""
    uuid, root = run(world, "--no-overlay", world.app)
    pod = world.pod_path("run", uuid)
    (pod / "private-users-prepared").write_text(f"{SHIFT}:65536")
    change(root)
    (root / "second").unlink()  # or it would be shifted twice
    for path in [root, *root.rglob("*")]:
        status = path.lstat()
        if path.name != "mtab":  # stage0's own, which is root's with private users too
            os.chown(path, status.st_uid + SHIFT, status.st_gid + SHIFT, follow_symlinks=False)
    (root / "etc/new").chmod(0o4750)
    os.setxattr(root / "capable", "security.capability", CAPABILITY_OF_NAMESPACE)
    os.link(root / "etc/new", root / "second")
    (root / "foreign").write_text("")
    os.chown(root / "foreign", 5, SHIFT)
    result = minit("export", "--quiet", uuid, world.root / "x.aci")
    assert (
        result.stderr == f"export: left out rootfs/foreign: its owner 5:{SHIFT} is none of the pod's ({SHIFT}:65536)\n"
    )
    os.utime(root / "etc/new", ns=(1, 1_000_000_000_123_456_789))
    minit("export", "--quiet", "--overwrite", uuid, world.root / "x.aci")
    check(world, minit, world.root / "x.aci")
    (pod / "private-users-prepared").write_text("nonsense")
    assert "holds no range of ids" in minit("export", "--quiet", uuid, world.root / "y.aci", code=254).stderr


def test_a_pod_with_private_users_comes_back_as_its_image(world: World, minit: Command) -> None:
    """Ids that were shifted for the pod are shifted back: the exported image renders like the first one."""
    image = tars.write_image(
        world.root / "busybox.aci",
        tars.file("rootfs/x", b"x", mode=0o4750, uid=5, gid=65535),
        tars.hard_link("rootfs/y", "rootfs/x"),
        tars.directory("rootfs/d", 0o2770, uid=65535),
        tars.symlink("rootfs/l", "x", uid=7),
        tars.header("rootfs/fifo", b"6", gid=9),
        tars.pax({"SCHILY.xattr.security.capability": CAPABILITY}) + tars.file("rootfs/capable", uid=8),
        manifest_bytes=tars.manifest("busybox", app={"exec": ["/x"], "user": "0", "group": "0"}),
    )
    uuid, root = run(world, "--private-users", "--no-overlay", image)
    assert (root / "x").stat().st_uid > 65535
    minit("export", "--quiet", uuid, world.root / "x.aci")
    hashes = set()
    for number, path in enumerate((image, world.root / "x.aci")):
        out = world.root / str(number)
        minit("image", "render", minit("fetch", "--quiet", "--full", path).stdout.strip(), out)
        assert os.getxattr(out / "rootfs/capable", "security.capability") == CAPABILITY
        hashes.add(tree_hash(out))
    assert len(hashes) == 1


CAPABILITY_OF_NAMESPACE = struct.pack("<6I", 0x03000001, 1 << 13, 0, 0, 0, SHIFT)


def test_an_image_that_depends_on_others_stands_alone(world: World, minit: Command) -> None:
    """The exported manifest has no dependencies and no path whitelist: all there is, is in the image."""
    write_app(world.app, name="example.com/lower")
    minit("fetch", world.app)
    upper = tars.write_image(
        world.root / "busybox.aci",
        manifest_bytes=tars.manifest(
            "example.com/busybox",
            app={"exec": ["/bin/sh"], "user": "0", "group": "0"},
            dependencies=[{"imageName": "example.com/lower"}],
            pathWhitelist=["/bin", "/bin/busybox", "/etc"],
        ),
    )
    uuid, root = run(world, upper)
    assert sorted(os.listdir(root)) == ["bin", "etc"] and os.listdir(root / "bin") == ["busybox"]
    (root / "bin/busybox").unlink()
    (root / "new").write_text("new")
    minit("export", "--quiet", uuid, world.root / "x.aci")
    with tarfile.open(world.root / "x.aci") as tar:
        file = tar.extractfile("manifest")
        assert file is not None
        manifest = parse_image_manifest(file.read(), "x.aci")
        assert {"rootfs/bin", "rootfs/new"} <= set(tar.getnames()) and "rootfs/bin/busybox" not in tar.getnames()
    assert (manifest.name, manifest.dependencies, manifest.path_whitelist) == ("example.com/busybox", (), ())
    assert manifest.app is not None and manifest.label("os") == "linux"


def test_what_cannot_be_exported(world: World, minit: Command) -> None:
    """Pods that did not end, apps that are not there, files that exist are refused, with nothing written."""
    output = world.root / "exported.aci"
    write_app(world.root / "other.aci", name="example.com/other")
    prepared = world.prepare()
    several, _ = run(world, world.app, world.root / "other.aci")
    flat, root = run(world, "--no-overlay", world.app)
    not_ended = "pod is not exited. Only exited pods can be exported"

    def refuse(reason: str, *words: object) -> None:
        assert reason in minit("export", "--quiet", *words, code=254).stderr
        assert not list(world.root.glob("*exported.aci*"))

    refuse("extension must be .aci (given out.tar)", flat, "out.tar")
    refuse(not_ended, prepared, output)
    with world.start() as running:
        refuse(not_ended, running.uuid, output)
    refuse("no matches found", "00000000", output)
    refuse(
        "pod contains multiple apps:\nexport: \tbusybox\nexport: \tother\nexport: specify app using", several, output
    )
    refuse("app none is not present in pod", "--app=none", several, output)
    refuse("--name=x:: the version is missing", "--name=x:", flat, output)
    refuse('--name=X: name: expected an ACIdentifier, got "X"', "--name=X", flat, output)
    (root / "mnt").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", root / "mnt"], check=True)
    refuse("pod has remaining mountpoints", flat, output)
    subprocess.run(["umount", root / "mnt"], check=True)
    refuse("no such file or directory", flat, world.root / "none/exported.aci")
    lock = os.open(world.pod_path("run", flat), os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # as somebody who deletes it
    refuse(not_ended, flat, output)
    os.close(lock)
    output.write_text("mine")
    assert "target file exists (try --overwrite)" in minit("export", "--quiet", flat, output, code=254).stderr
    assert output.read_text() == "mine"
    minit("export", "--quiet", "--overwrite", flat, output)
    assert gzip.decompress(output.read_bytes())
    minit("export", "--quiet", "--app=other", several, world.root / "other2.aci")
    assert image_id(output) and not list(world.root.glob(".*"))


def test_links_of_the_app_lead_nowhere(world: World, minit: Command) -> None:
    """A pod whose directories were replaced by links to the host's exports nothing of the host."""
    uuid, _ = run(world)
    pod = world.pod_path("run", uuid)
    tree = (pod / "appsinfo/busybox/treeStoreID").read_text()
    upper = pod / "overlay" / tree / "upper"
    world.clean_up()
    shutil.rmtree(upper / "busybox")
    (upper / "busybox").symlink_to("/etc")
    assert "upper/busybox: not a directory" in minit("export", "--quiet", uuid, world.root / "x.aci", code=254).stderr
    assert not (world.root / "x.aci").exists()


def test_holes_are_left_out(world: World, minit: Command) -> None:
    """A file that is a hole but for a few blocks is as small in the image, and the same for whoever unpacks it."""
    uuid, root = run(world)
    size_bytes, places = 1 << 28, (0, 1 << 25, (1 << 27) + 4096)
    with open(root / "large", "wb") as file:
        for place in places:
            file.seek(place)
            file.write(b"here" * 2048)
        file.truncate(size_bytes)
    os.link(root / "large", root / "second")
    (root / "empty").touch()
    os.truncate(root / "empty", size_bytes)
    with open(root / "ends", "wb") as file:
        file.seek(1 << 28)
        file.write(b"the end")
    exported = world.root / "holes.aci"
    minit("export", uuid, exported)
    with gzip.open(exported) as archive:
        assert archive.seek(0, os.SEEK_END) < 8 << 20
    unpacked = world.root / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "-xzf", exported, "-C", unpacked], check=True)
    minit("fetch", exported)
    name = json.loads(minit("image", "list", "--format=json", "--sort=importtime", "--order=desc").stdout)[0]["id"]
    minit("image", "render", "--rootfs-only", name, world.root / "rendered")
    for top in (unpacked / "rootfs", world.root / "rendered"):
        status = (top / "large").stat()
        assert (status.st_size, status.st_nlink) == (size_bytes, 2)
        assert status.st_blocks * 512 < 1 << 20
        assert (top / "empty").stat().st_size == size_bytes
        with open(top / "large", "rb") as file:
            for place in places:
                file.seek(place)
                assert file.read(8194) == b"here" * 2048 + bytes(2)
        with open(top / "ends", "rb") as file:
            file.seek((1 << 28) - 2)
            assert file.read() == bytes(2) + b"the end"


def make_chain(root: Path, names: list[str]) -> None:
    """Make directories within each other, whose path no system call takes, each with a file beside the next one."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for name in names:
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(os.open("zz", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
        os.close(fd)
        fd = below
    os.close(fd)


@pytest.mark.parametrize("overlay", [(), ("--no-overlay",)], ids=["overlay", "flat"])
def test_paths_that_no_system_call_takes(world: World, minit: Command, overlay: tuple[str, ...]) -> None:
    """Long paths and deep directories are exported, beside all else; what importing refuses, or is absurd, is said."""
    uuid, root = run(world, *overlay, world.app)
    long, deep, absurd = ["l" * 200] * 40, ["d"] * 1500, ["a" * 250] * 300
    for names in (long, deep, absurd):
        make_chain(root, names)
    result = minit("export", uuid, world.root / "deep.aci")
    with tarfile.open(world.root / "deep.aci") as archive:
        found = set(archive.getnames())
    for names in (long, deep):
        assert {"/".join(("rootfs", *names[:depth])) for depth in range(1, len(names) + 1)} <= found
        assert {"/".join(("rootfs", *names[:depth], "zz")) for depth in range(len(names))} <= found
    assert "rootfs/bin/busybox" in found and max(map(len, found)) <= 1 << 16
    assert result.stderr.count("minit fetch will refuse the image") == 1
    assert result.stderr.count("left out") == 1
    minit("rm", uuid)
