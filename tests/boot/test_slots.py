"""The two slots of a disk: another version is booted once, and kept if its apps are healthy."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from minit.image.disklayout import ARCHITECTURES
from minit.podfiles import paths
from tests.boot.conftest import BuildMachine
from tests.support.bootmachine import QemuMachine
from tests.support.campaign import LONG
from tests.support.disks import find_partition, read_section
from tests.support.machine import BOOT_SECONDS, Firmware, Kernel
from tests.support.pods import shell

_CONFIG = """
hostname = "sensor"
console = true

[disk]
modules = ["virtio_pci", "virtio_blk", "softdog"]
root_mib = 64
command_line = "WORDS quiet panic=-1"

[watchdog]
timeout_seconds = 45

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
_NOT_IN_TIME = 'not healthy within 20 s: app "one" is not ready'
_NOT_HEALTHY = "the machine started again before all apps were healthy"
# In this order: only the last two damage what is on the disk.
_ALL_FAILURES = (
    ("ill", _NOT_IN_TIME),
    ("hang", _NOT_HEALTHY),
    ("power", _NOT_HEALTHY),
    ("panic", _NOT_STARTED),
    ("no root", _NOT_STARTED),
)
_FAILURES = _ALL_FAILURES if LONG else _ALL_FAILURES[:1]
_SIGNS = {
    "ill": f"minit: {_NOT_IN_TIME}: the other version is booted",
    "hang": "softdog: Initiating system reboot",
    "power": ": trial 3",
    "panic": "dm-verity device corrupted",
    "no root": "softdog: Initiating system reboot",
}
_DAMAGING = ("panic", "no root")
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


def _damage_root(disk: Path, *, tree: bool) -> None:
    """Change a byte of the second root, or the identifier of its hash tree, so that nobody finds it."""
    start, _ = find_partition(disk, "root-b")
    with disk.open("r+b") as file:
        file.seek(start + 40)
        size_bytes = int.from_bytes(file.read(8), "little")
        file.seek(start + (-(-size_bytes // 4096) * 4096 + 16 if tree else 10))
        file.write(b"\xff" * 2)


def _own(machine: QemuMachine) -> list[str]:
    """Return what minit has said, without what it says each time."""
    return [line for line in machine.lines if line.startswith("minit: ") and "press Enter" not in line]


@pytest.mark.timeout(6 * BOOT_SECONDS)
def test_a_version_that_is_kept(firmware: Firmware, build_machine: BuildMachine, tmp_path: Path) -> None:
    """
    The other version is booted once, and from then on each time, when its apps have been healthy, or if that is enough
    there, when they have done their work.
    """
    disk, second = (
        build_machine({"one": {**shell(script), "mounts": _MOUNTS}}, text, volumes=_VOLUMES, form="disk").rename(path)
        for script, text, path in (
            ("echo first; [ -e /data/second ] || sleep 10000", _CONFIG.replace("= 2", "= 0"), tmp_path / "disk"),
            ("echo second; touch /data/second; sleep 10000", _CONFIG, tmp_path / "second"),
        )
    )
    _copy_slot(second, disk, "b")
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
        machine.type("init rollback\n")
        machine.wait()
    assert (told["running"], told["kept"], told["next"]) == ("b", "b", None)
    assert told["trial"]["slot"] == "b" and set(told["slots"]) == set(paths.MACHINE_SLOTS)
    with QemuMachine(firmware, tmp_path, disks=[disk]) as machine:
        machine.wait()
    assert machine.said("one") == ["first"]
    assert _own(machine)[1:] == ["minit: the pod has ended with 0", "minit: slot a is kept", "minit: poweroff"]


@pytest.mark.timeout(12 * BOOT_SECONDS)
def test_a_version_that_is_left(firmware: Firmware, build_machine: BuildMachine, tmp_path: Path) -> None:
    """
    A version whose apps are never healthy is booted once; then the earlier one runs again, and says why.

    With MINIT_TEST_LONG=1 so are one whose PID 1 hangs, one whose power goes, one that panics and one that waits for
    its root.
    """
    disk = build_machine({"one": shell("echo first; sleep 10000")}, _CONFIG, form="disk").rename(tmp_path / "disk")
    bad = shell(_BAD, annotations=[{"name": "minit/health", "value": json.dumps(_NEVER_READY)}])
    config = _CONFIG.replace("300", "20")
    _copy_slot(build_machine({"one": {**bad, "mounts": _MOUNTS}}, config, volumes=_VOLUMES, form="disk"), disk, "b")
    expected, reasons = [], []
    for number, (kind, reason) in enumerate(_FAILURES, 1):
        with QemuMachine(firmware, tmp_path, disks=[disk]) as machine:
            machine.wait_for_line(": first")
            _ask(machine, "init rollback")
            machine.wait()
        reasons += [line for line in _own(machine) if "tried" in line]
        expected.append(f"minit: slot b was tried and is not kept: {reason}")
        if kind in _DAMAGING:
            _damage_root(disk, tree=kind == "no root")
        with QemuMachine(firmware, tmp_path, disks=[disk]) as machine:
            machine.wait_for_line(_SIGNS[kind])
            if kind == "power":
                machine.cut_power()
            machine.wait()
        assert machine.said("one") == ([] if kind in _DAMAGING else [f"trial {number}"]), machine.lines
    with QemuMachine(firmware, tmp_path, disks=[disk]) as machine:
        machine.wait_for_line(": first")
        _ask(machine, "init status")
        machine.wait_for_line(f"it was not kept: {_FAILURES[-1][1]}")
    assert [*reasons, *(line for line in _own(machine) if "tried" in line)] == expected


@pytest.mark.timeout(3 * BOOT_SECONDS)
def test_a_machine_without_a_firmware(
    kernel: Kernel, firmware: Firmware, build_machine: BuildMachine, tmp_path: Path
) -> None:
    """A disk whose kernel is booted by something else has slots that are shown, and no other one can be chosen."""
    disk = build_machine({"one": shell("echo first; sleep 10000")}, _CONFIG, form="disk")
    program = tmp_path / "BOOT" / ARCHITECTURES[kernel.processor.appc_name].program
    place, _ = find_partition(disk, "boot-a")
    subprocess.run(["mcopy", "-s", "-i", f"{disk}@@{place}", "::/EFI/BOOT", tmp_path], check=True)
    initial = tmp_path / "initial"
    initial.write_bytes(read_section(program, ".initrd"))
    words = read_section(program, ".cmdline").decode().rstrip("\0")
    with QemuMachine(kernel, tmp_path, initial, [disk], words=words) as machine:
        machine.wait_for_line(": first")
        _ask(machine, "init status")
        machine.wait_for_line("none can be chosen: no EFI firmware has started this machine")
        machine.type("init rollback\n")
        machine.wait_for_line("rollback: no EFI firmware has started this machine")
    assert [line.split("\t")[:2] for line in machine.lines if line[:2] in ("a\t", "b\t")] == [
        ["a", "running"],
        ["b", "empty"],
    ]
