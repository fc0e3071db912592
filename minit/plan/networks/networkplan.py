"""Deciding which networks a pod joins, by which interfaces, and which ports of the host lead to it."""

from __future__ import annotations

from collections.abc import Iterable

from minit.base.errors import PlanError
from minit.base.value import Value, replace
from minit.manifest.hostports import Address, HostPorts
from minit.manifest.networkconfig import NetworkConfig
from minit.plan.networks.hostsfile import NamedPod

_ALL = "all"


class PlannedNetwork(Value):
    """A network to join: `args` is its CNI_ARGS, `interface` the name of the pod's end."""

    config: NetworkConfig
    args: str
    interface: str


class ForwardedPort(Value):
    """
    A port of the host, of its address `host_ip` or of all, that leads to a port of the pod; tcp or udp.

    With a `count` it is the first of so many, each of which leads to the next one of the pod.
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
    The networks of a pod in the order in which they are joined, and the ports forwarded to it.

    With `host_dns` it asks the name servers of the host if its networks lead there and name none. `named` is what
    others find it by, None if they are not to.
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
    The result of a pod's networks, as far as its apps need to know.

    `namespace` is the path of the pod's network namespace. `host_address` is the address of the host on the
    forwardable network, `resolv_conf` the text of a resolv.conf(5) from the first network with one, or from the host
    (`is_host_dns`). `pod_addresses` are those of the pod, the one on the forwardable network first.
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
    return _ALL in names or name in names


def plan_networks(configs: Iterable[NetworkConfig], wanted: tuple[str, ...]) -> tuple[PlannedNetwork, ...]:
    """
    Return the networks among `configs` that the entries of --net ask for, in the order in which they are joined.

    That is the order of their file names, whatever the directory; the interfaces are eth0, eth1 and so on. PlanError if
    one is not there, or if two could not be told apart by what the pod directory keeps of them.
    """
    arguments = {name: args for name, _, args in (entry.partition(":") for entry in wanted)}
    joined = sorted((config for config in configs if wants_network(wanted, config.name)), key=_file_name)
    missing = sorted(arguments.keys() - {_ALL} - {config.name for config in joined})
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
