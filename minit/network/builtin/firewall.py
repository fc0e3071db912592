"""
The meta plugin firewall: from where a container may be reached, `ingressPolicy`.

The reference plugin also accepts the container's packets in tables of others that drop what is forwarded. No table of
nf_tables can accept for another one, and others' tables are left alone.
"""

from __future__ import annotations

from minit.base.errors import NetworkError
from minit.manifest.reader import Node
from minit.network.builtin.call import Call
from minit.network.builtin.settings import network_name, refuse, valid_attachments
from minit.network.netlink.bridges import isolate_port
from minit.network.netlink.links import Links
from minit.network.netlink.messages import Link
from minit.network.packetfilter.isolation import (
    ISOLATED,
    SAME_BRIDGE,
    end_isolation,
    end_isolations_of,
    isolate,
    isolation_of,
)
from minit.network.packetfilter.tables import ingress_table
from minit.network.protocol.result import Result

_OPEN = ("", "open")
_BRIDGE = "bridge"
_ELSEWHERE = "this plugin has rules of nftables; the CNI's own, in /usr/lib/rkt/plugins/net, stands in for it"


def add(call: Call) -> Result:
    """Keep the container to its policy, and pass on what plugins before have returned."""
    previous = call.need_result_before()
    policy = _policy(call.config)
    if policy in _OPEN:
        return previous
    with Links() as host:
        bridge, ports = _find_bridge(host, previous)
        if policy == ISOLATED:
            for port in ports:
                isolate_port(host, port)
    isolate(_table(call), policy, bridge.name, network_name(call.config))
    return previous


def delete(call: Call) -> None:
    """Forget the policy."""
    end_isolation(_table(call))


def check(call: Call) -> None:
    """Raise NetworkError if the policy is not carried out."""
    previous = call.need_result_of_add()
    policy = _policy(call.config)
    if policy in _OPEN:
        return
    with Links() as host:
        bridge, _ = _find_bridge(host, previous)
    if isolation_of(_table(call)) != (policy, bridge.name):
        raise NetworkError(f"the ingress policy {policy} of bridge {bridge.name} is not carried out")


def collect(call: Call) -> None:
    """Forget the policies of attachments to this network that are no more."""
    valid = [ingress_table(*attachment) for attachment in valid_attachments(call.config)]
    end_isolations_of(network_name(call.config), valid)


def _table(call: Call) -> str:
    return ingress_table(call.request.container_id, call.request.interface)


def _policy(config: Node) -> str:
    backend = config["backend"]
    if backend.raw() not in (None, "", "nftables"):
        raise refuse(backend, _ELSEWHERE)
    for key in ("iptablesAdminChainName", "firewalldZone"):
        if config[key].raw():
            raise refuse(config[key], _ELSEWHERE)
    policy = config["ingressPolicy"]
    return policy.one_of("", "open", SAME_BRIDGE, ISOLATED) if policy.given else ""


def _find_bridge(host: Links, previous: Result) -> tuple[Link, list[Link]]:
    """Return the bridge of the host in a result, and the host's ends that are its ports."""
    links = [host.find(one.name) for one in previous.interfaces if not one.sandbox]
    for bridge in links:
        if bridge is not None and bridge.kind == _BRIDGE:
            return bridge, [link for link in links if link is not None and link.master == bridge.index]
    raise NetworkError("ingressPolicy: the plugins before have not connected the container to a bridge")
