"""A machine that loses its power at any moment: what it has written down is whole and true, and it boots again."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path

import pytest

from tests.boot.conftest import BuildMachine
from tests.support.bootmachine import QemuMachine
from tests.support.campaign import LONG
from tests.support.disks import list_disk, make_disk, read_disk, replay_journal
from tests.support.machine import BOOT_SECONDS, Kernel
from tests.support.pods import shell

_CUTS = 50 if LONG else 2
_LATEST_LINE = 12
_LONGEST_DELAY_SECONDS = 0.5
# It promises on the disk with which status it will end, then does. The next start takes the status of the last end back
# first, and the journal keeps that order. Nothing else is synced: what minit does not sync itself gets lost.
_COUNT = """
n=$(($(wc -l < /data/promises) % 250 + 1))
echo "promise $n"
echo $n | dd of=/data/promises oflag=append conv=notrunc,fsync 2>/dev/null
echo "end $n"
exit $n
"""
_CONFIG = """
modules = ["virtio_pci"]

[state]
directory = "/data/minit"
kept_boots = 1000
keep_roots = true

[[filesystem]]
source = "LABEL=data"
target = "/data"
type = "ext4"
options = "commit=1"
wait_seconds = 60
"""


@pytest.mark.timeout((_CUTS + 1) * BOOT_SECONDS)
def test_power_cuts(kernel: Kernel, build_machine: BuildMachine, tmp_path: Path) -> None:
    """
    Whenever the power goes, every status on the disk is whole, and of an app that had ended with it: none is there of
    one that runs, nor of an earlier end of one that was started again, and none that others waited for is missing.
    """
    data = [{"volume": "data", "path": "/data"}]
    restarts = {"minit/after": "once:completed", "minit/restart": "always", "minit/restart-delay": "10ms"}
    restarts |= {"minit/restart-max-delay": "10ms"}
    annotations = [{"name": name, "value": value} for name, value in restarts.items()]
    apps = {
        "once": {**shell("touch /data/promises /written"), "mounts": data},
        "count": {**shell(_COUNT), "mounts": data, "annotations": annotations},
        "steady": shell("sleep 1000000"),
    }
    initial = build_machine(
        apps, _CONFIG, ("virtio_blk", "overlay"), ({"name": "data", "kind": "host", "source": "/data"},)
    )
    disk = make_disk(tmp_path / "disk", "data")
    dice = random.Random()
    for number in range(1, _CUTS + 1):
        with QemuMachine(kernel, tmp_path, initial, disks=[disk]) as machine:
            for _ in range(dice.randint(1, _LATEST_LINE)):
                machine.wait_for_line("count[", after=len(machine.lines))
            time.sleep(dice.uniform(0, _LONGEST_DELAY_SECONDS))  # any moment will do, and none is waited for
            machine.cut_power()
        assert not [line for line in machine.lines if line.startswith(("minit: ", "stage1: "))], machine.lines
        # The next boot has the disk as it was left.
        shutil.copyfile(disk, tmp_path / "copy")
        _assert_true(tmp_path / "copy", number)


def _assert_true(disk: Path, boots: int) -> None:
    replay_journal(disk)
    promises = [int(line) for line in read_disk(disk, "/promises").split()]
    assert list_disk(disk, "/minit") == [*(f"{boot:06}" for boot in range(1, boots + 1)), "roots"]
    for boot in range(1, boots + 1):
        records = f"/minit/{boot:06}"
        ended = {name for name in list_disk(disk, f"{records}/status") if not name.endswith(("-created", "-started"))}
        ended = {name for name in ended if not name.startswith(".")}
        assert "once" in ended and ended <= {"once", "count"}
        for app in ended:
            status = read_disk(disk, f"{records}/status/{app}")
            assert status == b"%d\n" % int(status)
            assert json.loads(read_disk(disk, f"{records}/minit/state/{app}.json"))["status"] == int(status)
            assert app != "count" or boot != boots or int(status) == promises[-1]
