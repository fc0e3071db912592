"""The plugin macvlan: a link of the pod's with a hardware address of its own, in the network of a link of the host."""

from __future__ import annotations

from minit.network.builtin import podlink
from minit.network.builtin.arguments import requested_mac
from minit.network.builtin.attachment import Sides, Undo
from minit.network.builtin.call import Call
from minit.network.builtin.settings import dns, mac_address
from minit.network.netlink.newlinks import MACVLAN, MACVLAN_MODES, NewLink, macvlan_data
from minit.network.protocol.result import Result

_DEFAULT_MODE = "bridge"
_LARGEST_QUEUE = (1 << 32) - 1


def add(call: Call) -> Result:
    """Connect the pod; NetworkError, with nothing left of it, if it cannot be."""
    config, request, mode = call.config, call.request, _mode(call)
    names, mac = dns(config), requested_mac(call) or mac_address(config["mac"])
    queue = config["bcqueuelen"].optional(lambda node: node.integer(0, _LARGEST_QUEUE)) or None
    with Sides(request) as sides, Undo() as undo:
        links, lower = podlink.below(call, sides)
        new = NewLink(
            kind=MACVLAN,
            name=request.interface,
            lower=lower.index,
            mtu=podlink.size(config, lower),
            mac=mac,
            data=macvlan_data(mode, queue),
        )
        pod = podlink.make(sides, links, request, new, undo)
        return podlink.connect(call, sides, pod, undo, names)


def delete(call: Call) -> None:
    """Remove the pod's link and give back its addresses."""
    podlink.delete(call, MACVLAN)


def check(call: Call) -> None:
    """Raise NetworkError with what differs from the result of `add`."""
    podlink.check_below(call)
    podlink.check(call, MACVLAN, mode=_mode(call))


def _mode(call: Call) -> str:
    node = call.config["mode"]
    return node.one_of(*MACVLAN_MODES) if node.raw() else _DEFAULT_MODE
