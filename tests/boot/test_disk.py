"""A disk that a firmware boots: its root cannot be changed, its data stay, and it has two slots."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from minit.image.disklayout import SECTOR_BYTES
from minit.podfiles import paths
from tests.boot.conftest import BuildMachine
from tests.support.bootmachine import QemuMachine
from tests.support.disks import assert_clean, find_partition, read_disk
from tests.support.machine import BOOT_SECONDS, Firmware
from tests.support.pods import shell

_MIB = 1 << 20
_CONFIG = """
hostname = "sensor"

[disk]
modules = ["virtio_pci", "virtio_blk"]
command_line = "WORDS quiet panic=-1"

[state]
directory = "/var/data/minit"

[[filesystem]]
source = "PARTLABEL=data"
target = "/var/data"
type = "ext4"
grow = true
"""
_SCRIPT = """
echo started >> /data/log
echo boot $(wc -l < /data/log) of $(hostname)
echo MiB $(($(df -P -k /data | tail -n 1 | tr -s ' ' | cut -d' ' -f2) / 1024))
touch /written && echo writes
"""


@pytest.mark.timeout(4 * BOOT_SECONDS)
def test_a_disk(firmware: Firmware, build_machine: BuildMachine, tmp_path: Path) -> None:
    """
    The same parts make the same disk, from which a firmware boots the apps, from the other slot if the first one is
    empty; data get the rest of a larger disk, and are there at the next boot; a byte of the root that is changed is
    never read: the machine starts again.
    """
    apps = {"one": {**shell(_SCRIPT), "mounts": [{"volume": "data", "path": "/data"}]}}
    volumes = ({"name": "data", "kind": "host", "source": "/var/data"},)
    disk = build_machine(apps, _CONFIG, volumes=volumes, form="disk").rename(tmp_path / "disk")
    other = build_machine(apps, _CONFIG, volumes=volumes, form="disk")
    assert other.read_bytes() == disk.read_bytes()
    assert other.stat().st_blocks * SECTOR_BYTES < 64 * _MIB

    os.truncate(disk, disk.stat().st_size + 100 * _MIB)
    said = []
    for _ in range(2):
        with QemuMachine(firmware, tmp_path, disks=[disk]) as machine:
            machine.wait()
        said.append(machine.said("one"))
        own = [line for line in machine.lines if line.startswith("minit: ")]
        assert own == ["minit: the pod has ended with 0", "minit: poweroff"], machine.lines
        if len(said) == 1:
            _move_to_second_slot(disk)
    assert [lines[0] for lines in said] == ["boot 1 of sensor", "boot 2 of sensor"]
    assert {lines[2] for lines in said} == {"writes"}
    # What is left of 164 MiB beside a journal and inodes.
    assert all(140 < int(lines[1].removeprefix("MiB ")) < 164 for lines in said), said
    start, size = find_partition(disk, "data")
    data = tmp_path / "data"
    with disk.open("rb") as whole, data.open("wb") as part:
        whole.seek(start)
        shutil.copyfileobj(whole, part)
        part.truncate(size)
    assert_clean(data)
    assert read_disk(data, "/minit/000002/status/one") == b"0\n"

    start, _ = find_partition(other, "root-a")
    with other.open("r+b") as file:
        file.seek(start + 10)
        (byte,) = file.read(1)
        file.seek(start + 10)
        file.write(bytes([byte ^ 1]))
    with QemuMachine(firmware, tmp_path, disks=[other]) as machine:
        machine.wait_for_line("dm-verity device corrupted")
        machine.wait()
    assert not machine.said("one")


def _move_to_second_slot(disk: Path) -> None:
    """Write what is in the first slot to the second one, and zeros over the first."""
    with disk.open("r+b") as file:
        for kind in ("boot", "root"):
            (first, size), (second, _) = (find_partition(disk, f"{kind}-{slot}") for slot in paths.MACHINE_SLOTS)
            file.seek(first)
            data = file.read(size)
            file.seek(first)
            file.write(bytes(size))
            file.seek(second)
            file.write(data)
