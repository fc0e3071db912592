"""A kernel that panics, and what is known of that when the machine has started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.boot.conftest import BuildMachine
from tests.support.bootmachine import QemuMachine
from tests.support.disks import list_disk, make_disk, read_disk, replay_journal
from tests.support.machine import BOOT_SECONDS, X86_64, Kernel
from tests.support.pods import shell

_MEMORY_MIB = 288
_CONFIG = """
modules = ["virtio_pci"]

[state]
directory = "/data/minit"

[[filesystem]]
source = "LABEL=data"
target = "/data"
type = "ext4"
wait_seconds = 60
"""
_REASON = "Kernel panic - not syncing: sysrq triggered crash"


@pytest.mark.long
@pytest.mark.timeout(4 * BOOT_SECONDS)
def test_a_panic(kernel: Kernel, build_machine: BuildMachine, tmp_path: Path) -> None:
    """The last words of the kernel are told once, kept with the files of the next boot, and shown by `diagnose`."""
    if kernel.processor is not X86_64:
        pytest.skip("machines of arm64 in qemu keep nothing over a panic")
    app = {**shell("head -n 1 /log/panic.log; sleep 10000"), "mounts": [{"volume": "log", "path": "/log"}]}
    initial = build_machine(
        {"one": app}, _CONFIG, ("virtio_blk", "ext4"), ({"name": "log", "kind": "host", "source": "/run/log"},)
    )
    disk, store = make_disk(tmp_path / "disk", "data"), tmp_path / "store"
    store.write_bytes(bytes(1 << 16))
    # The firmware of a server keeps records in such a device.
    memory = f"memory-backend-file,id=store,mem-path={store},size={store.stat().st_size},share=on"
    options = ["-object", memory, "-device", "acpi-erst,memdev=store"]

    def boot() -> QemuMachine:
        words = "minit.console"
        return QemuMachine(kernel, tmp_path, initial, [disk], words=words, memory_mib=_MEMORY_MIB, options=options)

    with boot() as machine:
        machine.wait_for_line("press Enter for a prompt")
        machine.wait_for_line("one[")  # there is no such file yet
        machine.type("\nshell\n")
        machine.type("echo c > /proc/sysrq-trigger\n")
        machine.wait_for_line(_REASON)
        machine.wait()
    with boot() as machine:
        machine.wait_for_line("one[")
        machine.type("\ndiagnose\n")
        machine.wait_for_line("Before this start the machine's kernel failed: panic at ")
        machine.cut_power()
    [told] = [line for line in machine.lines if line.startswith("minit: panic at ")]
    assert told.endswith(_REASON)
    [seen] = machine.said("one")
    assert f"minit: {seen}" == told
    replay_journal(disk)
    kept = read_disk(disk, "/minit/000002/minit/panic.log").decode()
    assert kept.startswith(seen) and "Linux version" in kept and _REASON in kept
    assert "panic.log" not in list_disk(disk, "/minit/000001/minit")
    with boot() as machine:
        machine.wait_for_line("one[")
        machine.cut_power()
    assert not [line for line in machine.lines if "panic at" in line]
