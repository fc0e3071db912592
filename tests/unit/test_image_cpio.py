"""Initial file systems, read back by another program."""

from __future__ import annotations

import io
import os
import stat
import subprocess
from pathlib import Path

from minit.image.cpio import write_cpio
from tests.support.pods import BUSYBOX


def make_tree(top: Path) -> Path:
    """Make a directory with one of each kind."""
    for name in ("dev", "etc/empty"):
        (top / name).mkdir(parents=True)
    (top / "etc/text").write_text("hello\n")
    (top / "etc/text").chmod(0o4640)
    (top / "etc/odd").write_bytes(b"12345")
    os.link(top / "etc/odd", top / "etc/zweit")
    (top / "link").symlink_to("etc/text")
    os.mkfifo(top / "fifo", 0o600)
    for path in (top, *sorted(top.rglob("*"))):
        os.utime(path, (1_000_000, 1_000_000), follow_symlinks=False)
    return top


def archive_of(tree: Path) -> bytes:
    """Return the archive of a tree."""
    output = io.BytesIO()
    write_cpio(tree, output)
    return output.getvalue()


def test_what_is_packed_is_unpacked(tmp_path: Path) -> None:
    """Another cpio finds every entry, with kinds, modes, contents, links and times, and the node of the console."""
    tree = make_tree(tmp_path / "tree")
    data = archive_of(tree)
    names = sorted(str(path.relative_to(tree)) for path in tree.rglob("*"))
    target = tmp_path / "out"
    target.mkdir()
    subprocess.run([BUSYBOX, "cpio", "-id"], input=data, cwd=target, capture_output=True, check=True)
    for name in names:
        old, new = (tree / name).lstat(), (target / name).lstat()
        assert old.st_mode == new.st_mode, name
        if not os.path.isdir(tree / name):
            assert old.st_size == new.st_size, name
    console = (target / "dev/console").lstat()
    assert stat.S_ISCHR(console.st_mode) and console.st_rdev == os.makedev(5, 1)
    assert (target / "etc/zweit").read_bytes() == b"12345"
    assert (target / "etc/zweit").samefile(target / "etc/odd")
    assert os.readlink(target / "link") == "etc/text"


def test_the_same_tree_is_the_same_archive(tmp_path: Path) -> None:
    """Neither inode numbers nor the order of a directory are in it."""
    assert archive_of(make_tree(tmp_path / "one")) == archive_of(make_tree(tmp_path / "two"))
