"""Pods with a user namespace, prepared by `minit` and by a real `rkt`."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from minit.idrange import IdRange, parse_id_range
from tests import tars
from tests.rkt.conftest import NEEDS_RKT
from tests.support.commands import Stage0

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
        tmp_path / "app.aci",
        *IMAGE,
        manifest_bytes=tars.manifest(app={"exec": ["/bin/su"], "user": "0", "group": "0"}),
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
