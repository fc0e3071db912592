"""
The plugin bandwidth: a limit for the packets a pod receives and for those it sends, at the host's end of its link.

Packets to a pod leave the host by that end, where the limit is. Packets of a pod come in by that end, but a limit needs
an outgoing link: the packets make a detour by an ifb. The packet filter sends them to the ifb, after all tables at that
interface: the ifb brings packets back behind the tables, and a redirection of tc(8) comes before the tables, so that
nothing would keep a pod with a limit to its own addresses.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pyroute2.netlink import NLM_F_CREATE, NLM_F_EXCL, nlmsg
from pyroute2.netlink.rtnl import RTM_DELQDISC, RTM_GETQDISC, RTM_NEWQDISC

from minit.base.errors import MinitError, NetworkError, describe
from minit.base.value import Value, replace
from minit.manifest.reader import Node
from minit.network import uplink
from minit.network.builtin.attachment import find_host_end, named_after, try_all
from minit.network.builtin.call import Call, network_name, refuse, valid_attachments
from minit.network.builtin.sides import Sides, Undo
from minit.network.netlink import nftables, nftexpressions
from minit.network.netlink.links import Links
from minit.network.netlink.messages import IFB, Link, NewLink
from minit.network.netlink.nftables import Chain, Hook, Rule, Table
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
from minit.network.packetfilter.tables import (
    TABLE_PREFIX,
    bandwidth_table,
    is_bandwidth_table,
    is_of_network,
    table_comment,
)
from minit.network.protocol import Interface, Request, Result
from minit.podfiles.usersdirectory import is_of_user

_KEYS = ("ingressRate", "ingressBurst", "egressRate", "egressBurst")
_NOT_HERE = ("shapedSubnets", "unshapedSubnets")
_LARGEST_RATE = (1 << 64) - 1
_LARGEST_BURST = ((1 << 32) - 1) * 8 - 1  # less than 4 GiB
_BYTE = 8
_LARGEST_NUMBER = (1 << 32) - 1
_LATENCY_MICROSECONDS = 25_000
_TICKS_IN_MICROSECOND = 15.625
_PRIORITY = 1000  # behind all others at the interface

_TBF = "tbf"
_USUAL_MTU = 1500
_ROOT = 0xFFFFFFFF
_HANDLE = 1 << 16
_TCMSG = struct.Struct("=BxxxiIII")  # struct tcmsg
_TCA_KIND = 1
_TCA_OPTIONS = 2
_PARAMETERS = 1
_LARGE_RATE = 4
# struct tc_tbf_qopt: the rate at the end of its struct tc_ratespec; no rate for peaks; limit, buffer, no size for
# peaks.
_BUCKET = struct.Struct("=8xI12xII4x")
_RATE = struct.Struct("=Q")


class Limit(Value):
    """A limit and its place in the configuration."""

    place: str
    bucket: TokenBucket


class Settings(Value):
    """The limits for receiving (ingress) and sending (egress), None without a limit."""

    ingress: Limit | None
    egress: Limit | None


def add(call: Call) -> Result:
    """Set the limits; NetworkError, with nothing left behind, on a failure."""
    settings, result, request = read_settings(call.config), call.need_result_before(), call.request
    if settings.ingress is None and settings.egress is None:
        return result
    with Sides(request) as sides, Qdiscs() as qdiscs, Undo() as undo:
        host = _shrink(sides, request, _host_end(sides, request))
        if settings.egress is not None:
            with _about(settings.egress):
                ifb = _limit_sent(call, sides.host, qdiscs, host, settings.egress.bucket, undo)
            result = replace(result, interfaces=(*result.interfaces, Interface(name=ifb.name, mac=ifb.mac)))
        if settings.ingress is not None:
            with _about(settings.ingress):
                _limit_received(qdiscs, host, settings.ingress.bucket, undo)
    return result


def delete(call: Call) -> None:
    """Remove the ifb, the rules that lead to the ifb, and the limit of the host's end, if that end still exists."""
    request = call.request
    table = bandwidth_table(request.container_id, request.interface)
    # The kernel waits for all processors over links as well as over tables: both at once take half the time.
    with ExitStack() as freed:
        try_all(
            lambda: nftables.delete_tables(table, freed), lambda: _delete_ifb(table), lambda: _delete_limit(request)
        )


def check(call: Call) -> None:
    """Raise NetworkError with the first limit that differs from the configuration."""
    settings, request = read_settings(call.config), call.request
    call.need_result_of_add()
    table = bandwidth_table(request.container_id, request.interface)
    with Sides(request) as sides, Qdiscs() as qdiscs:
        host = _host_end(sides, request)
        if settings.ingress is not None:
            _check_bucket(qdiscs, host, settings.ingress.bucket)
        if settings.egress is not None:
            ifb = sides.host.find(_ifb_name(table))
            if ifb is None or not ifb.up:
                raise NetworkError(f"interface {_ifb_name(table)}, the way of what the pod sends, is gone or down")
            _check_bucket(qdiscs, ifb, settings.egress.bucket)
            if not any(one.name == table for one in nftables.read_tables(table)):
                raise NetworkError(f"nftables table {table} is gone: what the pod sends has no limit")


def collect(call: Call) -> None:
    """Remove the remains of vanished attachments to this network."""
    valid = {bandwidth_table(*attachment) for attachment in valid_attachments(call.config)}
    network, tables = network_name(call.config), nftables.read_tables(TABLE_PREFIX)
    found = {one.name for one in tables if is_bandwidth_table(one) and is_of_network(one, network)}
    for table in sorted(found - valid):
        _delete_ifb(table)
        nftables.delete_tables(table)


def read_settings(config: Node) -> Settings:
    """
    Return the limits of the configuration, or else of the capability `bandwidth`; ManifestError for an impossible
    limit.
    """
    asked = config["runtimeConfig"]["bandwidth"]
    node = config if any(config[key].given for key in _KEYS) else asked
    for one in (config, asked):
        for key in _NOT_HERE:
            if one[key].raw():
                raise refuse(one[key], "a limit is for all packets")
    return Settings(ingress=_read_limit(node, "ingress"), egress=_read_limit(node, "egress"))


def token_bucket(rate_bits: int, burst_bits: int) -> TokenBucket:
    """Return the limit of bits a second with a burst of bits, as the reference plugin computes it."""
    rate, burst = rate_bits // _BYTE, burst_bits // _BYTE
    ticks = int(int(burst * 1e6 / rate) * _TICKS_IN_MICROSECOND)
    waiting = int(rate * _LATENCY_MICROSECONDS / 1e6) + burst
    # A limit too large for the kernel's number is as good as no limit.
    return TokenBucket(
        rate_bytes=rate, limit_bytes=min(waiting, _LARGEST_NUMBER), buffer_ticks=min(ticks, _LARGEST_NUMBER)
    )


def _read_limit(node: Node, direction: str) -> Limit | None:
    rate_node, burst_node = node[f"{direction}Rate"], node[f"{direction}Burst"]
    rate = rate_node.optional(lambda one: one.integer(0, _LARGEST_RATE)) or 0
    burst = burst_node.optional(lambda one: one.integer(0, _LARGEST_BURST)) or 0
    if not rate and not burst:
        return None
    for one, value in ((rate_node, rate), (burst_node, burst)):
        if value < _BYTE:
            raise one.error(f"at least {_BYTE} bits: {direction}Rate and {direction}Burst go together")
    return Limit(place=rate_node.where, bucket=token_bucket(rate, burst))


def _host_end(sides: Sides, request: Request) -> Link:
    host = find_host_end(sides, request)
    if host is None and sides.pod.find(request.interface) is None:
        raise NetworkError(f"interface {request.interface} is gone")
    if host is None:
        raise NetworkError(f"interface {request.interface} is no veth with its other end on the host, and has no limit")
    return host


def _shrink(sides: Sides, request: Request, host: Link) -> Link:
    """Return the host's end, with packets of the usual size: the kernel drops a packet that is larger than a burst."""
    if not is_of_user() or host.mtu != uplink.MTU:
        return host
    sides.pod.set_mtu(sides.pod.get(request.interface), _USUAL_MTU)
    sides.host.set_mtu(host, _USUAL_MTU)
    return sides.host.get(host.name)


def _limit_sent(call: Call, links: Links, qdiscs: Qdiscs, host: Link, bucket: TokenBucket, undo: Undo) -> Link:
    """Return the ifb that the pod's packets pass from now on."""
    table = bandwidth_table(call.request.container_id, call.request.interface)
    name = _ifb_name(table)
    if links.find(name) is not None:
        raise NetworkError(f"interface {name} exists already: the limit of {call.request.interface} was not removed")
    undo.add(lambda: _delete_ifb(table))
    links.add(NewLink(kind=IFB, name=name, mtu=host.mtu, queue_length=0))
    ifb = links.get(name)
    qdiscs.add_token_bucket(ifb, bucket)
    links.set_up(ifb)
    undo.add(lambda: nftables.delete_tables(table))
    hook = Hook(kind=nftables.FILTER, point=nftables.INGRESS, priority=_PRIORITY, device=host.name)
    chain = Chain(name="ingress", rules=(Rule(expressions=nftexpressions.send_by(ifb.index)),), hook=hook)
    comment = table_comment("", network_name(call.config))
    nftables.replace_tables([Table(family=nftables.NETDEV, name=table, chains=(chain,), comment=comment)])
    return ifb


def _limit_received(qdiscs: Qdiscs, host: Link, bucket: TokenBucket, undo: Undo) -> None:
    if qdiscs.token_bucket(host) is not None:
        raise NetworkError(f"interface {host.name} has a limit already")
    undo.add(lambda: _remove_limit(host))
    qdiscs.add_token_bucket(host, bucket)


def _check_bucket(qdiscs: Qdiscs, link: Link, wanted: TokenBucket) -> None:
    found = qdiscs.token_bucket(link)
    if found is None:
        raise NetworkError(f"interface {link.name} has no limit")
    if found != wanted:
        texts = [f"{one.rate_bytes} bytes a second ({one.buffer_ticks}, {one.limit_bytes})" for one in (found, wanted)]
        raise NetworkError(f"interface {link.name} has the limit {texts[0]}, not {texts[1]}")


def _ifb_name(table: str) -> str:
    return named_after("bwp", table)


def _delete_ifb(table: str) -> None:
    with Links() as links:
        link = links.find(_ifb_name(table))
        if link is not None and link.kind == IFB:
            links.delete(link)


def _delete_limit(request: Request) -> None:
    try:
        with Sides(request) as sides:
            host = find_host_end(sides, request)
    except NetworkError:
        return  # the limit went with the link, and that with the namespace
    if host is not None:
        _remove_limit(host)


def _remove_limit(host: Link) -> None:
    with Qdiscs() as qdiscs:
        qdiscs.delete_token_bucket(host)


@contextmanager
def _about(limit: Limit) -> Iterator[None]:
    try:
        yield
    except (MinitError, OSError) as error:
        raise NetworkError(f"{limit.place}: {describe(error)}") from error


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
    """
    The token buckets, tc-tbf(8), of links in this process's network namespace.

    The messages are of linux/pkt_sched.h. pyroute2's own classes load every discipline.
    """

    def __init__(self) -> None:
        self._netlink = Netlink(NETLINK_ROUTE)

    def __enter__(self) -> Qdiscs:
        return self

    def __exit__(self, *_: object) -> None:
        self._netlink.__exit__()

    def token_bucket(self, link: Link) -> TokenBucket | None:
        """Return the limit of a link, None without one."""
        request = _TrafficMessage()
        request["header"]["type"] = RTM_GETQDISC
        for answer in self._netlink.dump(request):
            if (answer["index"], answer["parent"], answer.get_attr("TCA_KIND")) == (link.index, _ROOT, _TBF):
                return _read_bucket(answer.get_attr("TCA_OPTIONS"))
        return None

    def add_token_bucket(self, link: Link, bucket: TokenBucket) -> None:
        """Limit the packets sent by a link; NetworkError if the kernel refuses, or the link has a limit."""
        rate = min(bucket.rate_bytes, _LARGEST_NUMBER)
        options = [attribute(_PARAMETERS, _BUCKET.pack(rate, bucket.limit_bytes, bucket.buffer_ticks))]
        if bucket.rate_bytes > _LARGEST_NUMBER:
            options.append(attribute(_LARGE_RATE, _RATE.pack(bucket.rate_bytes)))
        body = (_TCMSG.pack(0, link.index, _HANDLE, _ROOT, 0), text(_TCA_KIND, _TBF), nested(_TCA_OPTIONS, *options))
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
            self._netlink.request(WrittenMessage(RTM_DELQDISC, 0, _TCMSG.pack(0, link.index, _HANDLE, _ROOT, 0)))
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


class _TrafficMessage(nlmsg):  # type: ignore[misc]
    prefix = "TCA_"
    fields: Any = (("family", "B"), ("pad", "3x"), ("index", "i"), ("handle", "I"), ("parent", "I"), ("info", "I"))
    nla_map = ((_TCA_KIND, "TCA_KIND", "asciiz"), (_TCA_OPTIONS, "TCA_OPTIONS", "cdata"))


def _read_bucket(options: bytes) -> TokenBucket:
    found = read_attributes(options)
    rate, limit, buffer = _BUCKET.unpack(found[_PARAMETERS])
    if _LARGE_RATE in found:
        [rate] = _RATE.unpack(found[_LARGE_RATE])
    return TokenBucket(rate_bytes=rate, limit_bytes=limit, buffer_ticks=buffer)
