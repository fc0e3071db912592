"""Finding the link of the host that a configuration of host-device means: by name, hardware address, or place."""

from __future__ import annotations

import os

from minit.errors import NetworkError
from minit.manifest.reader import Node
from minit.network.builtin.settings import file_name, interface_name, mac_address
from minit.network.netlink.links import Links
from minit.network.netlink.messages import Link

_KERNEL_DEVICES = "/sys/devices/"
_PCI = "/sys/bus/pci/devices"
_AUXILIARY = "/sys/bus/auxiliary/devices"
_BUSES = (_PCI, _AUXILIARY)
_USERSPACE_DRIVERS = ("vfio-pci", "uio_pci_generic", "igb_uio")
_VIRTIO = "virtio"


def find_device(config: Node, host: Links) -> Link:
    """Return the link, by the first of `device`, `hwaddr`, `kernelpath` and `pciBusID` that is given."""
    name, mac = interface_name(config["device"]), mac_address(config["hwaddr"])
    if name is not None:
        node, link = config["device"], host.find(name)
    elif mac is not None:
        node, link = config["hwaddr"], next((one for one in host.all() if one.mac == mac), None)
    else:
        node, directory = _place(config)
        name = _first_interface(directory)
        link = None if name is None else host.find(name)
    if link is None:
        raise NetworkError(f"{node.where}: there is no such interface on the host: {node.raw()}")
    return link


def _place(config: Node) -> tuple[Node, str]:
    """Return the key that says where the device is, and its directory in sysfs(5)."""
    identity, kernel_path, address = config["runtimeConfig"]["deviceID"], config["kernelpath"], config["pciBusID"]
    if kernel_path.raw():
        return kernel_path, kernel_path.matching(_is_kernel_path, f"a path below {_KERNEL_DEVICES}")
    if identity.raw():
        name = file_name(identity, "the name of a device")
        directory = next((f"{bus}/{name}" for bus in _BUSES if os.path.exists(f"{bus}/{name}")), None)
        if directory is None:
            raise NetworkError(f"{identity.where}: there is no device {name} of PCI or of the auxiliary bus")
    elif address.raw():
        directory = f"{_PCI}/{file_name(address, 'the address of a device')}"
    else:
        raise config["device"].error("the name of an interface, or one of hwaddr, kernelpath and pciBusID")
    _refuse_userspace_driver(identity if identity.raw() else address, directory)
    return (identity if identity.raw() else address), directory


def _refuse_userspace_driver(node: Node, directory: str) -> None:
    """NetworkError for a device that the kernel has given away to a program: DPDK, which needs no interface."""
    try:
        driver = os.path.basename(os.readlink(f"{directory}/driver"))
    except OSError:
        return
    if driver in _USERSPACE_DRIVERS:
        raise NetworkError(
            f"{node.where}: {node.raw()} has the driver {driver}, and so no interface: DPDK is not provided"
        )


def _first_interface(directory: str) -> str | None:
    """Return the first interface of a device, or of the virtio device that is its only child."""
    try:
        children = [name for name in sorted(os.listdir(directory)) if name.startswith(_VIRTIO)]
    except OSError:
        return None
    for place in (directory, *(f"{directory}/{child}" for child in children)):
        try:
            return min(os.listdir(f"{place}/net"), default=None)
        except OSError:
            continue
    return None


def _is_kernel_path(path: str) -> bool:
    return path.startswith(_KERNEL_DEVICES) and ".." not in path.split("/")
