"""The plugins that change what others of a list have made: they need the result of the one before."""

from __future__ import annotations

from minit.errors import NetworkError
from minit.network.builtin.attachment import Sides
from minit.network.builtin.call import Call
from minit.network.netlink.messages import Link
from minit.network.protocol.request import Request
from minit.network.protocol.result import Result

_VETH = "veth"


def result_before(call: Call) -> Result:
    """Return the result of the plugin before or, for CHECK, of the last ADD; NetworkError if there is none."""
    if call.previous is None:
        place = call.config.where
        raise NetworkError(f"{place}: prevResult is missing: the plugin has to follow another one in a list")
    return call.previous


def find_host_end(sides: Sides, request: Request) -> Link | None:
    """Return the other end of the pod's link if that is one of the host's, None for another kind of link."""
    pod = sides.pod.find(request.interface)
    host = sides.host.at(pod.peer) if pod is not None and pod.kind == _VETH else None
    # An index of another namespace may be one of the host's, too.
    return host if pod is not None and host is not None and (host.kind, host.peer) == (_VETH, pod.index) else None
