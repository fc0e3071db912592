"""Pods with a user namespace, prepared by `minit` and by a real `rkt`."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from minit.base.idrange import IdRange, parse_id_range
from tests import tars
from tests.rkt.conftest import NEEDS_RKT
from tests.support.commands import Stage0
from tests.support.stage0_world import BUSYBOX
from tests.support.waiting import wait_for

RKT = ["rkt"]
MINIT = [sys.executable, "-m", "minit"]

IMAGE = (
    tars.directory("rootfs/bin"),
    tars.file("rootfs/bin/su", b"su", mode=0o6755, uid=0, gid=42),
    tars.hard_link("rootfs/bin/other", "rootfs/bin/su", mode=0o6755, uid=0, gid=42),
    tars.directory("rootfs/tmp", 0o1777, uid=65535, gid=65534, mtime=5),
    tars.symlink("rootfs/tmp/link", "/etc/passwd", uid=7, gid=8),
    tars.header("rootfs/null", b"3", device=(1, 3), mode=0o666, gid=9),
    tars.header("rootfs/fifo", b"6", mode=0o622, uid=10),
    tars.file("rootfs/unreadable", b"x" * 70_000, mode=0, uid=1000, gid=1000, mtime=7),
)


def listing(pod: Path, ids: IdRange) -> dict[str, tuple[object, ...]]:
    """Return type, mode, owners as those of the pod, device, target, data and time of all that does not vary."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted([pod, *pod.rglob("*")]):
        status = path.lstat()
        owners: tuple[object, ...] = (status.st_uid, status.st_gid)
        if owners != (0, 0):
            owners = (f"pod's {ids.from_host(status.st_uid)}", f"pod's {ids.from_host(status.st_gid)}")
        name = str(path.relative_to(pod))
        data = path.read_bytes() if stat.S_ISREG(status.st_mode) else os.readlink(path) if path.is_symlink() else None
        if "rootfs" not in name or name.endswith(("stage2", "stage2/app")):
            # What a command makes itself: when it did varies, and the form of its JSON.
            found[name] = (status.st_mode, owners, None if name.endswith(("manifest", "pod", "prepared")) else data)
        else:
            found[name] = (status.st_mode, owners, status.st_rdev, status.st_mtime, data)
    return found


@NEEDS_RKT
def test_a_prepared_pod_is_the_same(tmp_path: Path, stage1_image: Path) -> None:
    """Names, modes, owners, times and data are those of a pod that rkt made, but for which ids of the host they are."""
    image = tars.write_image(
        tmp_path / "app.aci", *IMAGE, manifest_bytes=tars.manifest(app={"exec": ["/bin/su"], "user": "0", "group": "0"})
    )
    found = []
    for words in (RKT, MINIT):
        root = tmp_path / words[0].rpartition("/")[2]
        root.mkdir()
        command = Stage0(words, root, stage1_image)
        result = command.call("prepare", command.stage1_flag, "--private-users", "--no-overlay", image)
        assert result.returncode == 0, result.stderr
        pod = command.data / "pods/prepared" / result.stdout.split()[-1]
        ids = parse_id_range((pod / "private-users-prepared").read_text())
        assert ids is not None and ids.count == 65536
        found.append(listing(pod, ids))
    of_rkt, of_minit = found
    assert of_minit.keys() == of_rkt.keys()
    assert {name: (of_rkt[name], of_minit[name]) for name in of_rkt if of_rkt[name] != of_minit[name]} == {}


def test_a_pod_runs(stage0: Stage0) -> None:
    """Root of the pod is the range's first id on the host, for the app and for its files; `rm` removes them."""
    script = "id -u; cat /proc/self/uid_map /proc/self/gid_map; stat -c %u:%g / /proc/1/root/ /bin/sh; echo x > /made"
    first, uid_map, gid_map, *owners = stage0.shell(
        script, "--private-users", "--no-overlay", app=("--caps-retain=CAP_SYS_PTRACE",)
    ).splitlines()
    assert first == "0"
    assert owners == ["0:0"] * 3
    pod = stage0.data / "pods/run" / stage0.uuid
    ids = parse_id_range((pod / "private-users-prepared").read_text())
    assert ids is not None
    assert uid_map.split() == gid_map.split() == ["0", str(ids.shift), "65536"]
    made = (pod / "stage1/rootfs/opt/stage2/busybox/rootfs/made").lstat()
    assert (made.st_uid, made.st_gid) == (ids.shift, ids.shift)
    assert "app-busybox=0" in stage0.call("status", stage0.uuid).stdout
    assert stage0.call("rm", stage0.uuid).returncode == 0
    assert not pod.exists()


def test_a_prepared_pod_runs(stage0: Stage0) -> None:
    """The range of `prepare` is that of `run-prepared`; users, groups and an empty volume are the pod's."""
    image = stage0.image(user="/bin", group="7")
    words = (stage0.stage1_flag, "--private-users", "--no-overlay", "--volume=tmp,kind=empty,uid=5,mode=0700")
    script = "id -u; id -G; stat -c %u /cache /bin"
    app = ("--mount=volume=tmp,target=/cache", "--supplementary-gids=8,9", "--exec=/bin/sh", "--", "-c", script)
    uuid = stage0.call("prepare", *words, image, *app).stdout.split()[-1]
    record = (stage0.data / "pods/prepared" / uuid / "private-users-prepared").read_text()
    ids = parse_id_range(record)
    assert ids is not None
    result = stage0.call("run-prepared", "--net=none", uuid)
    assert (result.returncode, result.stdout.count("\n")) == (0, 4), result.stderr
    assert [line.partition("]: ")[2] for line in result.stdout.splitlines()] == ["0", "7 8 9", "5", "0"]
    assert (stage0.data / "pods/run" / uuid / "sharedVolumes/tmp").stat().st_uid == ids.shift + 5


def test_an_idmapped_volume(stage0: Stage0, tmp_path: Path) -> None:
    """The annotation of minit can be given on either command line."""
    (tmp_path / "shared").mkdir()
    os.chown(tmp_path / "shared", 1000, 1000)
    output = stage0.shell(
        "stat -c %u:%g /shared; touch /shared/made",
        *("--private-users", "--no-overlay", f"--volume=shared,kind=host,source={tmp_path}/shared"),
        app=("--mount=volume=shared,target=/shared", "--annotation=minit/idmap=shared"),
    )
    assert output == "1000:1000\n"
    assert (tmp_path / "shared/made").stat().st_uid == 0


def test_an_overlay(stage0: Stage0, tmp_path: Path) -> None:
    """rkt refuses it; minit's files are the pod's there, and their owners right in differences, exports and copies."""
    image = tars.write_image(
        tmp_path / "owned.aci",
        tars.directory("rootfs/bin"),
        tars.file("rootfs/bin/sh", BUSYBOX.read_bytes(), mode=0o755),
        tars.directory("rootfs/home", uid=1000, gid=50),
        *(tars.file(f"rootfs/home/{name}", b"x", mode=0o640, uid=1000, gid=50) for name in ("kept", "longer", "given")),
        tars.file("rootfs/home/gone", uid=1000),
        manifest_bytes=tars.manifest(app={"exec": ["/bin/sh"], "user": "0", "group": "0"}),
    )
    script = (
        "cd /home; stat -c %u:%g . kept; echo more >> longer; chown 7:8 given; rm gone; echo new > new; chown 9 new;"
        " stat -c %u:%g longer given new; cat /proc/self/uid_map"
    )
    result = stage0.call(*stage0.run_words("--private-users", image, "--exec=/bin/sh", "--", "-c", script))
    if stage0.is_rkt:
        assert result.returncode == 254
        assert "cannot use both overlay and user namespace: not implemented yet. (Try --no-overlay)" in result.stderr
        assert stage0.call("list", "--no-legend").stdout.count("running") == 0
        return
    assert result.returncode == 0, result.stderr
    *owners, uid_map = [line.partition("]: ")[2] for line in result.stdout.splitlines()]
    assert owners == ["1000:50", "1000:50", "1000:50", "7:8", "9:0"]
    pod = stage0.data / "pods/run" / stage0.uuid
    ids = parse_id_range((pod / "private-users-prepared").read_text())
    assert ids is not None and uid_map.split() == ["0", str(ids.shift), "65536"]
    [tree] = [path.parent for path in (stage0.data / "cas/tree").glob("*/rootfs/home")]
    assert {path.name: (path.stat().st_uid, path.stat().st_gid) for path in (tree / "home").iterdir()} == {
        **dict.fromkeys(("kept", "longer", "given"), (1000, 50)),
        "gone": (1000, 0),
    }
    for layers in (pod / "overlay").iterdir():
        assert {path.name for path in layers.iterdir()} == {"upper", "work"}
    changes = ["C /home", "D /home/gone", "C /home/given", "C /home/longer", "A /home/new"]
    lines = stage0.call("diff", stage0.uuid).stdout.splitlines()
    assert sorted(line for line in lines if "/home" in line) == sorted(changes)
    assert stage0.call("export", stage0.uuid, tmp_path / "made.aci").returncode == 0
    with tarfile.open(tmp_path / "made.aci") as made:
        found = {member.name: (member.uid, member.gid) for member in made if member.name.startswith("rootfs/home/")}
    assert found == {
        **{f"rootfs/home/{name}": (1000, 50) for name in ("kept", "longer")},
        "rootfs/home/given": (7, 8),
        "rootfs/home/new": (9, 0),
    }
    assert stage0.call("cp", "-a", f"{stage0.uuid}:/home", tmp_path / "copy").returncode == 0
    assert (tmp_path / "copy/given").stat().st_uid == 7
    for layers in (pod / "overlay").iterdir():
        assert {path.name for path in layers.iterdir()} == {"upper", "work"}
    assert stage0.call("start", stage0.uuid).returncode == 0
    wait_for(lambda: stage0.call("logs", stage0.uuid).stdout.count("9:0\n") == 2, "the app to see its files again")
    assert stage0.call("stop", "--wait", stage0.uuid).returncode == 0
    assert stage0.call("rm", stage0.uuid).returncode == 0
    assert not pod.exists()


@NEEDS_RKT
@pytest.mark.parametrize("first, second", [(MINIT, RKT), (RKT, MINIT)], ids=["minit-rkt", "rkt-minit"])
def test_each_runs_what_the_other_prepared(
    tmp_path: Path, stage1_image: Path, first: list[str], second: list[str]
) -> None:
    """One prepares a pod, the other runs it with its range, and removes it."""
    one, other = (Stage0(words, tmp_path, stage1_image) for words in (first, second))
    words = (one.stage1_flag, "--private-users", "--no-overlay", one.image(), "--exec=/bin/sh", "--")
    uuid = one.call("prepare", *words, "-c", "cat /proc/self/uid_map").stdout.split()[-1]
    ids = parse_id_range((one.data / "pods/prepared" / uuid / "private-users-prepared").read_text())
    result = other.call("run-prepared", "--net=none", uuid)
    assert result.returncode == 0, result.stderr
    assert ids is not None and result.stdout.split()[-3:] == ["0", str(ids.shift), "65536"]
    assert other.call("rm", uuid).returncode == 0
    assert not list((one.data / "pods").glob("*/*"))


@pytest.mark.parametrize("overlay", [(), ("--no-overlay",)], ids=["overlay", "copy"])
def test_file_capabilities(stage0: Stage0, tmp_path: Path, overlay: tuple[str, ...]) -> None:
    """They count in the pod; the file as it lies on the host has none there, in a pod of minit's."""
    if stage0.is_rkt and not overlay:
        pytest.skip("rkt has no overlays with users of a pod's own")
    box = b"\x01\x00\x00\x02\x00\x20\x00\x00" + bytes(12)  # cap_net_raw=ep, linux/capability.h
    image = tars.write_image(
        tmp_path / "capable.aci",
        tars.directory("rootfs/bin"),
        tars.pax({"SCHILY.xattr.security.capability": box})
        + tars.file("rootfs/bin/cat", BUSYBOX.read_bytes(), mode=0o755),
        manifest_bytes=tars.manifest(app={"exec": ["/bin/cat", "/proc/self/status"], "user": "1000", "group": "1000"}),
    )
    # With a filter there are no new privileges for an app that is not root.
    words = stage0.run_words("--private-users", *overlay, image, "--seccomp=mode=retain,@appc.io/all")
    result = stage0.call(*words)
    assert result.returncode == 0, result.stderr
    assert "CapEff:\t0000000000002000" in result.stdout
    program = stage0.data / "pods/run" / stage0.uuid / "stage1/rootfs/opt/stage2/app/rootfs/bin/cat"
    shown = stage0.data.parent / "cat"
    shown.touch()
    subprocess.run(["mount", "--bind", program, shown], check=True)
    on_host = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", shown, "/proc/self/status"], capture_output=True, text=True
    )
    subprocess.run(["umount", shown], check=True)
    assert on_host.returncode == 0, on_host.stderr
    assert ("CapEff:\t0000000000002000" in on_host.stdout) == stage0.is_rkt
