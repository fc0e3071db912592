"""A kernel that boots minit: devices, disk, network and power button as only a whole machine has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.boot.conftest import BuildMachine
from tests.support.bootmachine import USER_NETWORK, QemuMachine
from tests.support.disks import assert_clean, make_disk, read_disk
from tests.support.machine import BOOT_SECONDS
from tests.support.pods import shell

# What the app says of its machine.
_SCRIPT = """
echo host $(hostname)
echo address $(ip -4 -o address show eth0 | cut -d' ' -f7)
echo resolver $(cat /etc/resolv.conf)
ping -c 1 -W 20 10.0.2.2 > /dev/null && echo reaches the gateway
echo started >> /data/log
trap 'echo stopped >> /data/log; exit 0' TERM
echo up
sleep 10000 & wait
"""
_CONFIG = """
hostname = "sensor"
on_exit = "reboot"
modules = ["virtio_pci", "button", "evdev", "softdog"]

[watchdog]
timeout_seconds = 60

[[filesystem]]
source = "LABEL=data"
target = "/data"
type = "ext4"
wait_seconds = 60

[[interface]]
name = "eth0"
dhcp = true
wait_seconds = 60
"""


@pytest.mark.timeout(3 * BOOT_SECONDS)
def test_a_machine(kernel: Path, build_machine: BuildMachine, tmp_path: Path):
    """
    The modules for its devices are loaded, it has its disk and a lease, and its watchdog is fed; when the power button
    is pressed the app is stopped in order, and the disk is unmounted before it is off.
    """
    initial = build_machine(
        {"one": {**shell(_SCRIPT), "mounts": [{"volume": "data", "path": "/data"}]}},
        _CONFIG,
        modules=("virtio_blk", "virtio_net"),
        volumes=({"name": "data", "kind": "host", "source": "/data"},),
    )
    disk = make_disk(tmp_path / "disk", "data")
    with QemuMachine(kernel, tmp_path, initial, disks=[disk], networks=[USER_NETWORK]) as machine:
        machine.wait_for_line(": up")
        machine.press_power_button()
        machine.wait()
    said = machine.said("one")
    resolver = said.pop(2)
    assert said == ["host sensor", "address 10.0.2.15/24", "reaches the gateway", "up"]
    assert resolver.startswith("resolver nameserver 10.0.2.3")
    own = [line for line in machine.lines if line.startswith("minit: ")]
    assert own == ["minit: interface eth0: 10.0.2.15/24", "minit: the pod has ended with 0", "minit: poweroff"]
    assert_clean(disk)
    assert read_disk(disk, "/log") == b"started\nstopped\n"
