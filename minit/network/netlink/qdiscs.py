"""
Token buckets, which limit the packets sent by a link, tc-tbf(8).

The messages are of linux/pkt_sched.h. pyroute2's own classes load every discipline.
"""

from __future__ import annotations

import errno
import struct
from typing import Any

from pyroute2.netlink import NLM_F_CREATE, NLM_F_EXCL, nlmsg
from pyroute2.netlink.rtnl import RTM_DELQDISC, RTM_GETQDISC, RTM_NEWQDISC

from minit.base.errors import NetworkError, describe
from minit.base.value import Value
from minit.network.netlink.messages import Link
from minit.network.netlink.transport import (
    NETLINK_ROUTE,
    Netlink,
    NetlinkError,
    WrittenMessage,
    attribute,
    nested,
    read_attributes,
    text,
)

_TBF = "tbf"
_ROOT = 0xFFFFFFFF
_HANDLE = 1 << 16
_HEADER = struct.Struct("=BxxxiIII")  # struct tcmsg
_KIND = 1
_OPTIONS = 2
_PARAMETERS = 1
_LARGE_RATE = 4
# struct tc_tbf_qopt: the rate at the end of its struct tc_ratespec; no rate for peaks; limit, buffer, no size for
# peaks.
_BUCKET = struct.Struct("=8xI12xII4x")
_RATE = struct.Struct("=Q")
_LARGEST_RATE = (1 << 32) - 1


class TokenBucket(Value):
    """
    A limit of bytes a second.

    As much as comes in `buffer_ticks` of 64 nanoseconds passes at once. No more than `limit_bytes` wait; the rest is
    dropped.
    """

    rate_bytes: int
    limit_bytes: int
    buffer_ticks: int


class Qdiscs:
    """The queueing disciplines of links in this process's network namespace."""

    def __init__(self) -> None:
        self._netlink = Netlink(NETLINK_ROUTE)

    def __enter__(self) -> Qdiscs:
        return self

    def __exit__(self, *_: object) -> None:
        self._netlink.__exit__()

    def token_bucket(self, link: Link) -> TokenBucket | None:
        """Return the limit of a link, None without one."""
        request = _Message()
        request["header"]["type"] = RTM_GETQDISC
        for answer in self._netlink.dump(request):
            if (answer["index"], answer["parent"], answer.get_attr("TCA_KIND")) == (link.index, _ROOT, _TBF):
                return _read_bucket(answer.get_attr("TCA_OPTIONS"))
        return None

    def add_token_bucket(self, link: Link, bucket: TokenBucket) -> None:
        """Limit the packets sent by a link; NetworkError if the kernel refuses, or the link has a limit."""
        rate = min(bucket.rate_bytes, _LARGEST_RATE)
        options = [attribute(_PARAMETERS, _BUCKET.pack(rate, bucket.limit_bytes, bucket.buffer_ticks))]
        if bucket.rate_bytes > _LARGEST_RATE:
            options.append(attribute(_LARGE_RATE, _RATE.pack(bucket.rate_bytes)))
        body = (_HEADER.pack(0, link.index, _HANDLE, _ROOT, 0), text(_KIND, _TBF), nested(_OPTIONS, *options))
        message = WrittenMessage(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, b"".join(body))
        try:
            self._netlink.request(message)
        except NetlinkError as error:
            raise NetworkError(f"cannot limit {link.name}: {refusal_of_bucket(error)}") from error

    def delete_token_bucket(self, link: Link) -> None:
        """Remove the limit of a link; nothing for a link without a limit, or a vanished link."""
        if self.token_bucket(link) is None:
            return
        try:
            self._netlink.request(WrittenMessage(RTM_DELQDISC, 0, _HEADER.pack(0, link.index, _HANDLE, _ROOT, 0)))
        except NetlinkError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise NetworkError(f"cannot remove the limit of {link.name}: {describe(error)}") from error


def refusal_of_bucket(error: NetlinkError) -> str:
    """Return why a link cannot have a limit."""
    if error.errno == errno.ENOENT:
        return "the kernel has no tbf (CONFIG_NET_SCH_TBF)"
    if error.errno == errno.EOPNOTSUPP:
        return "the kernel has no queueing disciplines (CONFIG_NET_SCHED)"
    return describe(error)


class _Message(nlmsg):  # type: ignore[misc]
    prefix = "TCA_"
    fields: Any = (("family", "B"), ("pad", "3x"), ("index", "i"), ("handle", "I"), ("parent", "I"), ("info", "I"))
    nla_map = ((_KIND, "TCA_KIND", "asciiz"), (_OPTIONS, "TCA_OPTIONS", "cdata"))


def _read_bucket(options: bytes) -> TokenBucket:
    found = read_attributes(options)
    rate, limit, buffer = _BUCKET.unpack(found[_PARAMETERS])
    if _LARGE_RATE in found:
        [rate] = _RATE.unpack(found[_LARGE_RATE])
    return TokenBucket(rate_bytes=rate, limit_bytes=limit, buffer_ticks=buffer)
