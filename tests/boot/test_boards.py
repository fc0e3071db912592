"""What boards have: serial lines, an I2C bus, USB, and firmware, on a kernel with drivers for all of that."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from minit.base.value import replace
from tests.boot.conftest import BuildMachine
from tests.support.bootmachine import QemuMachine
from tests.support.machine import BOOT_SECONDS, X86_64, Kernel, Processor, find_kernel
from tests.support.pods import shell

_MODULES = ("i2c_stub", "i2c_dev", "xhci_pci", "ftdi_sio", "usb_storage", "sd_mod", "cfg80211")
_MEMORY_MIB = 320
_CONFIG = """
modules = ["i2c_dev", "i2c_stub", "cfg80211"]

[[device]]
subsystem = "i2c-dev"
mode = "0600"
wait_seconds = 60

[[device]]
subsystem = "tty"
name = "ttyUSB*"
properties = { PRODUCT = "403/6001/*" }
mode = "0600"
link = "modem"

[[device]]
subsystem = "block"
name = "sd?"
link = "stick"
"""
_SERIAL = """
stty -F /dev/line raw && echo hello > /dev/line && echo sent
"""
_BUS = """
i2cset -y 0 0x50 1 0x2a && echo $(i2cget -y 0 0x50 1)
i2cget -y 0 0x51 1 2> /dev/null || echo no such chip
"""
# Of firmware that it has not found the kernel says something else.
_RADIO = """
until grep -so 'regulatory.db is malformed' /log/kernel.log; do sleep 0.2; done
"""
_USB = """
[ -e /dev/modem ] || echo no modem
until [ -c /dev/modem ]; do sleep 0.2; done
echo $(stat -c %a /dev/modem)
stty -F /dev/modem raw && echo dialling > /dev/modem && echo dialled
until content=$(head -c 5 /dev/stick 2> /dev/null) && [ -n "$content" ]; do sleep 0.2; done
echo $content
while [ -e /dev/modem ]; do sleep 0.2; done
echo no modem any more
"""


@pytest.fixture(scope="session")
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """Debian's kernel for any machine, in the place of the one for clouds."""
    processor: Processor = request.param
    directory = X86_64.directory.with_name("full-kernel")
    if processor is not X86_64 or not directory.is_dir():
        pytest.skip("no kernel with all drivers in build/full-kernel")
    [path] = directory.glob("boot/vmlinuz-*")
    return replace(find_kernel(X86_64), path=path, modules=directory)


@pytest.mark.timeout(3 * BOOT_SECONDS)
def test_lines_and_buses(kernel: Kernel, build_machine: BuildMachine, tmp_path: Path) -> None:
    """
    An app has the serial line and the bus that are its volumes, and a USB device when it is plugged in; the kernel
    finds the firmware of a module.
    """
    firmware = tmp_path / "firmware"
    firmware.mkdir()
    for name in ("regulatory.db", "regulatory.db.p7s"):
        (firmware / f"{name}.xz").write_bytes(lzma.compress(b"not signed by anybody", check=lzma.CHECK_CRC32))
    line, stick = tmp_path / "line", tmp_path / "stick"
    stick.write_bytes(b"stick" + bytes(1 << 20))
    sources = {
        "line": "/dev/ttyS1",
        "bus": "/dev/i2c-0",
        "modem": "/dev/modem",
        "stick": "/dev/stick",
        "log": "/run/log",
    }
    volumes = tuple({"name": name, "kind": "host", "source": source} for name, source in sources.items())
    apps = {
        "serial": {**shell(_SERIAL), "mounts": [{"volume": "line", "path": "/dev/line"}]},
        "bus": {**shell(_BUS), "mounts": [{"volume": "bus", "path": "/dev/i2c-0"}]},
        "radio": {**shell(_RADIO), "mounts": [{"volume": "log", "path": "/log"}]},
        "usb": {
            **shell(_USB),
            "mounts": [{"volume": name, "path": f"/dev/{name}"} for name in ("modem", "stick")],
            "annotations": [{"name": "minit/hotplug", "value": "true"}],
        },
    }
    initial = build_machine(apps, _CONFIG, _MODULES, volumes, firmware=firmware)
    options = ["-serial", f"file:{line}", "-device", "qemu-xhci,id=usb"]
    words = "i2c_stub.chip_addr=0x50"
    with QemuMachine(kernel, tmp_path, initial, words=words, memory_mib=_MEMORY_MIB, options=options) as machine:
        machine.wait_for_line(": no modem")
        backend = {"type": "file", "data": {"out": str(tmp_path / "dialled")}}
        machine.control("chardev-add", id="modem", backend=backend)
        machine.control("device_add", driver="usb-serial", bus="usb.0", id="modem", chardev="modem")
        machine.wait_for_line(": dialled")
        machine.control("blockdev-add", driver="file", filename=str(stick), **{"node-name": "stick"})
        machine.control("device_add", driver="usb-storage", bus="usb.0", id="stick", drive="stick")
        machine.wait_for_line(": stick")
        machine.control("device_del", id="modem")
        machine.wait()
    assert machine.said("radio") == ["regulatory.db is malformed"], machine.lines
    assert machine.said("usb") == ["no modem", "600", "dialled", "stick", "no modem any more"], machine.lines
    assert machine.said("bus") == ["0x2a", "no such chip"], machine.lines
    assert machine.said("serial") == ["sent"] and line.read_text() == "hello\n"
    assert (tmp_path / "dialled").read_text() == "dialling\n"
