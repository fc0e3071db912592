"""Images, trees and pods that pass between minit and a real rkt, where one is on PATH."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tars

pytestmark = pytest.mark.skipif(shutil.which("rkt") is None, reason="no rkt binary on PATH")


def entries() -> list[bytes]:
    """One of every kind of file, with names and modes that are hard to write as JSON."""
    return [
        tars.directory("rootfs/bin"),
        tars.file("rootfs/bin/x", b"hello", mode=0o4755, uid=5, gid=6),
        tars.hard_link("rootfs/bin/y", "rootfs/bin/x"),
        tars.symlink("rootfs/bin/l", 'x<&>"'),
        tars.directory("rootfs/tmp", 0o1777),
        tars.header("rootfs/null", b"3", device=(1, 3), mode=0o666),
        tars.header("rootfs/disk", b"4", device=(259, 300), mode=0o600),
        tars.header("rootfs/fifo", b"6", gid=7),
        tars.pax({"SCHILY.xattr.user.x": "1"}) + tars.file("rootfs/attributes", b"x"),
        tars.file(b"rootfs/\xff\xe2\x82", b"no utf-8"),
        tars.file("rootfs/\b\n\u2028\x7f é".encode(), b"odd"),
        tars.file("rootfs/big", bytes(3 << 20)),
    ]


def rkt(data: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run rkt."""
    words = ["rkt", "--insecure-options=image", f"--dir={data}", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=100, check=True)


def minit(data: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run minit."""
    words = [sys.executable, "-m", "minit", f"--dir={data}", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=100, check=True)


def test_both_verify_the_trees_of_either(tmp_path: Path) -> None:
    """`rkt image verify` finds nothing wrong with minit's tree, nor minit with rkt's."""
    image = tars.write_image(tmp_path / "x.aci", *entries())
    for first, second in ((minit, rkt), (rkt, minit)):
        data = tmp_path / first.__name__
        image_id = first(data, "fetch", "--full", image).stdout.strip()
        [tree] = (data / "cas/tree").iterdir()
        inode = (tree / "rootfs").stat().st_ino
        assert second(data, "fetch", "--full", image).stdout.strip() == image_id
        assert (tree / "rootfs").stat().st_ino == inode  # not rendered again
        assert "successfully verified checksum" in second(data, "image", "verify", image_id).stdout
        (tree / "rootfs/bin/x").write_bytes(b"jello")
        assert "rebuilding" in second(data, "image", "verify", image_id).stdout
        assert "successfully verified checksum" in first(data, "image", "verify", image_id).stdout
