"""Deciding which networks a pod joins, by which interfaces, and which ports of the host lead to it."""

from __future__ import annotations

from minit.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from minit.manifest.network import NetworkConfig


class PlannedNetwork(Value):
    """A network to join: `args` is its CNI_ARGS, `interface` the name of the pod's end."""

    config: NetworkConfig
    args: str
    interface: str


class ForwardedPort(Value):
    """A port of the host, of its address `host_ip` or of all, that leads to a port of the pod; tcp or udp."""

    protocol: str
    host_port: int
    pod_port: int
    host_ip: str | None = None


class NetworkPlan(Value):
    """The networks of a pod in the order in which they are joined, and the ports forwarded to it."""

    networks: tuple[PlannedNetwork, ...] = ()
    ports: tuple[ForwardedPort, ...] = ()

    @property
    def forwardable(self) -> PlannedNetwork | None:
        """The network that ports are forwarded to: the first that masquerades, else the last (rkt)."""
        masquerading = [network for network in self.networks if network.config.ip_masq]
        return (masquerading or list(self.networks[-1:]) or [None])[0]


class Connection(Value):
    """
    What a pod's networks came to, as far as its apps need to know.

    `namespace` is the path of the pod's network namespace. `host_address` is the address of the host on the
    forwardable network, `resolv_conf` the text of a resolv.conf(5) from the first network with one.
    """

    namespace: str
    host_address: str | None = None
    resolv_conf: str | None = None
