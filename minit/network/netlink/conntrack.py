"""
Forgetting the ways of datagrams in the kernel's table of connections: NAT is decided only once for each connection.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection
from ipaddress import ip_address
from typing import Any

from pyroute2.netlink import NLA_F_NESTED, nla
from pyroute2.netlink.nfnetlink import NFNL_SUBSYS_CTNETLINK, nfgen_msg

from minit.base.errors import NetworkError, describe
from minit.network.addresses import IPAddress
from minit.network.netlink.transport import NETLINK_NETFILTER, Netlink

_MESSAGE_GET = 1
_MESSAGE_DELETE = 2
_UDP = 17
# CTA_FILTER_F_CTA_PROTO_NUM and _DST_PORT of the kernel's nf_internals.h, which no header shows to programs.
_BY_PROTOCOL = 1 << 3
_BY_PORT = 1 << 5
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}


def forget_datagrams(first: int, count: int, addresses: Collection[IPAddress]) -> None:
    """
    Forget the UDP conversations with `count` ports, from the first on, of these addresses of this machine.

    As long as datagrams kept coming, they would go their old way, to a pod that has ended or to nobody.
    """
    try:
        with Netlink(NETLINK_NETFILTER) as netlink:
            for version in {address.version for address in addresses}:
                for entry in netlink.dump(_request(version, first if count == 1 else None)):
                    address, port = _destination(entry)
                    if address in addresses and first <= port < first + count:
                        _delete(netlink, version, entry)
    except OSError as error:
        if error.errno not in (errno.EPROTONOSUPPORT, errno.EOPNOTSUPP, errno.EINVAL):  # without CONFIG_NF_CT_NETLINK
            raise NetworkError(f"cannot forget conversations with udp port {first}: {describe(error)}") from error


class _Entry(nfgen_msg):  # type: ignore[misc]
    # The used part of linux/netfilter/nfnetlink_conntrack.h.
    nla_map = ((1, "CTA_TUPLE_ORIG", "cta_tuple"), (25, "CTA_FILTER", "cta_filter"))

    class cta_tuple(nla):  # type: ignore[misc]
        nla_flags = NLA_F_NESTED
        nla_map = ((1, "CTA_TUPLE_IP", "cta_ip"), (2, "CTA_TUPLE_PROTO", "cta_proto"))

        class cta_ip(nla):  # type: ignore[misc]
            nla_flags = NLA_F_NESTED
            nla_map = (
                (1, "CTA_IP_V4_SRC", "ip4addr"),
                (2, "CTA_IP_V4_DST", "ip4addr"),
                (3, "CTA_IP_V6_SRC", "ip6addr"),
                (4, "CTA_IP_V6_DST", "ip6addr"),
            )

        class cta_proto(nla):  # type: ignore[misc]
            nla_flags = NLA_F_NESTED
            nla_map = (
                (1, "CTA_PROTO_NUM", "uint8"),
                (2, "CTA_PROTO_SRC_PORT", "be16"),
                (3, "CTA_PROTO_DST_PORT", "be16"),
            )

    class cta_filter(nla):  # type: ignore[misc]
        nla_flags = NLA_F_NESTED
        nla_map = ((1, "CTA_FILTER_ORIG_FLAGS", "uint32"), (2, "CTA_FILTER_REPLY_FLAGS", "uint32"))


def _request(version: int, port: int | None) -> Any:
    """Return the request for all UDP conversations of a family, or only for those with a given port."""
    protocol: list[tuple[str, object]] = [("CTA_PROTO_NUM", _UDP)]
    if port is not None:
        protocol.append(("CTA_PROTO_DST_PORT", port))
    by = _BY_PROTOCOL if port is None else _BY_PROTOCOL | _BY_PORT
    flags = [("CTA_FILTER_ORIG_FLAGS", by), ("CTA_FILTER_REPLY_FLAGS", 0)]
    return _message(
        _MESSAGE_GET,
        version,
        ("CTA_TUPLE_ORIG", {"attrs": [("CTA_TUPLE_PROTO", {"attrs": protocol})]}),
        ("CTA_FILTER", {"attrs": flags}),
    )


def _delete(netlink: Netlink, version: int, entry: Any) -> None:
    request = _message(
        _MESSAGE_DELETE, version, ("CTA_TUPLE_ORIG", {"attrs": entry.get_attr("CTA_TUPLE_ORIG")["attrs"]})
    )
    try:
        netlink.request(request)
    except FileNotFoundError:
        pass  # it ended by itself


def _destination(entry: Any) -> tuple[IPAddress, int]:
    address = entry.get_nested("CTA_TUPLE_ORIG", "CTA_TUPLE_IP")
    port = entry.get_nested("CTA_TUPLE_ORIG", "CTA_TUPLE_PROTO", "CTA_PROTO_DST_PORT")
    return ip_address(address.get_attr("CTA_IP_V4_DST") or address.get_attr("CTA_IP_V6_DST")), port


def _message(number: int, version: int, *attributes: tuple[str, object]) -> Any:
    message = _Entry()
    message["header"]["type"] = NFNL_SUBSYS_CTNETLINK << 8 | number
    message["nfgen_family"] = _FAMILIES[version]
    message["attrs"] = list(attributes)
    return message
