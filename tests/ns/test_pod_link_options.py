"""The options of macvlan, ipvlan, vlan, dummy and host-device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minit.base.errors import ManifestError, MinitError, NetworkError, describe
from minit.base.value import replace
from minit.linux import syscalls
from minit.manifest.reader import Node
from minit.network.builtin.hostdevice import find_device
from minit.network.netlink.links import Links
from minit.network.protocol import Dns, Interface, Result
from tests.support.linkkinds import need_kind
from tests.support.podlinks import MAC, World, add, check, delete, in_pod, own_world, pod_link, run

PLACE = "^net.conf: "


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The process is in a network namespace of its own while a test runs."""
    with own_world(tmp_path) as world:
        yield world


@pytest.fixture
def macvlan() -> None:
    """Skip a test if the kernel has no macvlan."""
    need_kind("macvlan")


@pytest.mark.usefixtures("macvlan")
@pytest.mark.parametrize("mode", ["bridge", "private", "vepa", "passthru"])
def test_modes_of_macvlan(world: World, mode: str) -> None:
    """The link has the mode of the configuration, which CHECK compares."""
    config, request = world.config("macvlan", mode=mode), world.pod()
    result = add(config, request)
    link = pod_link(request)
    assert link is not None and link.mode == mode
    check(config, request, result)
    other = "vepa" if mode == "bridge" else "bridge"
    with pytest.raises(NetworkError, match=f"^interface eth0 has the mode {mode}, not {other}$"):
        check({**config, "mode": other}, request, result)


@pytest.mark.usefixtures("macvlan")
def test_what_macvlan_does_by_itself(world: World) -> None:
    """The mode is bridge, the link below that of the default route, and the packets are as large as there."""
    run("ip", "link", "set", "up0", "mtu", "1450")
    config, request = {**world.config("macvlan"), "master": ""}, world.pod()
    add(config, request)
    link, below = pod_link(request), Links().get("up0")
    assert link is not None and (link.mode, link.peer, link.mtu) == ("bridge", below.index, 1450)
    run("ip", "route", "delete", "default")
    with pytest.raises(NetworkError, match=f"{PLACE}master: there is no default route on the host$"):
        add(config, world.pod())


@pytest.mark.usefixtures("macvlan")
def test_sizes_and_queues_of_macvlan(world: World) -> None:
    """Packets are as large as configured, and so many to all may wait."""
    request = world.pod()
    add(world.config("macvlan", mtu=1400, bcqueuelen=77), request)
    shown = in_pod(request, "ip", "-d", "link", "show", "eth0")
    assert " mtu 1400 " in shown and " bcqueuelen 77 " in shown
    with pytest.raises(ManifestError, match=f"{PLACE}mtu: expected at most 1500, as up0 has, got 1501$"):
        add(world.config("macvlan", mtu=1501), world.pod())


@pytest.mark.usefixtures("macvlan")
def test_whose_hardware_address_counts(world: World) -> None:
    """That of the capability comes before that of CNI_ARGS, and this one before that of the configuration."""

    def given(args: str = "", **more: Any) -> str:
        request = world.pod(args)
        add(world.config("macvlan", **more), request)
        link = pod_link(request)
        assert link is not None
        return link.mac

    one, two, three = (f"02:00:00:00:00:0{digit}" for digit in "abc")
    assert given(mac=one.upper()) == one
    assert given(f"MAC={two}", mac=one) == two
    assert given(f"MAC={two};IP=10.5.0.77", runtimeConfig={"mac": three}, mac=one) == three
    with pytest.raises(ManifestError, match=f"{PLACE}mac: expected a hardware address"):
        given(mac="02:00")


@pytest.mark.usefixtures("macvlan")
def test_a_link_on_top_of_one_of_the_pod(world: World) -> None:
    """With `linkInContainer` the link below is the pod's, also that of the default route."""
    request = world.pod()
    in_pod(request, *["ip", "link", "add", "inner", "type", "veth", "peer", "name", "inner2"])
    in_pod(request, "ip", "link", "set", "inner", "up")
    in_pod(request, "ip", "link", "set", "inner2", "up")
    config = world.config("macvlan", master="inner", linkInContainer=True)
    result = add(config, request)
    assert "eth0@inner:" in in_pod(request, "ip", "link", "show", "eth0")
    check(config, request, result)
    delete(config, request)
    in_pod(request, "ip", "route", "add", "default", "dev", "inner")
    add({**config, "master": ""}, request)
    assert "eth0@inner:" in in_pod(request, "ip", "link", "show", "eth0")
    with pytest.raises(NetworkError, match=f"{PLACE}master: there is no interface up0 in the pod$"):
        add({**config, "master": "up0"}, world.pod())


@pytest.mark.usefixtures("macvlan")
def test_a_network_without_addresses(world: World) -> None:
    """The pod's link is up, without an address; the name servers are those of the configuration."""
    request = world.pod()
    config = world.config("macvlan", ipam={}, dns={"nameservers": ["10.5.0.1"]})
    result = add(config, request)
    link = pod_link(request)
    assert link is not None and link.up
    assert (result.addresses, result.dns) == ((), Dns(nameservers=("10.5.0.1",)))
    check(config, request, result)


def test_vlans(world: World) -> None:
    """The link is in the VLAN of that number, which CHECK compares, with packets as large as configured."""
    need_kind("vlan")
    config, request = world.config("vlan", vlanId=99, mtu=1400), world.pod()
    result = add(config, request)
    link = pod_link(request)
    assert link is not None and (link.vlan, link.mtu, link.mac) == (99, 1400, MAC)
    check(config, request, result)
    with pytest.raises(NetworkError, match="^interface eth0 has the vlan 99, not 98$"):
        check({**config, "vlanId": 98}, request, result)
    with pytest.raises(NetworkError, match=r"^cannot create vlan eth0: file exists \(.*VLAN device already exists\)$"):
        add(config, world.pod())


@pytest.mark.parametrize("mode", ["l2", "l3", "l3s"])
def test_modes_of_ipvlan(world: World, mode: str) -> None:
    """The link has the mode of the configuration, which CHECK compares, and the hardware address of the one below."""
    need_kind("ipvlan")
    config, request = world.config("ipvlan", mode=mode, mtu=1400), world.pod()
    result = add(config, request)
    link = pod_link(request)
    assert link is not None and (link.mode, link.mac, link.mtu) == (mode, MAC, 1400)
    check(config, request, result)
    other = "l3" if mode == "l2" else "l2"
    with pytest.raises(NetworkError, match=f"^interface eth0 has the mode {mode}, not {other}$"):
        check({**config, "mode": other}, request, result)


def test_ipvlan_after_another_plugin(world: World) -> None:
    """It is on top of the one interface of the result before, and has the addresses of that without a manager."""
    need_kind("ipvlan")
    request = world.pod()
    leased = call_manager(world, request)
    previous = replace(leased, interfaces=(Interface(name="up0", mac=MAC),))
    config = {**world.config("ipvlan", ipam={}), "master": ""}
    result = add(config, request, previous)
    assert [one.address for one in result.addresses] == [one.address for one in leased.addresses]
    assert result.routes == leased.routes
    check(config, request, result)
    delete(config, request)
    assert len(world.leased()) == 2  # those of the plugin before are its own to give back


def call_manager(world: World, request: Any) -> Result:
    """Return addresses as a plugin before would have them."""
    return add({**world.config("dummy"), "type": "host-local"}, request)


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "a mode": ("macvlan", {"mode": "source"}, 'mode: expected "private" or .*, got "source"$'),
    "a mode of ipvlan": ("ipvlan", {"mode": "l1"}, 'mode: expected "l2" or "l3" or "l3s", got "l1"$'),
    "a master": ("macvlan", {"master": "none"}, "master: there is no interface none on the host$"),
    "a name": ("ipvlan", {"master": "a/b"}, "master: expected the name of an interface"),
    "no master": ("vlan", {"master": ""}, "master: expected the name of an interface"),
    "a number": ("vlan", {"vlanId": 4095}, "vlanId: expected an integer from 0 to 4094, got 4095$"),
    "a queue": ("macvlan", {"bcqueuelen": -1}, "bcqueuelen: expected an integer from 0"),
    "no manager of vlan": ("vlan", {"ipam": {}}, "ipam: expected an address manager"),
    "no manager of ipvlan": ("ipvlan", {"ipam": {}}, "ipam: expected an address manager"),
    "no manager of dummy": ("dummy", {"ipam": {}}, "ipam: expected an address manager"),
    "no device": ("host-device", {"device": ""}, "device: expected the name of an interface, or one of hwaddr"),
    "a device": ("host-device", {"device": "none"}, "device: there is no such interface on the host: none$"),
    "an address": ("host-device", {"device": "", "hwaddr": "1"}, "hwaddr: expected a hardware address"),
    "a stranger": ("host-device", {"device": "", "hwaddr": "02:0:0:0:0:1"}, "hwaddr: expected a hardware address"),
    "a path": ("host-device", {"device": "", "kernelpath": "/dev"}, "kernelpath: expected a path below /sys/devices/"),
    "a place": (
        "host-device",
        {"device": "", "pciBusID": "9999:0"},
        "pciBusID: there is no such interface on the host",
    ),
    "an identity": (
        "host-device",
        {"device": "", "runtimeConfig": {"deviceID": "x"}},
        "runtimeConfig.deviceID: there is no device x of PCI or of the auxiliary bus$",
    ),
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_what_is_wrong_is_named(world: World, name: str) -> None:
    """The error is a line with the file, the key and the value, and nothing is leased or made."""
    kind, more, message = WRONG[name]
    before, request = world.traces(), world.pod()
    with pytest.raises(MinitError, match=PLACE + message):
        add(world.config(kind, **more), request)
    assert world.traces() == before
    assert pod_link(request) is None


def test_a_device_of_the_host(world: World) -> None:
    """It is the pod's with its old name as alias, and the host's again after DEL, down and without an alias."""
    config, request = world.config("host-device"), world.pod()
    result = add(config, request)
    link = pod_link(request)
    assert link is not None and (link.alias, link.mac) == ("up0", MAC)
    assert result.interfaces == (Interface(name="eth0", mac=MAC, sandbox=request.namespace),)
    assert Links().find("up0") is None
    delete(config, request)
    link = Links().get("up0")
    assert (link.alias, link.up, link.mac) == ("", False, MAC)


def test_a_device_by_its_hardware_address(world: World) -> None:
    """The configuration need not know its name, which it has again afterwards."""
    config = {**world.config("host-device", hwaddr=MAC.upper()), "device": ""}
    request = world.pod()
    add(config, request)
    delete(config, request)
    assert Links().get("up0").mac == MAC


def test_a_device_whose_name_the_pod_has(world: World) -> None:
    """It can go into the pod and out of it although the pod has an interface of its name on the host."""
    request = world.pod()
    in_pod(request, *["ip", "link", "add", "up0", "type", "bridge"])
    config = world.config("host-device")
    add(config, request)
    delete(config, request)
    assert Links().get("up0").mac == MAC
    assert "up0" in in_pod(request, "ip", "link", "show", "type", "bridge")


def test_a_device_whose_name_is_taken(world: World) -> None:
    """It stays in the pod until the name is free."""
    config, request = world.config("host-device"), world.pod()
    add(config, request)
    run(*["ip", "link", "add", "up0", "type", "bridge"])
    with pytest.raises(NetworkError, match="^cannot move eth0 back to the host: there is another interface up0$"):
        delete(config, request)
    run(*["ip", "link", "delete", "up0"])
    delete(config, request)
    assert Links().get("up0").mac == MAC


def test_a_device_that_the_kernel_gave_back(world: World) -> None:
    """A card that the host has again because the pod's namespace is no more gets its name at the next DEL."""
    run(*["ip", "link", "set", "up0", "down"])
    run(*["ip", "link", "set", "up0", "name", "dev7"])
    run(*["ip", "link", "set", "dev7", "alias", "up0"])
    delete(world.config("host-device"), replace(world.pod(), namespace=""))
    link = Links().get("up0")
    assert (link.mac, link.alias) == (MAC, "")


def in_fake_sysfs(directory: Path, function: Callable[[], str]) -> str:
    """Return what a function returns or fails with while a directory is mounted at /sys."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            syscalls.unshare(syscalls.CLONE_NEWNS)
            syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
            syscalls.mount(str(directory), "/sys", None, syscalls.MS_BIND)
            try:
                said = function()
            except MinitError as error:
                said = describe(error)
            os.write(writer, said.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def test_devices_by_their_places(world: World, tmp_path: Path) -> None:
    """A card is found on the buses of PCI and of auxiliary devices, a virtio device below its own; DPDK is refused."""
    sysfs = tmp_path / "sys"
    for place in ("pci/devices/0000:00:03.0/net", "pci/devices/0000:00:04.0/virtio1/net", "auxiliary/devices/sf.1/net"):
        (sysfs / "bus" / place / "up0").mkdir(parents=True)
    (sysfs / "devices/card/net/up0").mkdir(parents=True)
    (sysfs / "bus/pci/devices/0000:00:05.0").mkdir()
    (sysfs / "bus/pci/devices/0000:00:05.0/driver").symlink_to("../../drivers/vfio-pci")

    def find(**config: Any) -> str:
        return in_fake_sysfs(sysfs, lambda: find_device(Node(config, None, "net.conf"), Links()).name)

    assert find(pciBusID="0000:00:03.0") == "up0"
    assert find(pciBusID="0000:00:04.0") == "up0"
    assert find(kernelpath="/sys/devices/card") == "up0"
    assert find(runtimeConfig={"deviceID": "0000:00:03.0"}) == "up0"
    assert find(runtimeConfig={"deviceID": "sf.1"}) == "up0"
    refused = "net.conf: pciBusID: 0000:00:05.0 has the driver vfio-pci, and so no interface: DPDK is not provided"
    assert find(pciBusID="0000:00:05.0") == refused
