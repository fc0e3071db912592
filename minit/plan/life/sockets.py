"""The sockets an app is started with, for socket-activated ports (appc spec, aci.md)."""

from __future__ import annotations

from minit.base.errors import PlanError
from minit.base.value import Value
from minit.manifest.app import App
from minit.manifest.hostports import parse_host_address
from minit.manifest.pod import PodManifest, RuntimeApp

TCP = "tcp"
UDP = "udp"


class ListenSocket(Value):
    """
    A socket that an app finds open; `name` is the name of the port, `protocol` tcp or udp.

    `port` is a port of the host, at `address` or at every address. A socket in the pod's own network listens at every
    address there, and traffic to the host's port is forwarded. In the host's network the socket `is_at_address` alone.
    """

    name: str
    protocol: str
    port: int
    address: str | None = None
    is_at_address: bool = False

    def describe(self) -> str:
        """Return what is listened on, as in "tcp port 80"."""
        at = f" of {self.address}" if self.is_at_address else ""
        return f"{self.protocol} port {self.port}{at}"


def plan_sockets(
    manifest: PodManifest, runtime: RuntimeApp, app: App, *, in_host_network: bool = False
) -> tuple[tuple[ListenSocket, ...], list[str]]:
    """
    Return the sockets of an app in the order of the ports, and the warnings to show.

    The port is the host's, by which the host's service manager knows the socket. Of a range by `count` only the first
    port counts, as in rkt.
    """
    sockets = []
    warnings = []
    for port in app.ports:
        if not port.socket_activated:
            continue
        if port.protocol not in (TCP, UDP):
            raise PlanError(f'app "{runtime.name}": port {port.name}: unrecognized protocol: {port.protocol}')
        exposed = next((exposed for exposed in manifest.ports if exposed.name == port.name), None)
        if exposed is None:
            warnings.append(
                f'warning: no --port option for socket-activated port "{port.name}",'
                f" assuming port {port.port} as specified in the manifest"
            )
        address = str(parse_host_address(exposed.host_ip)) if exposed and exposed.host_ip else None
        sockets.append(
            ListenSocket(
                name=port.name,
                protocol=port.protocol,
                port=port.port if exposed is None else exposed.host_port,
                address=address,
                is_at_address=in_host_network and address is not None,
            )
        )
    return tuple(sockets), warnings
