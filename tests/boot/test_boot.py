"""A kernel that boots minit: devices, disks, network and power button as only a whole machine has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.boot.conftest import BuildMachine
from tests.support.bootmachine import USER_NETWORK, QemuMachine
from tests.support.disks import assert_clean, make_disk, read_disk
from tests.support.machine import BOOT_SECONDS, Kernel
from tests.support.pods import shell

# What the app says of its machine.
_SCRIPT = """
echo host $(hostname)
echo address $(ip -4 -o address show eth0 | cut -d' ' -f7)
echo resolver $(cat /etc/resolv.conf)
ping -c 1 -W 20 10.0.2.2 > /dev/null && echo reaches the gateway
echo started | tee /data/log > /of-its-own
for number in 2 15 30 37; do kill -$number 1; done
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

[state]
directory = "/data/minit"
keep_roots = true

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


@pytest.mark.arm64
@pytest.mark.timeout(3 * BOOT_SECONDS)
def test_a_machine(kernel: Kernel, build_machine: BuildMachine, tmp_path: Path) -> None:
    """
    The modules for its devices are loaded, it has its disks and a lease, and its watchdog is fed; when the power button
    is pressed the app is stopped in order, and the disks, its root among them, which is read-only, are left clean.
    """
    tree = build_machine(
        {"one": {**shell(_SCRIPT), "mounts": [{"volume": "data", "path": "/data"}]}},
        _CONFIG,
        modules=("virtio_blk", "virtio_net", "overlay"),
        volumes=({"name": "data", "kind": "host", "source": "/data"},),
        form="directory",
    )
    root, disk = make_disk(tmp_path / "root.disk", "root", 128, tree), make_disk(tmp_path / "disk", "data")
    before = root.read_bytes()
    # The driver of this one is in the kernel.
    options = ["-drive", f"file={root},format=raw,if=none,id=root", "-device", "nvme,drive=root,serial=root"]
    options += kernel.processor.power_button
    words = "root=/dev/nvme0n1 rootwait ro init=/init"
    with QemuMachine(kernel, tmp_path, disks=[disk], networks=[USER_NETWORK], words=words, options=options) as machine:
        machine.wait_for_line(": up")
        machine.press_power_button()
        machine.wait()
    said = machine.said("one")
    resolver = said.pop(2)
    assert said == ["host sensor", "address 10.0.2.15/24", "reaches the gateway", "up"]
    assert resolver.startswith("resolver nameserver 10.0.2.3")
    own = [line for line in machine.lines if line.startswith("minit: ")]
    assert own.pop(1).endswith("is ignored: minit poweroff or reboot end a machine")
    assert own == ["minit: interface eth0: 10.0.2.15/24", "minit: the pod has ended with 0", "minit: poweroff"]
    assert root.read_bytes() == before
    assert_clean(disk)
    assert read_disk(disk, "/log") == b"started\nstopped\n"
    assert read_disk(disk, "/minit/roots/upper/stage1/rootfs/opt/stage2/one/rootfs/of-its-own") == b"started\n"
    assert read_disk(disk, "/minit/000001/status/one") == b"0\n"
    assert json.loads(read_disk(disk, "/minit/000001/minit/state/one.json"))["reason"] == "stopped"
