"""The networks that a pod joins, the interfaces, and the forwarded ports of the host."""

from __future__ import annotations

from collections.abc import Iterable

from minit.base.errors import PlanError
from minit.base.value import Value, replace
from minit.manifest.hostports import Address, HostPorts
from minit.manifest.networkconfig import NetworkConfig
from minit.plan.networks.hostsfile import NamedPod

ALL_NETWORKS = "all"
"""The entry of --net for every network of rkt's directories."""


class PlannedNetwork(Value):
    """A network to join: `args` is its CNI_ARGS, `interface` the name of the pod's end."""

    config: NetworkConfig
    args: str
    interface: str


class ForwardedPort(Value):
    """
    A port of the host, at `host_ip` or at every address, that leads to a port of the pod; tcp or udp.

    A `count` makes a range: the port is the first of `count` ports, and leads to as many ports of the pod.
    """

    protocol: str
    host_port: int
    pod_port: int
    host_ip: Address | None = None
    count: int = 1

    @property
    def host_ports(self) -> HostPorts:
        """The side of the host."""
        return HostPorts(protocol=self.protocol, address=self.host_ip, first=self.host_port, count=self.count)


class NetworkPlan(Value):
    """
    The networks of a pod in the order of joining, and the ports forwarded to the pod.

    With `host_dns` the pod asks the name servers of the host if the networks lead there and name no servers. `named` is
    the pod as other pods find it by name, None for a hidden pod.
    """

    networks: tuple[PlannedNetwork, ...] = ()
    ports: tuple[ForwardedPort, ...] = ()
    host_dns: bool = False
    named: NamedPod | None = None

    def without_ports(self, taken: Iterable[tuple[str, int]]) -> NetworkPlan:
        """Return the plan without the ports, as protocol and number, that apps have on the host itself."""
        numbers = set(taken)
        ports = (port for port in self.ports if (port.protocol, port.host_port) not in numbers)
        return replace(self, ports=tuple(ports))

    @property
    def forwardable(self) -> PlannedNetwork | None:
        """The network that ports are forwarded to: the first that masquerades, else the last (rkt)."""
        for network in self.networks:
            if network.config.ip_masq:
                return network
        return self.networks[-1] if self.networks else None


class Connection(Value):
    """
    The result of a pod's networks for the apps.

    `namespace` is the path of the pod's network namespace. `host_address` is the address of the host on the forwardable
    network, `resolv_conf` the text of a resolv.conf(5) from the first network with such a text, or from the host
    (`is_host_dns`). `pod_addresses` begin with the address on the forwardable network.
    """

    namespace: str
    host_address: str | None = None
    resolv_conf: str | None = None
    is_host_dns: bool = False
    pod_addresses: tuple[str, ...] = ()


def interface_name(index: int) -> str:
    """Return the name of the pod's end of the network that is joined as number `index`, from 0 on."""
    return f"eth{index}"


def wants_network(wanted: tuple[str, ...], name: str) -> bool:
    """Return whether the entries of --net, NAME or NAME:ARGS, ask for the network of that name."""
    names = [entry.partition(":")[0] for entry in wanted]
    return ALL_NETWORKS in names or name in names


def plan_networks(configs: Iterable[NetworkConfig], wanted: tuple[str, ...]) -> tuple[PlannedNetwork, ...]:
    """
    Return the networks among `configs` that the entries of --net ask for, in the order of joining.

    File names give the order, without the directory; the interfaces are eth0, eth1 and so on. PlanError for a missing
    network, and for two networks with the same files in the pod directory.
    """
    arguments = {name: args for name, _, args in (entry.partition(":") for entry in wanted)}
    joined = sorted((config for config in configs if wants_network(wanted, config.name)), key=_file_name)
    missing = sorted(arguments.keys() - {ALL_NETWORKS} - {config.name for config in joined})
    if missing:
        raise PlanError(f"failed to setup network: networks not found: {', '.join(missing)}")
    for one, other in zip(joined, joined[1:]):
        if one.file_name == other.file_name:
            places = f"{one.directory} and {other.directory}"
            raise PlanError(f"failed to setup network: different networks in {one.file_name} of {places}: rename one")
    return tuple(
        PlannedNetwork(config=config, args=arguments.get(config.name, ""), interface=interface_name(index))
        for index, config in enumerate(joined)
    )


def _file_name(config: NetworkConfig) -> str:
    return config.file_name
