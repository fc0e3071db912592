"""
What the kernel's packet filter does for one of a pod's interfaces: hides its addresses, and keeps it to them.

Its tables (`table_name`) are written and deleted as a whole, so that nobody else's rules are ever touched. Chains of
other tables at the same hook are evaluated too, and may still refuse packets.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from ipaddress import IPv4Network, IPv6Network

from minit.base.errors import NetworkError
from minit.base.value import replace
from minit.network.addresses import IPInterface, IPNetwork
from minit.network.netlink import nftables, nftexpressions
from minit.network.netlink.nftables import Chain, Hook, Rule, Table
from minit.network.netlink.nftexpressions import Match
from minit.network.packetfilter.confinement import Sender, confinement
from minit.network.packetfilter.tables import (
    TABLE_PREFIX,
    is_interface_table,
    is_of_network,
    table_comment,
    table_name,
)

__all__ = ["Sender", "delete_table", "delete_tables_of", "follow_sender", "protect", "table_name"]

_MULTICAST: dict[int, IPNetwork] = {nftables.IP: IPv4Network("224.0.0.0/4"), nftables.IP6: IPv6Network("ff00::/8")}
# The first word of the comment of a table that confines a sender.
_ANY_ADDRESS = "any-address"
_DHCP = "dhcp"
_ROUTERS = "routers"
_FORWARD = Hook(kind=nftables.FILTER, point=nftables.FORWARD, priority=nftables.PRIORITY_FILTER)
_POSTROUTING = Hook(kind=nftables.NAT, point=nftables.POSTROUTING, priority=nftables.PRIORITY_SRCNAT)


def protect(
    name: str,
    masqueraded: Sequence[IPInterface] = (),
    sender: Sender | None = None,
    network: str = "",
    *,
    restricted: Sequence[IPInterface] = (),
) -> None:
    """
    Write the tables of one of a pod's interfaces, all of them at once; NetworkError, and none is, if one is refused.

    The addresses `masqueraded` are hidden behind the host's, except from their own subnets and from multicast groups.
    Nothing is passed on between those that are `restricted` and others than their own subnets, but for forwarded ports.
    With a `sender` nobody else may speak by its link. `delete_tables_of` finds them by the name of their `network`.
    """
    tables = [
        Table(family=family, name=name, chains=(*_masquerading(family, hidden), *_restricting(kept)))
        for family, hidden, kept in _by_family(masqueraded, restricted)
    ]
    tables = [replace(table, comment=table_comment("", network)) for table in tables]
    if sender is not None:
        _require_link(sender.link)
        tables.append(replace(confinement(name, sender), comment=table_comment(_freedom(sender), network)))
    if tables:
        nftables.replace_tables(tables)


def follow_sender(name: str, sender: Sender) -> None:
    """
    Keep a link to a sender that has changed, if it is kept to one.

    It is as free as it was before: what `sender` says about that counts only if it is kept to its addresses.
    """
    for table in nftables.read_tables(name):
        if (table.family, table.name) == (nftables.NETDEV, name):
            freedom = table.comment.partition(" ")[0]
            addresses = () if freedom == _ANY_ADDRESS else sender.addresses
            own = replace(sender, addresses=addresses, uses_dhcp=_DHCP in freedom, follows_routers=_ROUTERS in freedom)
            nftables.replace_tables([replace(confinement(name, own), comment=table.comment)])


def delete_table(name: str, freed: ExitStack | None = None) -> None:
    """Remove the tables of an interface; no error if there are none. `freed` is that of `nftables.delete_tables`."""
    nftables.delete_tables(name, freed)


def delete_tables_of(network: str, excepted: Collection[str]) -> None:
    """Remove the tables of all interfaces in a network, but for those of the names `excepted`."""
    tables = nftables.read_tables(TABLE_PREFIX)
    found = {table.name for table in tables if is_interface_table(table) and is_of_network(table, network)}
    for name in sorted(found.difference(excepted)):
        nftables.delete_tables(name)


def _freedom(sender: Sender) -> str:
    """Return what a sender may do beside sending from addresses of its own."""
    if not sender.addresses:
        return _ANY_ADDRESS
    return "+".join(word for word, has in ((_DHCP, sender.uses_dhcp), (_ROUTERS, sender.follows_routers)) if has)


def _by_family(
    masqueraded: Sequence[IPInterface], restricted: Sequence[IPInterface]
) -> Iterator[tuple[int, list[IPInterface], list[IPInterface]]]:
    for family, version in ((nftables.IP, 4), (nftables.IP6, 6)):
        hidden, kept = ([one for one in ones if one.version == version] for ones in (masqueraded, restricted))
        if hidden or kept:
            yield family, hidden, kept


def _require_link(name: str) -> None:
    # To some kernels the interface of a chain may be one that is yet to come.
    try:
        socket.if_nametoindex(name)
    except OSError as error:
        raise NetworkError(f"interface {name} has vanished") from error


def _masquerading(family: int, addresses: Sequence[IPInterface]) -> tuple[Chain, ...]:
    rules = []
    for address in addresses:
        source = nftexpressions.source_in(address.ip)
        to_neighbour = nftexpressions.destination_in(address.network)
        elsewhere = nftexpressions.destination_not_in(_MULTICAST[family])
        rules.append(Rule(expressions=(*source, *to_neighbour, *nftexpressions.leave())))
        rules.append(Rule(expressions=(*source, *elsewhere, *nftexpressions.masquerade())))
    return (Chain(name="postrouting", rules=tuple(rules), hook=_POSTROUTING),) if rules else ()


def _restricting(addresses: Sequence[IPInterface]) -> tuple[Chain, ...]:
    # Not the other way round, "drop what was not redirected": what belongs to no connection would be neither.
    matches: list[Match] = [(*nftexpressions.was_redirected(), *nftexpressions.leave())]
    # What is passed on although it is for this machine brings its own route along, and its destination comes later.
    matches.append((*nftexpressions.destination_is_local(), *nftexpressions.drop()))
    for address in addresses:
        ends = (
            (nftexpressions.source_in, nftexpressions.destination_not_in),
            (nftexpressions.destination_in, nftexpressions.source_not_in),
        )
        matches += [(*of(address.ip), *not_of(address.network), *nftexpressions.drop()) for of, not_of in ends]
    rules = tuple(Rule(expressions=match) for match in matches)
    return (Chain(name="forward", rules=rules, hook=_FORWARD),) if addresses else ()
