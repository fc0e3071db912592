"""
The name servers of the host, for a pod whose networks have a way out and say nothing about DNS.

An address of the loopback is the pod itself there, and no server. A host with such a resolver mostly has the real
servers in a file of the resolver's. Without any there is no DNS: to ask a stranger's servers, as docker and podman do
then, is not ours to decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv6Address

from minit import paths
from minit.errors import NetworkError
from minit.network.addresses import parse_address
from minit.network.builtin.ipam.resolvconf import read_resolv_conf
from minit.network.protocol.result import Dns, Result
from minit.plan.networks.networkplan import PlannedNetwork
from minit.stdio import complain
from minit.value import replace

# Of systemd-resolved and of NetworkManager, in which they leave out themselves.
_REAL = ("/run/systemd/resolve/resolv.conf", "/run/NetworkManager/no-stub-resolv.conf")


def families_out(networks: Iterable[PlannedNetwork], results: Iterable[Result]) -> frozenset[int]:
    """Return the versions of IP by which the pod has a way out: a default route by a network that is not restricted."""
    open_ones = (result for network, result in zip(networks, results) if not network.config.restricted)
    destinations = (route.destination for result in open_ones for route in result.routes)
    return frozenset(destination.version for destination in destinations if destination.prefixlen == 0)


def find_host_dns(families: frozenset[int], files: Sequence[str] = (paths.HOST_RESOLV_CONF, *_REAL)) -> Dns | None:
    """Return the DNS of the host, from the first file with servers that a pod reaches; None, said, if there is none."""
    said = False
    for file in files:
        try:
            dns = read_resolv_conf(file)
        except NetworkError:
            continue
        said = said or bool(dns.nameservers)
        servers = tuple(server for server in dns.nameservers if _is_reached(server, families))
        if servers:
            return replace(dns, nameservers=servers)
    if said:
        complain(
            "networking: warning: the pod has no name servers, as it does not reach those of the host: --dns=ADDRESS"
            " chooses others, --dns=none none"
        )
    return None


def _is_reached(server: str, families: frozenset[int]) -> bool:
    try:
        address = parse_address(server)
    except ValueError:
        return False  # with a zone, which is an interface of the host
    if isinstance(address, IPv6Address) and address.is_link_local:
        return False
    return not address.is_loopback and not address.is_unspecified and address.version in families
