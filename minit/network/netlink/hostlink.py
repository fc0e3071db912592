"""The addresses of the host, and which of its interfaces leads to a pod."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from pyroute2.netlink.rtnl import RTM_GETADDR, RTM_GETROUTE
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from minit.base.errors import NetworkError, describe
from minit.network.addresses import IPAddress
from minit.network.netlink.transport import NETLINK_ROUTE, Netlink


def host_interface(address: IPAddress, gateway: IPAddress) -> str:
    """
    Return the name of the interface by which this machine reaches the pod's `address`.

    NetworkError unless `gateway` is an address of this machine: where the pod's answers go by somebody else they do
    not come back to be translated.
    """
    if gateway not in host_addresses():
        raise NetworkError(f'no interface found with IP "{gateway}": ports are forwarded by the pod\'s gateway')
    try:
        return _interface_towards(address)
    except OSError as error:
        raise NetworkError(f"cannot find the interface that leads to {address}: {describe(error)}") from error


def interface_towards(address: IPAddress) -> str | None:
    """Return the name of the interface by which this machine reaches an address, None if it does not."""
    try:
        return _interface_towards(address)
    except OSError:
        return None


def host_addresses() -> set[IPAddress]:
    """Return the addresses of this machine."""
    request = ifaddrmsg()
    request["header"]["type"] = RTM_GETADDR
    try:
        with Netlink(NETLINK_ROUTE) as netlink:
            answers = netlink.dump(request)
    except OSError as error:
        raise NetworkError(f"cannot read the addresses of this machine: {describe(error)}") from error
    # Between point-to-point ends IFA_ADDRESS is the other one's.
    return {ip_address(one.get_attr("IFA_LOCAL") or one.get_attr("IFA_ADDRESS")) for one in answers}


def _interface_towards(address: IPAddress) -> str:
    request = rtmsg()
    request["header"]["type"] = RTM_GETROUTE
    request["family"] = socket.AF_INET if address.version == 4 else socket.AF_INET6
    request["dst_len"] = address.max_prefixlen
    request["attrs"] = [("RTA_DST", str(address))]
    with Netlink(NETLINK_ROUTE) as netlink:
        return socket.if_indextoname(netlink.ask(request).get_attr("RTA_OIF"))
