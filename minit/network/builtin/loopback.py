"""The plugin loopback: `lo` of the pod."""

from __future__ import annotations

import os
from collections.abc import Mapping

from minit.errors import NetworkError
from minit.network.ipv4 import format_address
from minit.network.netlink.links import Links, open_namespace
from minit.network.request import Request
from minit.network.result import Address, Interface, Result

_NAME = "lo"
_MAC = "00:00:00:00:00:00"


def add(config: Mapping[str, object], request: Request, previous: Result | None) -> Result:
    """Bring `lo` up, and pass on what plugins before have returned."""
    namespace = open_namespace(request.namespace)
    try:
        with Links(namespace) as pod:
            link = pod.get(_NAME)
            pod.set_up(link)
            addresses = pod.addresses(link)
    finally:
        os.close(namespace)
    return previous or Result(
        interfaces=(Interface(name=_NAME, mac=_MAC, sandbox=request.namespace),),
        addresses=tuple(
            Address(address=f"{format_address(address)}/{prefix}", interface=0) for address, prefix in addresses
        ),
    )


def delete(config: Mapping[str, object], request: Request) -> None:
    """Bring `lo` down, if there still is a namespace."""
    try:
        namespace = open_namespace(request.namespace)
    except FileNotFoundError:
        return
    try:
        with Links(namespace) as pod:
            pod.set_up(pod.get(_NAME), up=False)
    finally:
        os.close(namespace)


def check(config: Mapping[str, object], request: Request, previous: Result | None) -> None:
    """Raise NetworkError if `lo` is down."""
    namespace = open_namespace(request.namespace)
    try:
        with Links(namespace) as pod:
            if not pod.get(_NAME).up:
                raise NetworkError("interface lo is down")
    finally:
        os.close(namespace)
