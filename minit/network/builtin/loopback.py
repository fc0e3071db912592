"""The plugin loopback: `lo` of the pod."""

from __future__ import annotations

from minit.base.errors import NetworkError
from minit.network.builtin.attachment import Sides, pod_links
from minit.network.builtin.call import Call
from minit.network.protocol.result import Address, Interface, Result

_NAME = "lo"
_MAC = "00:00:00:00:00:00"


def add(call: Call) -> Result:
    """Bring `lo` up, and pass on what plugins before have returned."""
    with Sides(call.request) as sides:
        link = sides.pod.get(_NAME)
        sides.pod.set_up(link)
        addresses = sides.pod.addresses(link)
    return call.previous or Result(
        interfaces=(Interface(name=_NAME, mac=_MAC, sandbox=call.request.namespace),),
        addresses=tuple(Address(address=address, interface=0) for address in addresses),
    )


def delete(call: Call) -> None:
    """Bring `lo` down, if there still is a namespace."""
    with pod_links(call.request) as pod:
        if pod is not None:
            pod.set_up(pod.get(_NAME), up=False)


def check(call: Call) -> None:
    """Raise NetworkError if `lo` is down."""
    with Sides(call.request) as sides:
        if not sides.pod.get(_NAME).up:
            raise NetworkError("interface lo is down")
