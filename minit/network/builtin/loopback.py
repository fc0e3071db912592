"""The plugin loopback: `lo` of the pod."""

from __future__ import annotations

import os

from minit.errors import NetworkError
from minit.network.builtin.call import Call
from minit.network.netlink.links import Links, open_namespace
from minit.network.protocol.result import Address, Interface, Result

_NAME = "lo"
_MAC = "00:00:00:00:00:00"


def add(call: Call) -> Result:
    """Bring `lo` up, and pass on what plugins before have returned."""
    namespace = open_namespace(call.request.namespace)
    try:
        with Links(namespace) as pod:
            link = pod.get(_NAME)
            pod.set_up(link)
            addresses = pod.addresses(link)
    finally:
        os.close(namespace)
    return call.previous or Result(
        interfaces=(Interface(name=_NAME, mac=_MAC, sandbox=call.request.namespace),),
        addresses=tuple(Address(address=address, interface=0) for address in addresses),
    )


def delete(call: Call) -> None:
    """Bring `lo` down, if there still is a namespace."""
    try:
        namespace = open_namespace(call.request.namespace)
    except FileNotFoundError:
        return
    try:
        with Links(namespace) as pod:
            pod.set_up(pod.get(_NAME), up=False)
    finally:
        os.close(namespace)


def check(call: Call) -> None:
    """Raise NetworkError if `lo` is down."""
    namespace = open_namespace(call.request.namespace)
    try:
        with Links(namespace) as pod:
            if not pod.get(_NAME).up:
                raise NetworkError("interface lo is down")
    finally:
        os.close(namespace)
