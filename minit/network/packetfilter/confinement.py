"""
The tables of an interface of a pod: they hide its addresses, and keep the pod to its own addresses and subnet.

The hook of the table that drops packets in another's name is at the interface itself, before a bridge passes anything
on to its other ports and before routing. So pods on a bridge are as safe from each other as the host is from all. The
tables (`table_name`) are written and deleted as a whole: rules of others are never touched. Chains of other tables at
the same hook are evaluated too, and may still refuse packets.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from minit.base.errors import NetworkError
from minit.base.value import Value, replace
from minit.network.addresses import IPAddress, IPInterface, IPNetwork
from minit.network.netlink import nftables, nftexpressions
from minit.network.netlink.nftables import Chain, Hook, Rule, Table
from minit.network.netlink.nftexpressions import (
    LISTENER_REPORT,
    NEIGHBOR_ADVERTISEMENT,
    NEIGHBOR_SOLICITATION,
    REDIRECT,
    REDIRECT4,
    ROUTER_ADVERTISEMENT,
    ROUTER_ADVERTISEMENT4,
    ROUTER_SOLICITATION,
    Match,
)
from minit.network.packetfilter.tables import (
    TABLE_PREFIX,
    is_interface_table,
    is_of_network,
    table_comment,
)

# Before other chains at the interface: no program may see a forged packet.
_PRIORITY = -500
_LOOPBACK = IPv4Network("127.0.0.0/8")
_NO_IPV4 = IPv4Address("0.0.0.0")
_NO_IPV6 = IPv6Address("::")
_LINK_LOCAL = int(IPv6Address("fe80::"))
# Of DHCP and DHCPv6 (RFC 2131, 4.1; RFC 8415, 7.2).
_DHCP_SERVER, _DHCP_CLIENT = 67, 68
_DHCP6_SERVER, _DHCP6_CLIENT = 547, 546
# A sender without a right to others' addresses is no router.
_REFUSED_OF_ICMP = (ROUTER_ADVERTISEMENT4, REDIRECT4)
_REFUSED_OF_ICMPV6 = (ROUTER_ADVERTISEMENT, REDIRECT)

_MULTICAST: dict[int, IPNetwork] = {nftables.IP: IPv4Network("224.0.0.0/4"), nftables.IP6: IPv6Network("ff00::/8")}
# The first word in the comment of a table that confines a sender.
_ANY_ADDRESS = "any-address"
_DHCP = "dhcp"
_ROUTERS = "routers"
_FORWARD = Hook(kind=nftables.FILTER, point=nftables.FORWARD, priority=nftables.PRIORITY_FILTER)
_POSTROUTING = Hook(kind=nftables.NAT, point=nftables.POSTROUTING, priority=nftables.PRIORITY_SRCNAT)


class Sender(Value):
    """
    The only sender at the other end of the host's interface `link`: hardware address and addresses.

    Without addresses the sender may use any. With `uses_dhcp` it may ask for an address before having one. With
    `follows_routers` it makes addresses itself, from the routers' prefixes and its hardware address (RFC 4862).
    """

    link: str
    mac: str
    addresses: tuple[IPAddress, ...] = ()
    uses_dhcp: bool = False
    follows_routers: bool = False


def confinement(name: str, sender: Sender) -> Table:
    """Return the table that drops packets on the sender's link from any other sender."""
    hook = Hook(kind=nftables.FILTER, point=nftables.INGRESS, priority=_PRIORITY, device=sender.link, drops=True)
    chains = _own_addresses(sender) if sender.addresses else _own_hardware_address(sender)
    own = Rule(expressions=(*nftexpressions.comes_from(sender.mac), *nftexpressions.jump(chains[-1].name)))
    return Table(family=nftables.NETDEV, name=name, chains=(*chains, Chain(name="ingress", rules=(own,), hook=hook)))


def link_local_address(mac: str) -> IPv6Address:
    """Return the address that the kernel makes from a hardware address, RFC 4291 appendix A."""
    return IPv6Address(_LINK_LOCAL | int.from_bytes(_identifier(mac), "big"))


def _identifier(mac: str) -> bytes:
    octets = bytes.fromhex(mac.replace(":", ""))
    return bytes([octets[0] ^ 2]) + octets[1:3] + b"\xff\xfe" + octets[3:]


def _own_hardware_address(sender: Sender) -> tuple[Chain, ...]:
    is_arp = nftexpressions.carries(nftexpressions.ARP)
    matches = (
        (*is_arp, *nftexpressions.arp_sender(sender.mac), *nftexpressions.accept()),
        (*is_arp, *nftexpressions.drop()),
        nftexpressions.accept(),
    )
    return (_chain("sender", matches),)


def _own_addresses(sender: Sender) -> tuple[Chain, ...]:
    """
    Return chains for each protocol, and last the chain that jumps to them.

    No chain has the name of a protocol: nft(8) could not read its own output.
    """
    ipv4 = [address for address in sender.addresses if isinstance(address, IPv4Address)]
    ipv6: list[IPv6Address | bytes] = [address for address in sender.addresses if isinstance(address, IPv6Address)]
    # The kernel gives a link this address whether or not the network has IPv6.
    own = _identifier(sender.mac) if sender.follows_routers else link_local_address(sender.mac)
    ipv6 += [own] if own not in ipv6 else []
    advertised = (
        *((*nftexpressions.icmpv6(NEIGHBOR_ADVERTISEMENT, address), *nftexpressions.leave()) for address in ipv6),
        nftexpressions.drop(),
    )
    # A receiver that reassembles fragments, or reads longer headers, must not find contents that this table drops.
    is_readable = nftexpressions.has_protocol()
    jumps = (
        (*nftexpressions.carries(nftexpressions.IPV4), *is_readable, *nftexpressions.jump("ipv4-sources")),
        (*nftexpressions.carries(nftexpressions.IPV6), *is_readable, *nftexpressions.jump("ipv6-sources")),
        (*nftexpressions.carries(nftexpressions.ARP), *nftexpressions.jump("arp-senders")),
    )
    return (
        _chain("ipv4-sources", _ipv4(ipv4, sender.uses_dhcp)),
        _chain("advertised", advertised),
        _chain("icmpv6-messages", _icmpv6()),
        _chain("datagrams-of-ipv6", _datagrams_of_ipv6()),
        _chain("ipv6-sources", _ipv6(ipv6)),
        _chain("arp-senders", _arp(sender.mac, ipv4)),
        _chain("sender", jumps),
    )


def _ipv4(addresses: list[IPv4Address], uses_dhcp: bool) -> tuple[Match, ...]:
    matches: list[Match] = [(*nftexpressions.destination_in(_LOOPBACK), *nftexpressions.drop())]
    # A first fragment has the ports, or the type, and a packet is useless without its first fragment.
    matches += _refused_servers(_DHCP_SERVER, _DHCP_CLIENT)
    matches += [(*nftexpressions.icmp(message), *nftexpressions.drop()) for message in _REFUSED_OF_ICMP]
    matches += [(*nftexpressions.source_in(address), *nftexpressions.accept()) for address in addresses]
    if uses_dhcp:
        asks = (*nftexpressions.source_in(_NO_IPV4), *nftexpressions.destination_ports("udp", _DHCP_SERVER))
        matches.append((*asks, *nftexpressions.accept()))
    return tuple(matches)


def _icmpv6() -> tuple[Match, ...]:
    return (
        *((*nftexpressions.icmpv6(message), *nftexpressions.drop()) for message in _REFUSED_OF_ICMPV6),
        # An advertisement can be about another address than its source.
        (*nftexpressions.icmpv6(NEIGHBOR_ADVERTISEMENT), *nftexpressions.jump("advertised")),
        (*nftexpressions.icmpv6_of_any_type(), *nftexpressions.leave()),
        # The first fragment has the type, or is dropped: nothing comes of the others then.
        (*nftexpressions.is_later_fragment(), *nftexpressions.leave()),
        nftexpressions.drop(),
    )


def _refused_servers(server_port: int, client_port: int) -> tuple[Match, ...]:
    """Return rules that drop answers of servers: clients look at their own port alone, or at both ports."""
    answers = nftexpressions.source_port("udp", server_port), nftexpressions.destination_ports("udp", client_port)
    return tuple((*answer, *nftexpressions.drop()) for answer in answers)


def _datagrams_of_ipv6() -> tuple[Match, ...]:
    return (
        *_refused_servers(_DHCP6_SERVER, _DHCP6_CLIENT),
        (*nftexpressions.has_ports("udp"), *nftexpressions.leave()),
        # As for ICMPv6: headers may fill the first fragment, with the ports in a later fragment.
        (*nftexpressions.is_later_fragment(), *nftexpressions.leave()),
        nftexpressions.drop(),
    )


def _ipv6(addresses: list[IPv6Address | bytes]) -> tuple[Match, ...]:
    """Return the rules for IPv6; bytes stand for any address that ends in them."""
    matches: list[Match] = [
        (*nftexpressions.has_protocol("icmpv6"), *nftexpressions.jump("icmpv6-messages")),
        (*nftexpressions.has_protocol("udp"), *nftexpressions.jump("datagrams-of-ipv6")),
    ]
    matches += [(*_source(address), *nftexpressions.accept()) for address in addresses]
    # Without an address yet: the question whether an address is free, RFC 4862, and the groups and routers for that.
    without = nftexpressions.source_in(_NO_IPV6)
    asks = [nftexpressions.icmpv6(NEIGHBOR_SOLICITATION, address) for address in addresses]
    asks += [nftexpressions.icmpv6(message) for message in (ROUTER_SOLICITATION, LISTENER_REPORT)]
    return (*matches, *((*without, *question, *nftexpressions.accept()) for question in asks))


def _source(address: IPv6Address | bytes) -> Match:
    if isinstance(address, bytes):
        return nftexpressions.source_ends_in(address)
    return nftexpressions.source_in(address)


def _arp(mac: str, addresses: list[IPv4Address]) -> tuple[Match, ...]:
    matches = [nftexpressions.arp_sender(mac, address) for address in addresses]
    # Without an address yet: the question whether an address is free, RFC 5227. Another machine with the same question
    # would take the packet for a conflict.
    without = nftexpressions.arp_sender(mac, _NO_IPV4)
    matches += [(*without, *nftexpressions.arp_target(address)) for address in addresses]
    return tuple((*match, *nftexpressions.accept()) for match in matches)


def _chain(name: str, matches: tuple[Match, ...]) -> Chain:
    return Chain(name=name, rules=tuple(Rule(expressions=match) for match in matches))


def protect(
    name: str,
    masqueraded: Sequence[IPInterface] = (),
    sender: Sender | None = None,
    network: str = "",
    *,
    restricted: Sequence[IPInterface] = (),
) -> None:
    """
    Write all tables of an interface of a pod at once; NetworkError, with none written, if the kernel refuses a table.

    The addresses `masqueraded` are hidden behind the host's address, except from their own subnets and from multicast
    groups. `restricted` addresses exchange packets with their own subnets only, but for forwarded ports. With a
    `sender` no other may send by its link. `delete_tables_of` finds the tables by the name of their `network`.
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
    Adapt the table of a confined link to a changed sender.

    The sender keeps its freedom: the freedom in `sender` counts only for a sender that is kept to its addresses.
    """
    for table in nftables.read_tables(name):
        if (table.family, table.name) == (nftables.NETDEV, name):
            freedom = table.comment.partition(" ")[0]
            addresses = () if freedom == _ANY_ADDRESS else sender.addresses
            own = replace(sender, addresses=addresses, uses_dhcp=_DHCP in freedom, follows_routers=_ROUTERS in freedom)
            nftables.replace_tables([replace(confinement(name, own), comment=table.comment)])


def delete_table(name: str, freed: ExitStack | None = None) -> None:
    """
    Remove the tables of an interface; no error if there are none.

    `freed` is the argument of `nftables.delete_tables`.
    """
    nftables.delete_tables(name, freed)


def delete_tables_of(network: str, excepted: Collection[str]) -> None:
    """Remove the tables of all interfaces in a network, but for the names `excepted`."""
    tables = nftables.read_tables(TABLE_PREFIX)
    found = {table.name for table in tables if is_interface_table(table) and is_of_network(table, network)}
    for name in sorted(found.difference(excepted)):
        nftables.delete_tables(name)


def _freedom(sender: Sender) -> str:
    """Return the sender's rights beside sending from its own addresses."""
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
    # Some kernels accept a chain for a future interface.
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
    # Not the other way round, "drop unless redirected": packets outside any connection would be dropped too.
    matches: list[Match] = [(*nftexpressions.was_redirected(), *nftexpressions.leave())]
    # A packet for this machine that is forwarded nevertheless has a source route, and its destination comes later.
    matches.append((*nftexpressions.destination_is_local(), *nftexpressions.drop()))
    for address in addresses:
        ends = (
            (nftexpressions.source_in, nftexpressions.destination_not_in),
            (nftexpressions.destination_in, nftexpressions.source_not_in),
        )
        matches += [(*of(address.ip), *not_of(address.network), *nftexpressions.drop()) for of, not_of in ends]
    rules = tuple(Rule(expressions=match) for match in matches)
    return (Chain(name="forward", rules=rules, hook=_FORWARD),) if addresses else ()
