"""The plugin ipvlan: a link of the pod's with the hardware address of one of the host, and other IP addresses."""

from __future__ import annotations

from minit.base.errors import NetworkError
from minit.network.builtin import podlink
from minit.network.builtin.attachment import Sides, Undo
from minit.network.builtin.call import Call
from minit.network.builtin.settings import dns, interface_name, ipam_type, mtu
from minit.network.netlink.newlinks import IPVLAN, IPVLAN_MODES, NewLink, ipvlan_data
from minit.network.protocol.result import Result

_DEFAULT_MODE = "l2"


def add(call: Call) -> Result:
    """
    Connect the pod; NetworkError, with nothing left of it, if it cannot be.

    In a list, the addresses and routes are those of the plugin before if the network has no address manager of its own.
    """
    config, request, mode = call.config, call.request, _mode(call)
    given = _given(call)
    if given is None:
        podlink.need_manager(config)
    names = dns(config)
    with Sides(request) as sides, Undo() as undo:
        links, lower = podlink.below(call, sides, _default_below(call))
        new = NewLink(kind=IPVLAN, name=request.interface, lower=lower.index, mtu=mtu(config), data=ipvlan_data(mode))
        pod = podlink.make(sides, links, request, new, undo)
        # In modes other than l2 the pod is behind a router, the host, and the kernel asks no neighbours by itself.
        return podlink.connect(call, sides, pod, undo, names, leased=given)


def delete(call: Call) -> None:
    """Remove the pod's link and give back its addresses."""
    podlink.delete(call, IPVLAN)


def check(call: Call) -> None:
    """Raise NetworkError with what differs from the result of `add`."""
    if call.config["master"].raw():
        podlink.check_below(call)
    podlink.check(call, IPVLAN, mode=_mode(call))


def _mode(call: Call) -> str:
    node = call.config["mode"]
    return node.one_of(*IPVLAN_MODES) if node.raw() else _DEFAULT_MODE


def _given(call: Call) -> Result | None:
    """Return the result of the plugin before if it has the pod's addresses."""
    has_addresses = call.previous is not None and call.previous.addresses
    return call.previous if has_addresses and ipam_type(call.config) is None else None


def _default_below(call: Call) -> str | None:
    """Return the name of the one link of the plugin before, None if this plugin is the first."""
    if call.previous is None or interface_name(call.config["master"]) is not None:
        return None
    if len(call.previous.interfaces) != 1 or not call.previous.interfaces[0].name:
        raise NetworkError("the result of the plugin before has not one interface, which could be the master")
    return call.previous.interfaces[0].name
