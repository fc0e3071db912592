"""
Ports of the host that lead to a pod, by the pod's own tables (`ports_table`), one for each family.

Each table is written and deleted as a whole: rules of others are never touched. Chains of other tables at the same hook
are evaluated too, and may still refuse packets.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from minit.base.value import Value, replace
from minit.network.addresses import EVERYWHERE, IPAddress
from minit.network.netlink import nftables, nftexpressions
from minit.network.netlink.conntrack import forget_datagrams
from minit.network.netlink.nftables import Chain, Hook, Rule, Table
from minit.network.netlink.nftexpressions import Match
from minit.network.packetfilter.hostroutes import (
    LOOPBACK,
    close_way,
    host_addresses,
    host_interface,
    open_way,
    way_comment,
)
from minit.network.packetfilter.portuse import PORTS_CHAIN, port_comment, read_ports, refuse_taken_ports
from minit.network.packetfilter.tables import (
    TABLE_PREFIX,
    firewall_lock,
    is_of_network,
    pod_of_ports,
    table_comment,
)
from minit.plan.networks.networkplan import ForwardedPort

_FAMILIES = {4: nftables.IP, 6: nftables.IP6}

_PREROUTING = Hook(kind=nftables.NAT, point=nftables.PREROUTING, priority=nftables.PRIORITY_DSTNAT)
_OUTPUT = Hook(kind=nftables.NAT, point=nftables.OUTPUT, priority=nftables.PRIORITY_DSTNAT)
_POSTROUTING = Hook(kind=nftables.NAT, point=nftables.POSTROUTING, priority=nftables.PRIORITY_SRCNAT)
_FIRST = Hook(kind=nftables.FILTER, point=nftables.PREROUTING, priority=nftables.PRIORITY_RAW)
_ARRIVING = Hook(kind=nftables.FILTER, point=nftables.INPUT, priority=nftables.PRIORITY_RAW)


class Target(Value):
    """
    The pod's address behind the ports, and the host's own address `gateway` in the pod's network; of a single family.
    """

    address: IPAddress
    gateway: IPAddress


class Forwarding(Value):
    """
    Ports of a family, each with an address, that lead to an `address` of a pod.

    The host's `interface` leads to the pod; without an interface no packets come from the host's loopback. `conditions`
    hold for every port. Answers come back by the host because packets get other sources, unless `masquerades` is False;
    `always` means every forwarded packet.
    """

    address: IPAddress
    interface: str | None
    ports: tuple[ForwardedPort, ...]
    conditions: Match = ()
    masquerades: bool = True
    always: bool = False


def forward_ports(table: str, ports: Sequence[ForwardedPort], targets: Sequence[Target]) -> None:
    """
    Let ports of the host lead to a pod, ports without an address to each target, with at most one target of a family.

    For a port on a loopback address a way from there is opened. NetworkError if a port is taken or the kernel refuses.
    The working directory is the pod's.
    """
    wanted = [
        Forwarding(
            address=target.address,
            interface=host_interface(target.address, target.gateway),
            ports=ports_of(ports, target.address.version),
        )
        for target in targets
    ]
    with firewall_lock():
        for ended in refuse_taken_ports([port for one in wanted for port in one.ports], table):
            _delete(ended)
        _replace(table, wanted, "")


def map_ports(table: str, wanted: Sequence[Forwarding], network: str) -> None:
    """
    Let ports of the host lead to a pod, whoever else has the ports: the first owner gets the packets.

    `stop_forwarding_of` finds the tables by the name of their `network`.
    """
    with firewall_lock():
        _replace(table, wanted, network)


def stop_forwarding(table: str) -> None:
    """Remove the tables of a name, and close their ways from the loopback; no error for missing tables."""
    with firewall_lock():
        _delete(table)


def stop_forwarding_of(network: str, excepted: Collection[str]) -> None:
    """Stop forwarding to all attachments to a network, but for tables of the names `excepted`."""
    with firewall_lock():
        tables = nftables.read_tables(TABLE_PREFIX)
        found = {table.name for table in tables if pod_of_ports(table.name) and is_of_network(table, network)}
        for name in sorted(found.difference(excepted)):
            _delete(name)


def forwarded_ports(table: str) -> list[ForwardedPort]:
    """Return the ports that the tables of a name forward."""
    return [port for one in nftables.read_tables(table) if one.name == table for port in read_ports(one)]


def ports_of(ports: Sequence[ForwardedPort], version: int) -> tuple[ForwardedPort, ...]:
    """Return the ports of a family, each with an address, which may be the wildcard address."""
    every = EVERYWHERE[version].network_address
    addressed = [replace(port, host_ip=port.host_ip or every) for port in ports]
    return tuple(port for port in addressed if port.host_ip is not None and port.host_ip.version == version)


def _replace(name: str, wanted: Sequence[Forwarding], network: str) -> None:
    _delete(name)
    tables = []
    opened = []
    for one in wanted:
        if not one.ports:
            continue
        family = _FAMILIES[one.address.version]
        chains = [*_redirections(one), *_redirecting(family)]
        way = ""
        if one.masquerades:
            chains.append(_returning(one))
            if one.interface and any(_includes_loopback(port, family) for port in one.ports):
                chains += _guards(family, one.interface)
                way = way_comment(family, one.interface)
                opened.append((family, one.interface))
        tables.append(Table(family=family, name=name, chains=tuple(chains), comment=table_comment(way, network)))
    if tables:
        nftables.replace_tables(tables)
    # Afterwards: a deletion reads in the comments of the tables which ways to close.
    for family, interface in opened:
        open_way(family, interface)
    for one in wanted:
        _forget_datagrams(one.ports)


def _delete(name: str) -> None:
    tables = [table for table in nftables.read_tables(name) if table.name == name]
    if not tables:
        return
    ports = [port for table in tables for port in read_ports(table)]
    for table in tables:
        # Before the removal of the table with its guard.
        close_way(table)
    nftables.delete_tables(name)
    _forget_datagrams(ports)


def _forget_datagrams(ports: Sequence[ForwardedPort]) -> None:
    ports = [port for port in ports if port.protocol == "udp" and port.host_ip is not None]
    every = host_addresses() if any(port.host_ip and port.host_ip.is_unspecified for port in ports) else set()
    for port in ports:
        assert port.host_ip is not None
        own = {address for address in every if address.version == port.host_ip.version}
        forget_datagrams(port.host_port, port.count, own if port.host_ip.is_unspecified else {port.host_ip})


def _redirections(wanted: Forwarding) -> tuple[Chain, ...]:
    """Return the chain of all ports, and a chain for each range whose ports change their numbers."""
    rules = []
    ranges: list[Chain] = []
    address = wanted.address
    for port in wanted.ports:
        is_anywhere = port.host_ip is None or port.host_ip.is_unspecified
        place = () if port.host_ip is None or is_anywhere else nftexpressions.destination_in(port.host_ip)
        ports = nftexpressions.destination_ports(port.protocol, port.host_port, port.count)
        match = (*wanted.conditions, *place, *ports)
        if port.count == 1:
            action = nftexpressions.redirect_to(address, port.pod_port)
        elif port.host_port == port.pod_port:
            action = nftexpressions.redirect_to(address, None)
        else:
            chain = _one_by_one(f"range-{len(ranges)}", port, address)
            ranges.append(chain)
            action = nftexpressions.jump(chain.name)
        rules.append(Rule(expressions=(*match, *action), comment=port_comment(port)))
    return (*ranges, Chain(name=PORTS_CHAIN, rules=tuple(rules)))


def _one_by_one(name: str, port: ForwardedPort, address: IPAddress) -> Chain:
    rules = []
    for offset in range(port.count):
        match = nftexpressions.destination_ports(port.protocol, port.host_port + offset)
        action = nftexpressions.redirect_to(address, port.pod_port + offset)
        rules.append(Rule(expressions=(*match, *action)))
    return Chain(name=name, rules=tuple(rules))


def _redirecting(family: int) -> tuple[Chain, ...]:
    """Return the chains for packets from elsewhere and for packets of this machine."""
    redirect = (*nftexpressions.destination_is_local(), *nftexpressions.jump(PORTS_CHAIN))
    # A neighbour's packet to 127.0.0.1 would be redirected before the kernel's check.
    from_outside = Rule(expressions=(*nftexpressions.destination_not_in(LOOPBACK[family]), *redirect))
    return (
        Chain(name="prerouting", rules=(from_outside,), hook=_PREROUTING),
        Chain(name="output", rules=(Rule(expressions=redirect),), hook=_OUTPUT),
    )


def _returning(wanted: Forwarding) -> Chain:
    """Return the chain that brings answers back this way, where they would take another way or none."""
    to_pod = nftexpressions.destination_in(wanted.address)
    loopback = LOOPBACK[_FAMILIES[wanted.address.version]]
    matches = [
        # No answer to 127.0.0.1 leaves the pod.
        (*nftexpressions.source_in(loopback), *to_pod),
        # The pod takes no packet with its own address as source.
        (*nftexpressions.source_in(wanted.address), *to_pod),
    ]
    if wanted.interface is not None:
        # A neighbour on the same bridge would get a direct answer, from an address unknown to the neighbour.
        by_one = (*nftexpressions.enters_by(wanted.interface), *nftexpressions.leaves_by(wanted.interface))
        matches.append((*by_one, *to_pod, *nftexpressions.was_redirected()))
    if wanted.always:
        matches.append((*to_pod, *nftexpressions.was_redirected()))
    return _chain("postrouting", _POSTROUTING, [(*match, *nftexpressions.masquerade()) for match in matches])


def _includes_loopback(port: ForwardedPort, family: int) -> bool:
    return port.host_ip is not None and (port.host_ip.is_unspecified or port.host_ip in LOOPBACK[family])


def _guards(family: int, interface: str) -> list[Chain]:
    """
    Return the chains that protect listeners on the host's loopback from others (CVE-2020-8558).

    No legitimate packet has such an address on any link: an answer to the loopback gets the address later. A packet
    with a source route may get the address later too, if the host follows source routes. Of IPv4 only answers arrive
    all the same. For IPv6 nothing behind such a header is filtered any more, so the only link with an open way may
    bring none.
    """
    by_link = nftexpressions.enters_not_by("lo")
    to_loopback = (*by_link, *nftexpressions.destination_in(LOOPBACK[family]))
    from_loopback = (*by_link, *nftexpressions.source_in(LOOPBACK[family]))
    refused: list[Match] = [to_loopback, from_loopback]
    if family == nftables.IP6:
        refused.append((*nftexpressions.enters_by(interface), *nftexpressions.has_route()))
    guard = _chain("guard", _FIRST, [(*match, *nftexpressions.drop()) for match in refused])
    if family == nftables.IP6:
        return [guard]
    answers = [
        (*to_loopback, *nftexpressions.is_answer(), *nftexpressions.leave()),
        (*to_loopback, *nftexpressions.drop()),
    ]
    return [guard, _chain("answers", _ARRIVING, answers)]


def _chain(name: str, hook: Hook, matches: Sequence[Match]) -> Chain:
    return Chain(name=name, rules=tuple(Rule(expressions=match) for match in matches), hook=hook)
