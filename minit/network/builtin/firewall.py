"""
The meta plugin firewall: from where a container may be reached, `ingressPolicy`.

The reference plugin also accepts the container's packets in tables of other programs that drop forwarded packets. No
table of nf_tables can accept for another table, and tables of other programs are left alone. Each container has a table
without rules, whose comment has the bridge and the policy. The rules that follow from all of them are in one table of
the host (`_COMMON`), which exists while any container has a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from minit.base.errors import NetworkError
from minit.manifest.reader import Node
from minit.network.builtin.call import Call, network_name, refuse, valid_attachments
from minit.network.netlink import nftables, nftexpressions
from minit.network.netlink.bridges import isolate_port
from minit.network.netlink.links import Links
from minit.network.netlink.messages import Link
from minit.network.netlink.nftables import Chain, Hook, Rule, Table
from minit.network.packetfilter.tables import (
    TABLE_PREFIX,
    firewall_lock,
    ingress_table,
    is_ingress_table,
    is_of_network,
    table_comment,
)
from minit.network.protocol import Result

_OPEN = ("", "open")
_BRIDGE = "bridge"
_ELSEWHERE = "this plugin has rules of nftables; the CNI's own, in /usr/lib/rkt/plugins/net, stands in for it"

_SAME_BRIDGE = "same-bridge"
_ISOLATED = "isolated"

_COMMON = f"{TABLE_PREFIX}isolation"
_FORWARDING = "forward"
_REFUSING = "bridges"
_FORWARD = Hook(kind=nftables.FILTER, point=nftables.FORWARD, priority=nftables.PRIORITY_FILTER)


def add(call: Call) -> Result:
    """Keep the container to its policy, and pass on the result of the plugins before."""
    previous = call.need_result_before()
    policy = _policy(call.config)
    if policy in _OPEN:
        return previous
    with Links() as host:
        bridge, ports = _find_bridge(host, previous)
        if policy == _ISOLATED:
            for port in ports:
                isolate_port(host, port)
    _isolate(_table(call), policy, bridge.name, network_name(call.config))
    return previous


def delete(call: Call) -> None:
    """Forget the policy."""
    _end_isolation(_table(call))


def check(call: Call) -> None:
    """Raise NetworkError if the policy is not carried out."""
    previous = call.need_result_of_add()
    policy = _policy(call.config)
    if policy in _OPEN:
        return
    with Links() as host:
        bridge, _ = _find_bridge(host, previous)
    if _isolation_of(_table(call)) != (policy, bridge.name):
        raise NetworkError(f"the ingress policy {policy} of bridge {bridge.name} is not carried out")


def collect(call: Call) -> None:
    """Forget the policies of vanished attachments to this network."""
    valid = [ingress_table(*attachment) for attachment in valid_attachments(call.config)]
    _end_isolations_of(network_name(call.config), valid)


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
    return policy.one_of("", "open", _SAME_BRIDGE, _ISOLATED) if policy.given else ""


def _find_bridge(host: Links, previous: Result) -> tuple[Link, list[Link]]:
    """Return the bridge of the host in a result, and the host's ends among its ports."""
    links = [host.find(one.name) for one in previous.interfaces if not one.sandbox]
    for bridge in links:
        if bridge is not None and bridge.kind == _BRIDGE:
            return bridge, [link for link in links if link is not None and link.master == bridge.index]
    raise NetworkError("ingressPolicy: the plugins before have not connected the container to a bridge")


def _isolate(table: str, policy: str, bridge: str, network: str) -> None:
    """Let a container on a bridge be reached by its policy only: from the same bridge, or from no bridge."""
    own = Table(family=nftables.INET, name=table, chains=(), comment=table_comment(f"{policy} {bridge}", network))
    with firewall_lock():
        others = [one for one in _claims() if one.name != table]
        claims = [*map(_rule_name, others), _rule_name(own)]
        tables = [own] if _common_rules() == _wanted(claims) else [own, _common(claims)]
        nftables.replace_tables(tables)


def _end_isolation(table: str) -> None:
    """Forget the policy of a container; no error if there is none."""
    _remove(lambda claim: claim.name == table)


def _end_isolations_of(network: str, excepted: Collection[str]) -> None:
    """End the isolation of all attachments to a network, but for tables of the names `excepted`."""
    _remove(lambda claim: is_of_network(claim, network) and claim.name not in excepted)


def _isolation_of(table: str) -> tuple[str, str] | None:
    """Return the policy of a container and its bridge, None if there is none or the rules are missing."""
    for claim in _claims():
        if claim.name == table and _rule_name(claim) in _common_rules():
            policy, _, bridge = _rule_name(claim).partition(" ")
            return policy, bridge
    return None


def _remove(is_gone: Callable[[Table], bool]) -> None:
    with firewall_lock():
        claims = _claims()
        for name in {claim.name for claim in claims if is_gone(claim)}:
            nftables.delete_tables(name)
        left = [_rule_name(claim) for claim in claims if not is_gone(claim)]
        # Compared each time: the process before may have been killed.
        if _common_rules() == _wanted(left):
            return
        if left:
            nftables.replace_tables([_common(left)])
        else:
            nftables.delete_tables(_COMMON)


def _claims() -> list[Table]:
    return [table for table in nftables.read_tables(TABLE_PREFIX) if is_ingress_table(table)]


def _rule_name(claim: Table) -> str:
    """Return policy and bridge, without the network."""
    return " ".join(claim.comment.split(" ")[:2])


def _common_rules() -> list[str]:
    return nftables.read_rule_comments(Table(family=nftables.INET, name=_COMMON, chains=()), _FORWARDING)


def _wanted(rules: Collection[str]) -> list[str]:
    return sorted(set(rules))


def _common(rules: Collection[str]) -> Table:
    wanted = _wanted(rules)
    bridges = sorted({rule.partition(" ")[2] for rule in wanted})
    refused = tuple(Rule(expressions=(*nftexpressions.leaves_by(bridge), *nftexpressions.drop())) for bridge in bridges)
    chains = (
        Chain(name=_REFUSING, rules=refused),
        Chain(name=_FORWARDING, rules=tuple(map(_forwarding_rule, wanted)), hook=_FORWARD),
    )
    return Table(family=nftables.INET, name=_COMMON, chains=chains)


def _forwarding_rule(rule: str) -> Rule:
    policy, _, bridge = rule.partition(" ")
    match = nftexpressions.enters_by(bridge)
    if policy == _SAME_BRIDGE:
        match = (*match, *nftexpressions.leaves_not_by(bridge))
    return Rule(expressions=(*match, *nftexpressions.jump(_REFUSING)), comment=rule)
