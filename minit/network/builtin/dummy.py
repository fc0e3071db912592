"""The plugin dummy: a link of the pod's that leads nowhere, for addresses that are to be there."""

from __future__ import annotations

from minit.network.builtin import podlink
from minit.network.builtin.attachment import Sides, Undo
from minit.network.builtin.call import Call
from minit.network.netlink.newlinks import DUMMY, NewLink
from minit.network.protocol.result import Result


def add(call: Call) -> Result:
    """Make the link; NetworkError, with nothing left of it, if it cannot be."""
    request = call.request
    podlink.need_manager(call.config)
    with Sides(request) as sides, Undo() as undo:
        pod = podlink.make(sides, sides.pod, request, NewLink(kind=DUMMY, name=request.interface), undo)
        return podlink.connect(call, sides, pod, undo, has_neighbours=False)


def delete(call: Call) -> None:
    """Remove the link and give back its addresses."""
    podlink.delete(call, DUMMY)


def check(call: Call) -> None:
    """Raise NetworkError with what differs from the result of `add`."""
    podlink.check(call, DUMMY)
