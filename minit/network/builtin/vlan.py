"""The plugin vlan: a link of the pod's in a VLAN of the network that a link of the host is in, IEEE 802.1Q."""

from __future__ import annotations

from minit.network.builtin import podlink
from minit.network.builtin.attachment import Sides, Undo
from minit.network.builtin.call import Call
from minit.network.builtin.settings import dns, interface_name, mtu
from minit.network.netlink.newlinks import VLAN, NewLink, vlan_data
from minit.network.protocol.result import Result

_LARGEST_NUMBER = 4094


def add(call: Call) -> Result:
    """Connect the pod; NetworkError, with nothing left of it, if it cannot be."""
    config, request, number = call.config, call.request, _number(call)
    if interface_name(config["master"]) is None:
        raise config["master"].error("the name of an interface")
    podlink.need_manager(config)
    names = dns(config)
    with Sides(request) as sides, Undo() as undo:
        links, lower = podlink.below(call, sides)
        new = NewLink(
            kind=VLAN,
            name=request.interface,
            lower=lower.index,
            mtu=podlink.size(config, lower),
            data=vlan_data(number),
        )
        pod = podlink.make(sides, links, request, new, undo)
        return podlink.connect(call, sides, pod, undo, names)


def delete(call: Call) -> None:
    """Remove the pod's link and give back its addresses."""
    podlink.delete(call, VLAN)


def check(call: Call) -> None:
    """Raise NetworkError with what differs from the result of `add`."""
    podlink.check_below(call)
    size = mtu(call.config)
    wanted = {} if size is None else {"mtu": size}
    podlink.check(call, VLAN, vlan=_number(call), **wanted)


def _number(call: Call) -> int:
    return call.config["vlanId"].optional(lambda node: node.integer(0, _LARGEST_NUMBER)) or 0
