"""
The plugin host-device: a link of the host, most often a network card, which is the pod's until DEL.

In the pod the link's alias is its name on the host, as with the reference plugin. A kernel that removes a network
namespace gives the cards back, but neither their names nor their aliases.
"""

from __future__ import annotations

import os

from minit.base.errors import NetworkError
from minit.manifest.reader import Node
from minit.network.builtin import attachment, podlink
from minit.network.builtin.call import Call, dns, file_name, interface_name, ipam_type, mac_address
from minit.network.builtin.sides import Sides, Undo, pod_links
from minit.network.namespace import own_namespace
from minit.network.netlink.links import Links
from minit.network.netlink.messages import Link
from minit.network.protocol import Dns, Request, Result

_KERNEL_DEVICES = "/sys/devices/"
_PCI = "/sys/bus/pci/devices"
_AUXILIARY = "/sys/bus/auxiliary/devices"
_BUSES = (_PCI, _AUXILIARY)
_USERSPACE_DRIVERS = ("vfio-pci", "uio_pci_generic", "igb_uio")
_VIRTIO = "virtio"


def add(call: Call) -> Result:
    """Move the link into the pod; NetworkError, with the link on the host again, on a failure."""
    config, request = call.config, call.request
    names = dns(config) if ipam_type(config) is not None else Dns()
    with Sides(request) as sides, Undo() as undo:
        device = find_device(config, sides.host)
        podlink.refuse_existing(sides, request)
        if device.up:
            undo.add(lambda: sides.host.set_up(sides.host.get(device.name)))
        undo.add(lambda: _take_back(sides.pod, sides.host, sides.pod.find(request.interface), device.name))
        sides.host.move(device, sides.namespace, request.interface, alias=device.name)
        pod = sides.pod.get(request.interface)
        return podlink.connect(call, sides, pod, undo, names)


def delete(call: Call) -> None:
    """Move the link back to the host, with its old name and down, and give back its addresses."""
    attachment.remove(call, lambda: _move_back(call))


def check(call: Call) -> None:
    """Raise NetworkError with the first difference from the result of `add`."""
    podlink.check(call, None)


def _move_back(call: Call) -> None:
    configured = interface_name(call.config["device"])
    with pod_links(call.request) as pod, Links() as host:
        if pod is not None:
            link = _moved(pod, call.request, configured)
            _take_back(pod, host, link, configured or (link.alias if link else ""))
        if configured is not None:
            _restore_name(host, configured)


def _moved(pod: Links, request: Request, configured: str | None) -> Link | None:
    """Return the link that ADD has moved into the pod, or that DEL has left there; None if there is none."""
    link = pod.find(request.interface)
    if link is not None and link.alias:
        return link
    return next((one for one in pod.all() if one.alias and one.alias in (one.name, configured)), None)


def _take_back(pod: Links, host: Links, link: Link | None, name: str) -> None:
    if link is None:
        return
    if host.find(name) is not None:
        raise NetworkError(f"cannot move {link.name} back to the host: there is another interface {name}")
    # No program on the host may see the link by its name in the pod.
    if pod.find(name) is None:
        pod.rename(link, name, alias=name)
    with own_namespace() as own:
        pod.move(link, own, name, alias="")


def _restore_name(host: Links, name: str) -> None:
    """Give back the name of a link that the kernel moved to the host after the end of the pod's namespace."""
    if host.find(name) is not None:
        return
    link = next((one for one in host.all() if one.alias == name), None)
    if link is not None:
        host.rename(link, name, alias="")


def find_device(config: Node, host: Links) -> Link:
    """Return the link, by the first given key of `device`, `hwaddr`, `kernelpath` and `pciBusID`."""
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
    """Return the key with the device's place, and the device's directory in sysfs(5)."""
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
    """Raise NetworkError for a device that the kernel has given to a program: DPDK, which needs no interface."""
    try:
        driver = os.path.basename(os.readlink(f"{directory}/driver"))
    except OSError:
        return
    if driver in _USERSPACE_DRIVERS:
        raise NetworkError(
            f"{node.where}: {node.raw()} has the driver {driver}, and so no interface: DPDK is not provided"
        )


def _first_interface(directory: str) -> str | None:
    """Return the first interface of a device, or of a virtio device below the device."""
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
