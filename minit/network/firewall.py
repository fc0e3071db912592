"""
A pod's rules in the kernel's packet filter: its packets masqueraded and its own, and ports of the host that lead to it.

Tables of its own for each interface (`table_name`) and for its ports (`ports_table`), which are written and deleted as
a whole, so that nobody else's rules are ever touched. Chains of other tables at the same hook are evaluated too, and
may still refuse packets.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
from collections.abc import Collection, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from typing import TypeAlias

from minit.errors import NetworkError, describe
from minit.network.confinement import Sender, confinement
from minit.network.hostlink import host_addresses, host_interface
from minit.network.netlink import nftables, nftexpressions
from minit.network.netlink.conntrack import forget_datagrams
from minit.network.netlink.nftables import Chain, Hook, Rule, Table
from minit.network.netlink.nftexpressions import Network
from minit.network.portuse import PORTS_CHAIN, port_comment, ports_table, read_ports, refuse_taken_ports
from minit.plan.networks.networkplan import ForwardedPort
from minit.value import replace

__all__ = [
    "Interface",
    "Sender",
    "delete_table",
    "delete_tables_of",
    "forward_ports",
    "ports_table",
    "protect",
    "refuse_taken_ports",
    "table_name",
]

Interface: TypeAlias = IPv4Interface | IPv6Interface

_PREFIX = "minit-"
_LOOPBACK = IPv4Network("127.0.0.0/8")
_MULTICAST: dict[int, Network] = {nftables.IP: IPv4Network("224.0.0.0/4"), nftables.IP6: IPv6Network("ff00::/8")}
_LOCALNET_COMMENT = "route_localnet of "
_NETWORK_COMMENT = "network "
_MAX_COMMENT_NAME_BYTES = 64
_LOCK_DIRECTORY = "/run/minit"
_LOCK = f"{_LOCK_DIRECTORY}/firewall.lock"

_PREROUTING = Hook(kind=nftables.NAT, point=nftables.PREROUTING, priority=nftables.PRIORITY_DSTNAT)
_OUTPUT = Hook(kind=nftables.NAT, point=nftables.OUTPUT, priority=nftables.PRIORITY_DSTNAT)
_POSTROUTING = Hook(kind=nftables.NAT, point=nftables.POSTROUTING, priority=nftables.PRIORITY_SRCNAT)
_FIRST = Hook(kind=nftables.FILTER, point=nftables.PREROUTING, priority=nftables.PRIORITY_RAW)


def table_name(container_id: str, interface: str) -> str:
    """Return the name of the tables of one of a pod's interfaces."""
    return f"{_PREFIX}{container_id}-{interface}"


def protect(name: str, masqueraded: Sequence[Interface] = (), sender: Sender | None = None, network: str = "") -> None:
    """
    Write the tables of one of a pod's interfaces, all of them at once; NetworkError, and none is, if one is refused.

    The addresses `masqueraded` are hidden behind the host's, except from their own subnets and from multicast groups.
    With a `sender` nobody else may speak by its link. `delete_tables_of` finds them by the name of their `network`.
    """
    tables = [_masquerading(name, family, addresses) for family, addresses in _by_family(masqueraded)]
    if sender is not None:
        _require_link(sender.link)
        tables.append(confinement(name, sender))
    if tables:
        nftables.replace_tables([replace(table, comment=_network_comment(network)) for table in tables])


def forward_ports(table: str, ports: Sequence[ForwardedPort], address: str, gateway: str) -> None:
    """
    Let ports of the host lead to a pod's `address`; `gateway` is the host's own address in the pod's network.

    A port that includes 127.0.0.1 needs `route_localnet` on the interface of the host that leads to the pod, which is
    switched on. NetworkError if a port is taken or the kernel refuses. The working directory is the pod's.
    """
    interface = host_interface(address, gateway)
    lock = _take_lock()
    try:
        for ended in refuse_taken_ports(ports, table):
            _delete(ended)
        _delete(table)
        _write(table, ports, address, interface)
        _forget_datagrams(ports)
    finally:
        os.close(lock)


def delete_table(table: str) -> None:
    """Remove a table, and what was switched on for it; no error if it is gone."""
    lock = _take_lock()
    try:
        _delete(table)
    finally:
        os.close(lock)


def delete_tables_of(network: str, excepted: Collection[str]) -> None:
    """Remove the tables of all interfaces in a network, but for those of the names `excepted`."""
    comment = _network_comment(network)
    lock = _take_lock()
    try:
        found = {one.name for one in nftables.read_tables(_PREFIX) if one.comment == comment}
        for name in sorted(found.difference(excepted)):
            _delete(name)
    finally:
        os.close(lock)


# The tables of an interface.


def _network_comment(network: str) -> str:
    if not network:
        return ""
    # A comment has room for half of what a file's name may be.
    is_short = len(network.encode()) <= _MAX_COMMENT_NAME_BYTES
    return _NETWORK_COMMENT + (network if is_short else hashlib.sha256(network.encode()).hexdigest())


def _by_family(interfaces: Sequence[Interface]) -> Iterator[tuple[int, list[Interface]]]:
    for family, version in ((nftables.IP, 4), (nftables.IP6, 6)):
        addresses = [interface for interface in interfaces if interface.version == version]
        if addresses:
            yield family, addresses


def _require_link(name: str) -> None:
    # To some kernels the interface of a chain may be one that is yet to come.
    try:
        socket.if_nametoindex(name)
    except OSError as error:
        raise NetworkError(f"interface {name} has vanished") from error


def _masquerading(name: str, family: int, addresses: Sequence[Interface]) -> Table:
    rules = []
    for address in addresses:
        source = nftexpressions.source_in(address.ip)
        to_neighbour = nftexpressions.destination_in(address.network)
        elsewhere = nftexpressions.destination_not_in(_MULTICAST[family])
        rules.append(Rule(expressions=(*source, *to_neighbour, *nftexpressions.leave())))
        rules.append(Rule(expressions=(*source, *elsewhere, *nftexpressions.masquerade())))
    chain = Chain(name="postrouting", rules=tuple(rules), hook=_POSTROUTING)
    return Table(family=family, name=name, chains=(chain,))


# The table of forwarded ports.


def _write(table: str, ports: Sequence[ForwardedPort], address: str, interface: str) -> None:
    chains = [_redirections(ports, address), *_redirecting(), _returning(address, interface)]
    if not any(port.host_ip is None or port.host_ip.startswith("127.") for port in ports):
        nftables.replace_tables([Table(family=nftables.IP, name=table, chains=tuple(chains))])
        return
    chains.append(_guard(interface))
    # Written first: whoever deletes the table knows from the comment what else there is to undo.
    comment = f"{_LOCALNET_COMMENT}{interface}" if _is_ours_to_switch(interface) else ""
    nftables.replace_tables([Table(family=nftables.IP, name=table, chains=tuple(chains), comment=comment)])
    _switch_localnet(interface, "1")


def _delete(table: str) -> None:
    tables = [one for one in nftables.read_tables(table) if one.name == table]
    if not tables:
        return
    ports = [port for one in tables for port in read_ports(one)]
    comment = next((one.comment for one in tables if one.comment), "")
    interface = comment.removeprefix(_LOCALNET_COMMENT)
    if interface != comment and interface not in _switched_for_others(table):
        # Before the table goes, and its guard with it.
        _switch_localnet(interface, "0")
    nftables.delete_tables(table)
    _forget_datagrams(ports)


def _forget_datagrams(ports: Sequence[ForwardedPort]) -> None:
    ports = [port for port in ports if port.protocol == "udp"]
    every = host_addresses() if any(port.host_ip is None for port in ports) else set()
    for port in ports:
        forget_datagrams(port.host_port, every if port.host_ip is None else {port.host_ip})


def _redirections(ports: Sequence[ForwardedPort], address: str) -> Chain:
    rules = []
    for port in ports:
        place = nftexpressions.destination_in(IPv4Address(port.host_ip)) if port.host_ip else ()
        match = (*place, *nftexpressions.destination_ports(port.protocol, port.host_port))
        action = nftexpressions.redirect_to(IPv4Address(address), port.pod_port)
        rules.append(Rule(expressions=(*match, *action), comment=port_comment(port)))
    return Chain(name=PORTS_CHAIN, rules=tuple(rules))


def _redirecting() -> tuple[Chain, ...]:
    """Return the chains for what comes from elsewhere and for what this machine sends itself."""
    redirect = (*nftexpressions.destination_is_local(), *nftexpressions.jump(PORTS_CHAIN))
    # A neighbour's packet to 127.0.0.1 would be redirected before the kernel sees that it cannot be right.
    from_outside = Rule(expressions=(*nftexpressions.destination_not_in(_LOOPBACK), *redirect))
    return (
        Chain(name="prerouting", rules=(from_outside,), hook=_PREROUTING),
        Chain(name="output", rules=(Rule(expressions=redirect),), hook=_OUTPUT),
    )


def _returning(address: str, interface: str) -> Chain:
    """Return the chain that makes answers come back this way, where they would go another or nowhere."""
    to_pod = nftexpressions.destination_in(IPv4Address(address))
    by_one_interface = (*nftexpressions.enters_by(interface), *nftexpressions.leaves_by(interface))
    rules = (
        # No answer to 127.0.0.1 leaves the pod.
        Rule(expressions=(*nftexpressions.source_in(_LOOPBACK), *to_pod, *nftexpressions.masquerade())),
        # The pod takes no packet that seems to come from itself.
        Rule(expressions=(*nftexpressions.source_in(IPv4Address(address)), *to_pod, *nftexpressions.masquerade())),
        # A neighbour on the same bridge would be answered directly, by an address that it never spoke to.
        Rule(expressions=(*by_one_interface, *to_pod, *nftexpressions.was_redirected(), *nftexpressions.masquerade())),
    )
    return Chain(name="postrouting", rules=rules, hook=_POSTROUTING)


def _guard(interface: str) -> Chain:
    """Return the chain that keeps the pod from what listens on 127.0.0.1 of the host (CVE-2020-8558)."""
    rules = tuple(
        Rule(expressions=(*nftexpressions.enters_by(interface), *match, *nftexpressions.drop()))
        for match in (nftexpressions.destination_in(_LOOPBACK), nftexpressions.source_in(_LOOPBACK))
    )
    return Chain(name="guard", rules=rules, hook=_FIRST)


# route_localnet, which pods on one bridge share.


def _is_ours_to_switch(interface: str) -> bool:
    """Tell whether `route_localnet` is off, or on because of another pod."""
    return _read_localnet(interface) != "1" or interface in _switched_for_others("")


def _switched_for_others(table: str) -> list[str]:
    """Return the interfaces whose `route_localnet` was switched on for another table than this."""
    comments = [one.comment for one in nftables.read_tables(_PREFIX) if one.name != table]
    return [comment.removeprefix(_LOCALNET_COMMENT) for comment in comments if comment.startswith(_LOCALNET_COMMENT)]


def _localnet_path(interface: str) -> str:
    return f"/proc/sys/net/ipv4/conf/{interface}/route_localnet"


def _read_localnet(interface: str) -> str:
    try:
        with open(_localnet_path(interface), encoding="utf-8") as file:
            return file.read().strip()
    except OSError as error:
        raise NetworkError(f"cannot forward from 127.0.0.1: {describe(error)}") from error


def _switch_localnet(interface: str, value: str) -> None:
    try:
        with open(_localnet_path(interface), "w", encoding="utf-8") as file:
            file.write(value)
    except FileNotFoundError as error:
        if value != "0":  # an interface that is gone needs nothing switched off
            raise NetworkError(f"cannot forward from 127.0.0.1: {describe(error)}") from error
    except OSError as error:
        raise NetworkError(f"cannot switch route_localnet: {describe(error)}") from error


def _take_lock() -> int:
    """Return a descriptor that holds the lock of all who change these tables; closing it gives the lock up."""
    try:
        os.makedirs(_LOCK_DIRECTORY, 0o755, exist_ok=True)
        lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        raise NetworkError(f"cannot lock the firewall: {describe(error)}") from error
    return lock
