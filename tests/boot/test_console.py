"""The prompt on a serial line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.boot.conftest import BuildMachine
from tests.support.bootmachine import QemuMachine
from tests.support.disks import assert_clean, make_disk, read_disk
from tests.support.machine import BOOT_SECONDS, Kernel
from tests.support.pods import shell

_CTRL_C = "\3"
_MEMORY_MIB = 288  # the command takes some 20 MiB while it enters an app
_CONFIG = """
[state]
directory = "/data/minit"

[[filesystem]]
source = "LABEL=data"
target = "/data"
type = "ext4"
wait_seconds = 60
"""


@pytest.mark.timeout(3 * BOOT_SECONDS)
def test_a_serial_line(kernel: Kernel, build_machine: BuildMachine, tmp_path: Path) -> None:
    """
    With minit.console on the kernel's command line Enter gives a prompt, from which an app can be watched until Ctrl-C
    and entered with a terminal, and the machine be rebooted, which leaves the disk clean.
    """
    initial = build_machine({"one": shell("echo up; sleep 10000")}, _CONFIG, ("virtio_pci", "virtio_blk", "ext4"))
    disk, memory = make_disk(tmp_path / "disk", "data"), _MEMORY_MIB
    with QemuMachine(kernel, tmp_path, initial, [disk], words="minit.console", memory_mib=memory) as machine:
        machine.wait_for_line("press Enter for a prompt")
        machine.wait_for_line(": up")
        seen = len(machine.lines)
        machine.type("\nlogs --follow one\n")
        machine.wait_for_line("up", seen)
        machine.type(_CTRL_C)
        machine.type("app list\n")
        machine.wait_for_line("one\trunning")
        machine.type("enter one\n")
        machine.type("tty\n")
        machine.wait_for_line("/dev/pts/0")
        machine.type("exit\n")
        machine.wait_for_line("minit> ", len(machine.lines))
        machine.type("reboot\n")
        machine.wait()
    assert "minit: reboot" in machine.lines
    assert_clean(disk)
    assert read_disk(disk, "/minit/000001/status/one") == b"0\n"  # of its stop signal
