"""
Bridges whose containers are not reached from other such bridges, or by each other.

Each container has a table without rules, whose comment has the bridge and the policy. What follows from all of them is
in one table of the host (`_COMMON`), which is there as long as one of them is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from minit.network.netlink import nftables, nftexpressions
from minit.network.netlink.nftables import Chain, Hook, Rule, Table
from minit.network.packetfilter.tablelock import firewall_lock
from minit.network.packetfilter.tables import TABLE_PREFIX, is_ingress_table, is_of_network, table_comment

SAME_BRIDGE = "same-bridge"
ISOLATED = "isolated"

_COMMON = f"{TABLE_PREFIX}isolation"
_FORWARDING = "forward"
_REFUSING = "bridges"
_FORWARD = Hook(kind=nftables.FILTER, point=nftables.FORWARD, priority=nftables.PRIORITY_FILTER)


def isolate(table: str, policy: str, bridge: str, network: str) -> None:
    """Let a container on a bridge be reached by its policy only: from the same bridge, or from no bridge."""
    own = Table(family=nftables.INET, name=table, chains=(), comment=table_comment(f"{policy} {bridge}", network))
    with firewall_lock():
        others = [one for one in _claims() if one.name != table]
        claims = [*map(_rule_name, others), _rule_name(own)]
        tables = [own] if _common_rules() == _wanted(claims) else [own, _common(claims)]
        nftables.replace_tables(tables)


def end_isolation(table: str) -> None:
    """Forget the policy of a container; no error if there is none."""
    _remove(lambda claim: claim.name == table)


def end_isolations_of(network: str, excepted: Collection[str]) -> None:
    """Do so with those of all attachments to a network, but for tables of the names `excepted`."""
    _remove(lambda claim: is_of_network(claim, network) and claim.name not in excepted)


def isolation_of(table: str) -> tuple[str, str] | None:
    """Return the policy of a container and its bridge, None if there is none or it is not carried out."""
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
        # Compared each time: whoever was here before may have been killed.
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
    if policy == SAME_BRIDGE:
        match = (*match, *nftexpressions.leaves_not_by(bridge))
    return Rule(expressions=(*match, *nftexpressions.jump(_REFUSING)), comment=rule)
