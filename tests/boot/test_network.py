"""Two machines and the cable between them, and what is plugged into one of them while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.boot.conftest import BuildMachine
from tests.support.bootmachine import QemuMachine
from tests.support.machine import BOOT_SECONDS, Kernel
from tests.support.pods import shell

_MODULES = ("virtio_net", "virtio_console")
_MEMORY_MIB = 288  # of which what is plugged in needs some, beside a kernel and an interpreter that grow
_ADDRESSES = """
addresses = ["192.0.2.1/24", "2001:db8::1/64"]
wait_seconds = 60
"""
_LEASE = """
dhcp = true
wait_seconds = 60
"""
_CONFIG = """
modules = ["virtio_pci"]

[[interface]]
name = "eth0"
{}
[[device]]
subsystem = "virtio-ports"
name = "vport*"
properties = {{ DRIVER = "virtio_console" }}
mode = "0600"
link = "modem"
"""
_LEASES = """
cat > /tmp/conf << end
interface eth0
start 192.0.2.20
end 192.0.2.20
lease_file /tmp/leases
pidfile /tmp/pid
option subnet 255.255.255.0
end
touch /tmp/leases
exec busybox udhcpd -f /tmp/conf
"""
_SERVE = "while :; do echo welcome | nc -l -p 80 > /tmp/asked; echo asked for $(cat /tmp/asked); done"
_ASK = """
echo address $(ip -4 -o address show eth0 | cut -d' ' -f7)
until answer=$(echo bread | nc -w 10 192.0.2.1 80); do sleep 1; done
echo $answer
[ -e /dev/modem ] || echo no modem
until [ -c /dev/modem ]; do sleep 0.2; done
echo $(stat -c %a /dev/modem)
echo dialling > /dev/modem && echo dialled
while [ -e /dev/modem ]; do sleep 0.2; done
echo no modem any more
sleep 10000
"""


def cable(tmp_path: Path) -> list[str]:
    """Return both ends of a cable, as qemu's network backends."""
    names = [str(tmp_path / end) for end in "ab"]
    return [
        f"dgram,local.type=unix,local.path={own},remote.type=unix,remote.path={other}"
        for own, other in (names, names[::-1])
    ]


@pytest.mark.long
@pytest.mark.timeout(3 * BOOT_SECONDS)
def test_two_machines(kernel: Kernel, build_machine: BuildMachine, tmp_path: Path) -> None:
    """
    An app of one machine leases addresses, another one serves; an app of the other machine has a lease and is served.

    It gets a device that is plugged in while it runs, of which there was neither a node nor the driver, and loses it.
    """
    serving = {"leases": shell(_LEASES), "serve": shell(_SERVE)}
    asking = {
        **shell(_ASK),
        "mounts": [{"volume": "modem", "path": "/dev/modem"}],
        "annotations": [{"name": "minit/hotplug", "value": "true"}],
    }
    modem = {"name": "modem", "kind": "host", "source": "/dev/modem"}
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    one, other = cable(tmp_path)
    initial = build_machine(serving, _CONFIG.format(_ADDRESSES), _MODULES).rename(here / "root")
    with QemuMachine(kernel, here, initial, networks=[one]) as server:
        initial = build_machine({"ask": asking}, _CONFIG.format(_LEASE), _MODULES, (modem,)).rename(there / "root")
        with QemuMachine(kernel, there, initial, networks=[other], memory_mib=_MEMORY_MIB) as client:
            client.wait_for_line(": no modem")
            server.wait_for_line("asked for bread")
            plug_in_modem(client, kernel.processor.hotplug_bus, tmp_path / "dialled")
            client.wait_for_line(": dialled")
            client.control("device_del", id="serial")
            client.wait_for_line(": no modem any more")
    met = ["no modem", "600", "dialled", "no modem any more"]
    assert client.said("ask") == ["address 192.0.2.20/24", "welcome", *met]
    assert (tmp_path / "dialled").read_text() == "dialling\n"


def plug_in_modem(machine: QemuMachine, bus: str, file: Path) -> None:
    """Give a machine a serial port that writes to a file."""
    backend = {"type": "file", "data": {"out": str(file)}}
    machine.control("chardev-add", id="line", backend=backend)
    machine.control("device_add", driver="virtio-serial-pci", bus=bus, id="serial")
    machine.control("device_add", driver="virtserialport", bus="serial.0", chardev="line")
