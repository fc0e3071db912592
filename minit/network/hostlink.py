"""The addresses of the host, and which of its interfaces leads to a pod."""

from __future__ import annotations

import socket

from pyroute2.netlink.rtnl import RTM_GETADDR, RTM_GETROUTE
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from minit.errors import NetworkError, describe
from minit.network.netlink.transport import NETLINK_ROUTE, Netlink

_ADDRESS_BITS = 32


def host_interface(address: str, gateway: str) -> str:
    """
    Return the name of the interface by which this machine reaches the pod's `address`.

    NetworkError unless `gateway` is an address of this machine: where the pod's answers go by somebody else they do
    not come back to be translated.
    """
    if gateway not in host_addresses():
        raise NetworkError(f'no interface found with IP "{gateway}": ports are forwarded by the pod\'s gateway')
    try:
        with Netlink(NETLINK_ROUTE) as netlink:
            return socket.if_indextoname(_interface_towards(netlink, address))
    except OSError as error:
        raise NetworkError(f"cannot find the interface that leads to {address}: {describe(error)}") from error


def host_addresses() -> set[str]:
    """Return the IPv4 addresses of this machine."""
    request = ifaddrmsg()
    request["header"]["type"] = RTM_GETADDR
    request["family"] = socket.AF_INET
    try:
        with Netlink(NETLINK_ROUTE) as netlink:
            answers = netlink.dump(request)
    except OSError as error:
        raise NetworkError(f"cannot read the addresses of this machine: {describe(error)}") from error
    # Between point-to-point ends IFA_ADDRESS is the other one's.
    return {str(one.get_attr("IFA_LOCAL") or one.get_attr("IFA_ADDRESS")) for one in answers}


def _interface_towards(netlink: Netlink, address: str) -> int:
    request = rtmsg()
    request["header"]["type"] = RTM_GETROUTE
    request["family"] = socket.AF_INET
    request["dst_len"] = _ADDRESS_BITS
    request["attrs"] = [("RTA_DST", address)]
    return int(netlink.ask(request).get_attr("RTA_OIF"))
