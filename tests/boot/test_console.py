"""The prompt on a serial line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.boot.conftest import BuildMachine
from tests.support.bootmachine import QemuMachine
from tests.support.machine import BOOT_SECONDS
from tests.support.pods import shell

_CTRL_C = "\3"
_MEMORY_MIB = 192  # the command takes some 20 MiB while it enters an app


@pytest.mark.timeout(3 * BOOT_SECONDS)
def test_a_serial_line(kernel: Path, build_machine: BuildMachine, tmp_path: Path):
    """
    With minit.console on the kernel's command line Enter gives a prompt, from which an app can be watched until Ctrl-C
    and entered with a terminal.
    """
    initial = build_machine({"one": shell("echo up; sleep 10000")})
    with QemuMachine(kernel, tmp_path, initial, words="minit.console", memory_mib=_MEMORY_MIB) as machine:
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
