"""Groups of named volumes: what of a volume is given to a group, and what is left alone."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from minit.base.errors import StoreError
from minit.kubernetes.volumes import give_to_group
from minit.stage0.volumes import create_volume

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="changes owners, which needs root")

GROUP = 4444


def look(path: Path) -> tuple[int, int, int]:
    """Return user, group and mode of what is at a path, be it a link."""
    status = path.lstat()
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """The directory of an empty volume."""
    create_volume(tmp_path, "db")
    return tmp_path / "minit/volumes/db/data"


def give(top: Path, *, if_root_differs: bool = False) -> None:
    """Give the volume to the group."""
    give_to_group(top.parents[3], "db", GROUP, if_root_differs=if_root_differs)


def test_files_and_directories(top: Path) -> None:
    """They are the group's, which may write them; users and other bits stay, programs lose those of their owners."""
    inner = top / "a/b"
    inner.mkdir(parents=True, mode=0o700)
    for name, mode in (("plain", 0o604), ("program", 0o6755), ("mine", 0o640)):
        (inner / name).touch()
        os.chown(inner / name, 7, GROUP if name == "mine" else 8)
        (inner / name).chmod(mode)
    os.mkfifo(inner / "fifo", 0o600)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(inner / "s"))
    (inner / "s").chmod(0o600)
    give(top)
    assert look(top) == (0, GROUP, 0o2775)
    assert look(top / "a") == (0, GROUP, 0o2775)
    assert look(inner) == (0, GROUP, 0o2770)
    assert look(inner / "plain") == (7, GROUP, 0o664)
    assert look(inner / "program") == (7, GROUP, 0o775)
    assert look(inner / "mine") == (7, GROUP, 0o660)
    assert look(inner / "fifo") == look(inner / "s") == (0, GROUP, 0o660)


def test_nothing_outside_is_touched(top: Path, tmp_path: Path) -> None:
    """Neither by a link, nor on what is mounted there; nor is a device."""
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True, mode=0o700)
    (outside / "file").touch(0o600)
    before = [look(path) for path in (outside, outside / "inner", outside / "file")]
    (top / "link").symlink_to(outside / "file")
    (top / "way").symlink_to(outside)
    os.mknod(top / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    for name, source in (("mounted", outside), ("file", outside / "file")):
        (top / name).mkdir() if source is outside else (top / name).touch()
        subprocess.run(["mount", "--bind", str(source), str(top / name)], check=True)
    try:
        give(top)
    finally:
        for name in ("mounted", "file"):
            subprocess.run(["umount", str(top / name)], check=True)
    assert [look(path) for path in (outside, outside / "inner", outside / "file")] == before
    assert [look(top / name)[1] for name in ("link", "way", "null")] == [0, 0, 0]
    assert look(top / "null")[2] == 0o600
    assert look(top)[1] == GROUP


def test_a_directory_that_is_so_already(top: Path) -> None:
    """With the policy for that only the uppermost one is looked at."""
    (top / "file").touch(0o600)
    give(top, if_root_differs=True)
    assert look(top / "file") == (0, GROUP, 0o660)
    (top / "file").chmod(0o600)
    give(top, if_root_differs=True)
    assert look(top / "file") == (0, GROUP, 0o600)
    give(top)
    assert look(top / "file") == (0, GROUP, 0o660)
    top.chmod(0o755)
    (top / "file").chmod(0o600)
    give(top, if_root_differs=True)
    assert look(top / "file") == (0, GROUP, 0o660)


def test_directories_in_each_other(top: Path) -> None:
    """As many as a path can name, and no descriptor is held for them."""
    directory, fds = os.open(top, os.O_RDONLY), len(os.listdir("/proc/self/fd"))
    for _ in range(3000):
        os.mkdir("d", 0o700, dir_fd=directory)
        inner = os.open("d", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = inner
    give(top)
    assert len(os.listdir("/proc/self/fd")) == fds
    os.close(directory)
    assert look(Path(f"{top}{'/d' * 1000}")) == (0, GROUP, 0o2770)
    # Python's own functions do not get so deep.
    subprocess.run(["rm", "-r", str(top / "d")], check=True)


def test_what_cannot_be_changed(tmp_path: Path) -> None:
    """A volume that is not there is an error with its name."""
    with pytest.raises(StoreError, match='volume "db"'):
        give_to_group(tmp_path, "db", GROUP, if_root_differs=False)
