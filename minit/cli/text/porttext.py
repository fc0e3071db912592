"""Ports of the host that lead to a pod, as `port` and `status` show them. Pure."""

from __future__ import annotations

from minit.stage0.pods.exposedports import ForwardedPort


def host_place(port: ForwardedPort) -> str:
    """Return where the host listens: `ADDRESS:PORT`, with the last of several behind a dash."""
    address = port.host_ip or "0.0.0.0"
    return f"{f'[{address}]' if ':' in address else address}:{_range(port.host_port, port)}"


def pod_place(port: ForwardedPort) -> str:
    """Return where that leads to: `PORT/PROTOCOL`."""
    return f"{_range(port.pod_port, port)}/{port.protocol}"


def port_json(port: ForwardedPort) -> dict[str, object]:
    """Return the fields of a port."""
    return {
        "name": port.name,
        "protocol": port.protocol,
        "pod_port": port.pod_port,
        "host_ip": port.host_ip or "",
        "host_port": port.host_port,
        "count": port.count,
    }


def _range(first: int, port: ForwardedPort) -> str:
    return str(first) if port.count == 1 else f"{first}-{first + port.count - 1}"
