"""
The plugin host-device: a link of the host, most often a network card, which is the pod's until DEL.

Its alias has the name it had on the host while it is in the pod, as with the reference plugin. A kernel that removes
a network namespace gives its cards back by itself, but neither their names nor their aliases.
"""

from __future__ import annotations

from minit.errors import NetworkError
from minit.network.builtin import attachment, podlink
from minit.network.builtin.attachment import Sides, Undo, pod_links
from minit.network.builtin.call import Call
from minit.network.builtin.hostlink import find_device
from minit.network.builtin.settings import dns, interface_name, ipam_type
from minit.network.namespace import own_namespace
from minit.network.netlink.links import Links
from minit.network.netlink.messages import Link
from minit.network.protocol.request import Request
from minit.network.protocol.result import Dns, Result


def add(call: Call) -> Result:
    """Move the link into the pod; NetworkError, with the link on the host again, if it cannot be."""
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
    """Move the link back to the host, where it has its old name and is down, and give back its addresses."""
    attachment.remove(call, lambda: _move_back(call))


def check(call: Call) -> None:
    """Raise NetworkError with what differs from the result of `add`."""
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
    """Return the link that ADD has moved into the pod, or that a DEL has not moved back; None if there is none."""
    link = pod.find(request.interface)
    if link is not None and link.alias:
        return link
    return next((one for one in pod.all() if one.alias and one.alias in (one.name, configured)), None)


def _take_back(pod: Links, host: Links, link: Link | None, name: str) -> None:
    if link is None:
        return
    if host.find(name) is not None:
        raise NetworkError(f"cannot move {link.name} back to the host: there is another interface {name}")
    # Nothing on the host is to see it by the name that it had in the pod.
    if pod.find(name) is None:
        pod.rename(link, name, alias=name)
    with own_namespace() as own:
        pod.move(link, own, name, alias="")


def _restore_name(host: Links, name: str) -> None:
    """Give a link its name that the kernel moved to the host because the pod's namespace is no more."""
    if host.find(name) is not None:
        return
    link = next((one for one in host.all() if one.alias == name), None)
    if link is not None:
        host.rename(link, name, alias="")
