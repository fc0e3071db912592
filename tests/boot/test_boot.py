"""A kernel that boots minit: devices, disk, network and power button as only a whole machine has them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.bootmachine import QemuMachine
from tests.support.commands import Stage0
from tests.support.machine import BOOT_SECONDS, KERNELS, find_kernel
from tests.support.stage0_world import write_app

# Those that apps print of themselves.
_SCRIPT = """
b=/bin/busybox
$b echo host $($b hostname)
$b echo address $($b ip -4 -o address show eth0 | $b cut -d' ' -f7)
$b echo resolver $($b cat /etc/resolv.conf)
$b ping -c 1 -W 20 10.0.2.2 > /dev/null && $b echo reaches the gateway
$b echo started >> /data/log
$b trap 'echo stopped >> /data/log; exit 0' TERM
$b echo up
$b sleep 10000 & wait
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


@pytest.fixture
def initial(stage1_image: Path, tmp_path: Path) -> Path:
    """An initial file system with a pod of one app."""
    stage0 = Stage0(["python3", "-m", "minit"], tmp_path, stage1_image)
    write_app(tmp_path / "busybox.aci", app={"exec": ["/bin/sh"], "user": "0", "group": "0"})
    image = stage0.call("fetch", "--full", tmp_path / "busybox.aci").stdout.strip()
    app = {"exec": ["/bin/sh", "-c", _SCRIPT.replace("$b trap", "trap")], "user": "0", "group": "0"}
    manifest = {
        "acKind": "PodManifest",
        "acVersion": "0.8.11",
        "volumes": [{"name": "data", "kind": "host", "source": "/data"}],
        "apps": [
            {
                "name": "one",
                "image": {"id": image},
                "mounts": [{"volume": "data", "path": "/data"}],
                "app": app,
            }
        ],
    }
    (tmp_path / "pod.json").write_text(json.dumps(manifest))
    (tmp_path / "machine.toml").write_text(_CONFIG)
    words = ["--manifest", tmp_path / "pod.json", "--config", tmp_path / "machine.toml", "--quiet"]
    words += ["--output", tmp_path / "initial", "--stage1-path", stage1_image]
    words += ["--modules-from", KERNELS, "--module", "virtio_blk", "--module", "virtio_net"]
    done = stage0.call("init", "build", *words)
    assert done.returncode == 0, done.stderr
    return tmp_path / "initial"


@pytest.mark.timeout(3 * BOOT_SECONDS)
def test_a_machine(tmp_path: Path, request: pytest.FixtureRequest):
    """
    The modules for its devices are loaded, it has its disk and a lease, and its watchdog is fed; when the power button
    is pressed the app is stopped in order, and the disk is unmounted before it is off.
    """
    kernel = find_kernel()
    if not any((KERNELS / place).is_dir() for place in ("lib/modules", "usr/lib/modules")):
        pytest.skip("no qemu, or no kernel for it in build/kernel")  # or only a kernel, without its modules
    disk = tmp_path / "disk"
    with disk.open("wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-L", "data", disk], check=True)
    with QemuMachine(kernel, request.getfixturevalue("initial"), tmp_path, disk) as machine:
        machine.wait_for_line(": up")
        machine.press_power_button()
        machine.wait()
    said = [line.partition("]: ")[2] for line in machine.lines if line.startswith("one[")]
    resolver = said.pop(2)
    assert said == ["host sensor", "address 10.0.2.15/24", "reaches the gateway", "up"]
    assert resolver.startswith("resolver nameserver 10.0.2.3")
    # The firmware has left the terminal in the middle of a line.
    own = [line[line.index("minit: ") :] for line in machine.lines if "minit: " in line]
    assert own == ["minit: interface eth0: 10.0.2.15/24", "minit: the pod has ended with 0", "minit: poweroff"]
    subprocess.run(["e2fsck", "-fn", disk], check=True, capture_output=True)
    assert b"Filesystem state:         clean" in subprocess.run(["dumpe2fs", "-h", disk], capture_output=True).stdout
    shown = subprocess.run(["debugfs", "-R", "cat /log", disk], check=True, capture_output=True).stdout
    assert shown == b"started\nstopped\n"
