"""
Connecting a pod to its networks, finding the name servers of the pod, and undoing all of it after its end or a failed
start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from ipaddress import IPv6Address

from minit.base.errors import MinitError, NetworkError, describe
from minit.base.value import replace
from minit.linux.stdio import complain
from minit.network.addresses import parse_address
from minit.network.namespace import is_namespace, make_namespace, namespace_path, remove_namespace
from minit.network.netinfo import (
    NetInfo,
    copy_configuration,
    forget_configuration,
    read_attached,
    write_namespace,
    write_net_info,
)
from minit.network.packetfilter.forwarding import Target, forward_ports, stop_forwarding
from minit.network.packetfilter.tables import ports_table
from minit.network.pluginlist import attach, detach, plugin_path
from minit.network.pluginrequests import PluginSearch
from minit.network.podnames import publish, read_resolv_conf, withdraw
from minit.network.protocol import Dns, Request, Result
from minit.network.uplink import NAME_SERVER
from minit.plan.inputs.runflags import RunFlags
from minit.plan.networks.networkplan import Connection, NetworkPlan, PlannedNetwork
from minit.podfiles import paths
from minit.podfiles.usersdirectory import is_of_user

# The files of systemd-resolved and NetworkManager without their own addresses.
_REAL = ("/run/systemd/resolve/resolv.conf", "/run/NetworkManager/no-stub-resolv.conf")


def set_up(plan: NetworkPlan, flags: RunFlags, search: PluginSearch, cancelled: int) -> Connection:
    """
    Connect the pod in the working directory; NetworkError, with the work half done, on a failure.

    `tear_down` finds the finished steps. When the descriptor `cancelled` becomes readable, the work ends early.
    """
    records = [
        NetInfo(
            name=network.config.name,
            file_name=network.config.file_name,
            plugin=plugin_path(network, search),
            interface=network.interface,
            args=network.args,
        )
        for network in plan.networks
    ]
    namespace = namespace_path(flags.uuid)
    write_namespace(namespace)
    write_net_info(records)
    make_namespace(namespace)
    results = []
    for index, network in enumerate(plan.networks):
        if flags.debug:
            first = network.config.plugins[0].type
            complain(f"networking: loading network {network.config.name} with type {first}")
        copy_configuration(network)
        request = Request(container_id=flags.uuid, namespace=namespace, interface=network.interface, args=network.args)
        try:
            result = attach(network, request, search, cancelled)
        except MinitError:
            # The plugin has undone its own steps.
            forget_configuration(network.config.file_name)
            raise
        records[index] = _with_address(records[index], result)
        results.append(result)
    write_net_info(records)
    if not is_of_user():
        # For a user a process forwards them, from the machine's network, which these rules would not see.
        _forward_ports(plan, flags.uuid, results)
    if plan.named is not None:
        publish(flags.uuid, [(each.config.name, _addresses(result)) for each, result in zip(plan.networks, results)])
    forwardable = plan.forwardable
    resolv_conf = _resolv_conf(plan, results) if flags.resolv_mode == "default" else None
    of_host = _host_resolv_conf(plan, results) if plan.host_dns and resolv_conf is None else None
    return Connection(
        namespace=namespace,
        host_address=None if forwardable is None else _gateway(results[plan.networks.index(forwardable)]),
        resolv_conf=resolv_conf or of_host,
        is_host_dns=of_host is not None,
        pod_addresses=_pod_addresses(plan, results),
    )


def _resolv_conf_text(dns: Dns, comment: str) -> str:
    """Return the text of a resolv.conf(5)."""
    lines = [f"# {comment}", ""]
    lines += [f"search {' '.join(dns.search)}"] if dns.search else []
    lines += [f"nameserver {server}" for server in dns.nameservers]
    lines += [f"options {' '.join(dns.options)}"] if dns.options else []
    lines += [f"domain {dns.domain}"] if dns.domain else []
    return "\n".join(lines) + "\n"


def _forward_ports(plan: NetworkPlan, uuid: str, results: Sequence[Result]) -> None:
    network = plan.forwardable
    if not plan.ports or network is None:
        return
    targets = _targets(results[plan.networks.index(network)])
    asked = {port.host_ip.version for port in plan.ports if port.host_ip is not None}
    missing = asked - {target.address.version for target in targets}
    if missing or not targets:
        what = f"no IPv{min(missing, default=4)} address and gateway"
        raise NetworkError(f'cannot forward ports: network "{network.config.name}" gave {what}')
    forward_ports(ports_table(uuid), plan.ports, targets)


def _targets(result: Result) -> list[Target]:
    """Return the pod's first address of each family that has a gateway."""
    addresses = [address for version in (4, 6) if (address := result.first_address(version)) is not None]
    return [Target(address=one.address.ip, gateway=one.gateway) for one in addresses if one.gateway is not None]


def _with_address(record: NetInfo, result: Result) -> NetInfo:
    """Return a record with the pod's address of each family, the first if there are more."""
    ipv4, ipv6 = result.ipv4, result.first_address(6)
    if ipv4 is not None:
        record = replace(record, ip=str(ipv4.address.ip), mask=str(ipv4.address.netmask))
    return record if ipv6 is None else replace(record, ip6=str(ipv6.address))


def _pod_addresses(plan: NetworkPlan, results: Sequence[Result]) -> tuple[str, ...]:
    """Return the pod's address of each family on the forwardable network."""
    if plan.forwardable is None:
        return ()
    result = results[plan.networks.index(plan.forwardable)]
    addresses = (result.first_address(version) for version in (4, 6))
    return tuple(str(address.address.ip) for address in addresses if address is not None)


def _addresses(result: Result) -> tuple[str, ...]:
    return tuple(str(each.address.ip) for each in result.addresses)


def _gateway(result: Result) -> str | None:
    """Return the gateway of the pod's IPv4 address."""
    return None if result.ipv4 is None or result.ipv4.gateway is None else str(result.ipv4.gateway)


def _resolv_conf(plan: NetworkPlan, results: Sequence[Result]) -> str | None:
    """Return the DNS settings of the first network that has any."""
    text = None
    for network, result in zip(plan.networks, results):
        name = network.config.name
        if result.dns == Dns():
            continue
        if text is None:
            text = _resolv_conf_text(result.dns, f"Generated by rkt from network {name}")
        else:
            complain(
                f"networking: Warning: network {name} plugin specified DNS configuration, but DNS already supplied"
            )
    return text


def _host_resolv_conf(plan: NetworkPlan, results: Sequence[Result]) -> str | None:
    """Return the host's DNS settings, if the pod has a way to the host's name servers."""
    families = families_out(plan.networks, results)
    dns = find_host_dns(families) if families else None
    return None if dns is None else _resolv_conf_text(dns, "Generated by minit from the host's")


def families_out(networks: Iterable[PlannedNetwork], results: Iterable[Result]) -> frozenset[int]:
    """Return the versions of IP with a way out of the pod: a default route by an unrestricted network."""
    open_ones = (result for network, result in zip(networks, results) if not network.config.restricted)
    destinations = (route.destination for result in open_ones for route in result.routes)
    return frozenset(destination.version for destination in destinations if destination.prefixlen == 0)


def find_host_dns(families: frozenset[int], files: Sequence[str] = (paths.HOST_RESOLV_CONF, *_REAL)) -> Dns | None:
    """
    Return the DNS of the host, from the first file with servers that the pod reaches; None, with a message, if there is
    none.

    In a pod an address of the loopback is the pod itself. A host whose resolver is at such an address mostly has the
    real servers in a file of the resolver. Without any there is no DNS: to ask a stranger's servers, as docker and
    podman do then, is not ours to decide. Pods of a user without root reach all servers of the host by the uplink.
    """
    said = False
    by_uplink = None
    for file in files:
        try:
            dns = read_resolv_conf(file)
        except NetworkError:
            continue
        if dns.nameservers and is_of_user() and not said:
            by_uplink = replace(dns, nameservers=(NAME_SERVER,))
        said = said or bool(dns.nameservers)
        servers = tuple(server for server in dns.nameservers if _is_reached(server, families))
        if servers:
            return replace(dns, nameservers=servers)
    if by_uplink is not None:
        return by_uplink
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


def tear_down(
    uuid: str, search: PluginSearch, freed: ExitStack | None = None, *, is_last: bool = True, debug: bool = False
) -> list[str]:
    """
    Detach the pod in the working directory from its networks, the last network first; return the failures.

    Nothing needs to be there any more: neither the namespace, nor plugins, nor records. The last time a failure is not
    tried again, as in rkt: a plugin that cannot detach a network would keep the pod for ever. With `debug` each network
    is a line on stderr. The end of `freed` waits for the kernel to free what is removed.
    """
    problems = withdraw_names(uuid)
    try:
        stop_forwarding(ports_table(uuid))
    except (MinitError, OSError) as error:
        problems.append(f"error removing forwarded ports: {describe(error)}")
    namespace = namespace_path(uuid)
    networks, unreadable = read_attached()
    problems += unreadable
    for network in reversed(networks):
        request = Request(
            container_id=uuid,
            namespace=namespace if is_namespace(namespace) else "",
            interface=network.interface,
            args=network.args,
        )
        if debug:
            complain(f"networking: teardown - executing net-plugin {network.config.plugins[0].type}")
        is_left = False
        try:
            detach(network, request, search, freed=freed)
            is_left = True
        except (MinitError, OSError) as error:
            problems.append(f'error deleting "{network.config.name}": {describe(error)}')
        if is_left or is_last:
            problems += _forget(network)
    try:
        remove_namespace(namespace)
    except OSError as error:
        problems.append(f"error removing the network namespace: {describe(error)}")
    return problems


def withdraw_names(uuid: str) -> list[str]:
    """Have other pods forget the names of a pod; return the failures."""
    try:
        withdraw(uuid)
    except NetworkError as error:
        return [describe(error)]
    return []


def _forget(network: PlannedNetwork) -> list[str]:
    try:
        forget_configuration(network.config.file_name)
    except OSError as error:
        # gc detaches the network once more, which does no harm.
        return [f'error forgetting "{network.config.name}": {describe(error)}']
    return []
