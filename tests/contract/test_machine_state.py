"""Files that outlive a boot: a directory for each on a disk, and files in apps' roots; and a machine without either."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from minit.linux import syscalls
from tests.support.disks import assert_clean, list_disk, make_disk, read_disk
from tests.support.firstprogram import NamespaceMachine
from tests.support.loopdevices import LoopDevice, require_loop_devices
from tests.support.pods import BUSYBOX, MakePod, shell
from tests.support.waiting import wait_for

_FILESYSTEM = """
[[filesystem]]
source = "/disk"
target = "/data"
type = "ext4"
options = "{options}"
required = false
"""
_STATE = '[state]\ndirectory = "/data/kept/minit"\n'

Boot = Callable[..., NamespaceMachine]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A file with an ext4, for a loop device."""
    require_loop_devices()
    return make_disk(tmp_path / "disk", "data", size_mib=8)


@pytest.fixture
def boot(make_pod: MakePod, disk: Path, tmp_path: Path) -> Boot:
    """A function that boots a machine of one app with the disk as its /disk, and returns it when it is off."""
    count = iter(range(100))

    def run(
        script: str,
        config: str,
        *,
        options: str = "",
        read_only: bool = False,
        mounts: Sequence[object] = (),
        checker: str = "",
        **pod_fields: object,
    ) -> NamespaceMachine:
        app = {**shell(script), "mounts": mounts}
        pod = make_pod({"one": app}, overlay=False, **pod_fields)
        place = tmp_path / f"boot-{next(count)}"
        place.mkdir()
        machine = NamespaceMachine(place, pod, config + _FILESYSTEM.format(options=options))
        if checker:
            (machine.root / "sbin").mkdir()
            shutil.copy2(BUSYBOX, machine.root / "bin/busybox")
            (machine.root / "sbin/fsck.ext4").write_text(checker)
            (machine.root / "sbin/fsck.ext4").chmod(0o755)
        with attached(disk) as device:
            os.mknod(machine.root / "disk", stat.S_IFBLK | 0o600, device)
            if read_only:
                syscalls.mount(
                    None, str(machine.root), None, syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY
                )
            with machine:
                return machine.wait()

    return run


@contextmanager
def attached(disk: Path) -> Iterator[int]:
    """A block device that is the file in the block, as stat(2) has its number."""
    device = LoopDevice()
    try:
        subprocess.run(["losetup", device.path, disk], check=True)
        yield os.stat(device.path).st_rdev
    finally:
        subprocess.run(["losetup", "--detach", device.path], check=True)
        # The mounts of a machine that was killed go a moment later.
        wait_for(lambda: _is_removed(device), "the end of a machine's mounts")


def _is_removed(device: LoopDevice) -> bool:
    try:
        device.remove()
    except OSError:
        return False
    return True


def said(machine: NamespaceMachine) -> list[str]:
    """Return what the app has said."""
    return [line.partition("]: ")[2] for line in machine.lines if line.startswith("one[")]


def test_every_boot_has_a_directory_of_its_own(boot: Boot, disk: Path) -> None:
    """Status, state, log and events of the last boots are on the disk, each for itself, and the oldest are gone."""
    for status in (1, 2, 3):
        machine = boot(f"echo boot {status}; exit {status}", f"{_STATE}kept_boots = 2\n")
        assert machine.ending == "off"
    assert list_disk(disk, "/kept/minit") == ["000002", "000003"]
    for status in (2, 3):
        place = f"/kept/minit/00000{status}"
        assert read_disk(disk, f"{place}/status/one") == b"%d\n" % status
        assert json.loads(read_disk(disk, f"{place}/minit/state/one.json"))["status"] == status
        assert read_disk(disk, f"{place}/minit/log/one.log").endswith(b" boot %d\n" % status)
        assert b'"event":"pod.ended"' in read_disk(disk, f"{place}/minit/events.log")
    assert_clean(disk)


def test_what_is_no_boot(boot: Boot, disk: Path, tmp_path: Path) -> None:
    """Other files in the places of boots are removed with the oldest of them, and no symlink is followed."""
    kept = tmp_path / "tree/kept/minit"
    kept.mkdir(parents=True)
    (kept / "000001").write_text("")
    (kept / "000002").symlink_to("/etc")
    (kept / ".removed").symlink_to("/nowhere")
    (tmp_path / "tree/link").symlink_to("kept")
    make_disk(disk, "data", size_mib=8, tree=tmp_path / "tree")
    assert said(boot("echo up", f"{_STATE}kept_boots = 1\n")) == ["up"]
    assert list_disk(disk, "/kept/minit") == ["000003"]
    machine = boot("echo up", _STATE.replace("kept", "link"))
    assert "minit: state /data/link/minit: nothing is kept: a symlink leads to /data/kept/minit" in machine.lines
    assert said(machine) == ["up"]


def test_a_root_on_a_disk(make_pod: MakePod, tmp_path: Path) -> None:
    """Nothing is written down of a boot but what has happened in it, though an earlier one has left its statuses."""
    pod = make_pod({"one": shell("echo up; sleep 1000")}, overlay=False)
    (pod.stage1 / "rkt/status/one").write_text("7\n")
    with NamespaceMachine(tmp_path, pod) as machine:
        assert machine.status("one") == 7
        machine.wait_for_line("up")
        assert machine.status("one") is None


def test_without_its_file_system_the_boot_is_not_kept(boot: Boot, disk: Path) -> None:
    """One line says that a disk which cannot be mounted keeps nothing; the pod runs as without it."""
    machine = boot("echo up", _STATE, options="nonsense")
    assert "minit: state /data/kept/minit: nothing is kept: filesystem /data is not mounted" in machine.lines
    assert (said(machine), machine.ending) == (["up"], "off")


@pytest.mark.parametrize(
    ("checker", "line", "is_mounted"),
    [
        ("#!/bin/busybox sh\necho checking $*\nexit 1\n", "checking -p /disk", True),
        (
            "#!/bin/busybox sh\nexit 4\n",
            "minit: filesystem /data: /sbin/fsck.ext4 /disk ended with 4: not mounted",
            False,
        ),
        ("\0", "minit: filesystem /data: /sbin/fsck.ext4: exec format error: not mounted", False),
    ],
)
def test_a_disk_is_checked(boot: Boot, checker: str, line: str, is_mounted: bool) -> None:
    """A file system that the root's program cannot repair, or cannot look at, is not mounted."""
    volume = {"name": "data", "kind": "host", "source": "/data"}
    mounts = [{"volume": "data", "path": "/data"}]
    machine = boot("grep -c ' /data ext4 ' /proc/mounts", "", checker=checker, mounts=mounts, volumes=[volume])
    assert machine.lines[0] == line
    assert said(machine) == ["1" if is_mounted else "0"]


def test_a_read_only_disk(boot: Boot, disk: Path) -> None:
    """So does one line say that a disk which cannot be written keeps nothing."""
    machine = boot("echo up", _STATE, options="ro")
    expected = "minit: state /data/kept/minit: this boot is not kept: /data/kept: read-only file system"
    assert expected in machine.lines
    assert (said(machine), machine.ending) == (["up"], "off")


def test_a_full_disk(boot: Boot, disk: Path) -> None:
    """Missing space is a line each, for a status and then a whole boot, and nothing is half there."""
    data = {"volumes": [{"name": "data", "kind": "host", "source": "/data"}]}
    mounts = [{"volume": "data", "path": "/data"}]
    machine = boot("yes 2>/dev/null > /data/ballast; echo full; exit 3", _STATE, mounts=mounts, **data)
    assert (said(machine), machine.ending) == (["full"], "off")
    assert 'stage1: app "one": status 3 could not be written' in machine.lines
    machine = boot("echo up", _STATE)
    begin = "minit: state /data/kept/minit: this boot is not kept: "
    assert [line for line in machine.lines if line.startswith(begin) and line.endswith("no space left on device")]
    assert (said(machine), machine.ending) == (["up"], "off")
    assert list_disk(disk, "/kept/minit") == ["000001"]
    assert list_disk(disk, "/kept/minit/000001/status") == ["one-created", "one-started"]
    assert_clean(disk)


def test_a_disk_that_fails(make_pod: MakePod, disk: Path, tmp_path: Path) -> None:
    """Apps are started again though the disk with their statuses has failed, which makes its file system read-only."""
    values = {"minit/restart": "always", "minit/restart-delay": "10ms", "minit/restart-max-delay": "10ms"}
    annotations = [{"name": name, "value": value} for name, value in values.items()]
    pod = make_pod({"one": shell("echo run", annotations=annotations)}, overlay=False)
    machine = NamespaceMachine(tmp_path, pod, _STATE + _FILESYSTEM.format(options="errors=remount-ro"))
    with attached(disk) as device:
        os.mknod(machine.root / "disk", stat.S_IFBLK | 0o600, device)
        with machine:
            # The second run comes when the pod is ready; before that any error is its end.
            for _ in range(2):
                machine.wait_for_line("run")
            name = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name
            Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("1")
            # Some may have been said before.
            for _ in range(20):
                machine.wait_for_line("run")
            machine.signal(signal.SIGTERM)
            assert machine.wait().ending == "off"


@pytest.mark.parametrize("keeps", [False, True])
def test_a_read_only_root(boot: Boot, disk: Path, keeps: bool) -> None:
    """Apps can write on a root that cannot be written, in memory or for the next boot, as the configuration says."""
    script = "cat /kept 2>/dev/null; echo written > /kept && cat /kept"
    config = f"{_STATE}keep_roots = {str(keeps).lower()}\n"
    outputs = [said(boot(script, config, read_only=True)) for _ in range(2)]
    assert outputs == [["written"], ["written", "written"] if keeps else ["written"]]
    assert list_disk(disk, "/kept/minit") == ["000001", "000002", *(["roots"] if keeps else [])]
    assert read_disk(disk, "/kept/minit/000002/status/one") == b"0\n"
    assert_clean(disk)
