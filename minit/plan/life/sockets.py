"""Deciding on which sockets an app is started: those of its ports that are socket-activated (appc spec, aci.md)."""

from __future__ import annotations

from minit.errors import PlanError
from minit.manifest.app import App
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.value import Value

TCP = "tcp"
UDP = "udp"


class ListenSocket(Value):
    """A socket that an app finds open, `name` being that of its port; `protocol` is tcp or udp."""

    name: str
    protocol: str
    port: int

    def describe(self) -> str:
        """Return what is listened on, as in "tcp port 80"."""
        return f"{self.protocol} port {self.port}"


def plan_sockets(manifest: PodManifest, runtime: RuntimeApp, app: App) -> tuple[tuple[ListenSocket, ...], list[str]]:
    """
    Return the sockets of an app in the order of its ports, and the warnings to show.

    The port is that of the host, by which the host's service manager knows the socket. Of a range, which `count` makes,
    it is the first alone, as in rkt.
    """
    sockets = []
    warnings = []
    for port in app.ports:
        if not port.socket_activated:
            continue
        if port.protocol not in (TCP, UDP):
            raise PlanError(f'app "{runtime.name}": port {port.name}: unrecognized protocol: {port.protocol}')
        number = next((exposed.host_port for exposed in manifest.ports if exposed.name == port.name), None)
        if number is None:
            number = port.port
            warnings.append(
                f'warning: no --port option for socket-activated port "{port.name}",'
                f" assuming port {number} as specified in the manifest"
            )
        sockets.append(ListenSocket(name=port.name, protocol=port.protocol, port=number))
    return tuple(sockets), warnings
