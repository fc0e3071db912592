"""The two slots of a disk: another version is booted once, and kept if its apps are healthy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minit import paths
from tests.boot.conftest import BuildMachine
from tests.support.bootmachine import QemuMachine
from tests.support.disks import find_partition
from tests.support.machine import BOOT_SECONDS, X86_64, Firmware
from tests.support.pods import shell

_CONFIG = f"""
hostname = "sensor"
console = true
modules = ["softdog"]

[disk]
modules = ["virtio_pci", "virtio_blk"]
root_mib = 64
command_line = "{X86_64.words} quiet panic=-1"

[watchdog]
timeout_seconds = 20

[[filesystem]]
source = "PARTLABEL=data"
target = "/var/data"
type = "ext4"

[trial]
healthy_seconds = 2
timeout_seconds = 300
"""
_VOLUMES = (
    {"name": "data", "kind": "host", "source": "/var/data"},
    {"name": "groups", "kind": "host", "source": "/sys/fs/cgroup"},
)
_MOUNTS = [{"volume": name, "path": f"/{name}"} for name in ("data", "groups")]
# The second time it stops PID 1.
_BAD = """
echo trial >> /data/trials
echo trial $(wc -l < /data/trials)
[ $(wc -l < /data/trials) = 2 ] && for top in /groups /groups/*; do
    [ -e $top/init.scope/cgroup.freeze ] || continue
    mkdir $top/frozen && echo 1 > $top/frozen/cgroup.procs && echo 1 > $top/frozen/cgroup.freeze
done
sleep 10000
"""
_NOT_STARTED = "it did not start"
_NEVER_READY = {"readiness": {"exec": ["/bin/false"], "interval": "100ms", "timeout": "60s", "failures": 1}}


def _ask(machine: QemuMachine, line: str) -> None:
    """Type a command at the prompt."""
    machine.wait_for_line("press Enter for a prompt")
    machine.type("\n")
    machine.wait_for_line("sensor> ")
    machine.type(f"{line}\n")


def _copy_slot(source: Path, disk: Path, slot: str) -> None:
    """Write the first slot of a disk over one of another."""
    for kind in ("boot", "root"):
        (start, size), (place, _) = find_partition(source, f"{kind}-a"), find_partition(disk, f"{kind}-{slot}")
        with source.open("rb") as file, disk.open("r+b") as target:
            file.seek(start)
            target.seek(place)
            target.write(file.read(size))


def _own(machine: QemuMachine) -> list[str]:
    """Return what minit has said, without what it says each time."""
    return [line for line in machine.lines if line.startswith("minit: ") and "press Enter" not in line]


@pytest.mark.timeout(6 * BOOT_SECONDS)
def test_a_version_that_is_kept(firmware: Firmware, build_machine: BuildMachine, tmp_path: Path) -> None:
    """The other version is booted once, and from then on each time, when its apps have been healthy."""
    disk = build_machine({"one": shell("echo first; sleep 10000")}, _CONFIG, form="disk").rename(tmp_path / "disk")
    _copy_slot(build_machine({"one": shell("echo second; sleep 10000")}, _CONFIG, form="disk"), disk, "b")
    with QemuMachine(firmware, tmp_path, disks=[disk]) as machine:
        machine.wait_for_line(": first")
        _ask(machine, "init rollback")
        machine.wait()
    assert _own(machine)[-1] == "minit: reboot", machine.lines
    with QemuMachine(firmware, tmp_path, disks=[disk]) as machine:
        machine.wait_for_line(": second")
        machine.wait_for_line("minit: slot b is kept")
        machine.cut_power()
    assert "minit: slot b is on trial: apps have to be healthy for 2 s" in machine.lines
    with QemuMachine(firmware, tmp_path, disks=[disk]) as machine:
        machine.wait_for_line(": second")
        _ask(machine, "init status")
        machine.wait_for_line("it was kept")
        machine.type("init status --format=json\n")
        told = json.loads(machine.wait_for_line('{"'))
    assert not _own(machine), machine.lines
    assert (told["running"], told["kept"], told["next"]) == ("b", "b", None)
    assert told["trial"]["slot"] == "b" and set(told["slots"]) == set(paths.MACHINE_SLOTS)


@pytest.mark.timeout(12 * BOOT_SECONDS)
def test_a_version_that_is_left(firmware: Firmware, build_machine: BuildMachine, tmp_path: Path) -> None:
    """
    A version whose apps are never healthy, one that hangs, one whose power goes, and one that panics are booted once;
    then the earlier one runs again, and says why.
    """
    disk = build_machine({"one": shell("echo first; sleep 10000")}, _CONFIG, form="disk").rename(tmp_path / "disk")
    bad = shell(_BAD, annotations=[{"name": "minit/health", "value": json.dumps(_NEVER_READY)}])
    config = _CONFIG.replace("300", "20")
    _copy_slot(build_machine({"one": {**bad, "mounts": _MOUNTS}}, config, volumes=_VOLUMES, form="disk"), disk, "b")
    not_healthy = 'not healthy within 20 s: app "one" is not ready'
    unknown = "the machine started again before all apps were healthy"
    reasons = []
    for trial in range(1, 5):
        with QemuMachine(firmware, tmp_path, disks=[disk]) as machine:
            machine.wait_for_line(": first")
            _ask(machine, "init rollback")
            machine.wait()
        reasons += [line for line in _own(machine) if "tried" in line]
        if trial == 4:
            start, _ = find_partition(disk, "root-b")
            with disk.open("r+b") as file:
                file.seek(start + 10)
                file.write(b"\xff")
        with QemuMachine(firmware, tmp_path, disks=[disk]) as machine:
            if trial == 1:
                machine.wait_for_line(f"minit: {not_healthy}: the other version is booted")
            elif trial == 2:
                machine.wait_for_line("softdog: Initiating system reboot")
            elif trial == 3:
                machine.wait_for_line(": trial 3")
                machine.cut_power()
            else:
                machine.wait_for_line("dm-verity device corrupted")
            machine.wait()
        assert machine.said("one") == ([f"trial {trial}"] if trial < 4 else []), machine.lines
    with QemuMachine(firmware, tmp_path, disks=[disk]) as machine:
        machine.wait_for_line(": first")
        _ask(machine, "init status")
        machine.wait_for_line("it was not kept: it did not start")
    reasons += [line for line in _own(machine) if "tried" in line]
    assert reasons == [
        f"minit: slot b was tried and is not kept: {reason}" for reason in (not_healthy, unknown, unknown, _NOT_STARTED)
    ]
