"""Packets that say themselves which way they go, on a host that follows them: they do not lead to its loopback."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

import pytest

from minit.network.packetfilter.forwarding import Target, forward_ports
from minit.plan.networks.networkplan import ForwardedPort
from tests.support.frames import frame_socket, routed4, routed6
from tests.support.topology import (
    BRIDGE,
    GATEWAY,
    GATEWAY6,
    POD,
    Place,
    Topology,
    ipv6_of,
    make_topology,
)

PRIVATE, OPEN = 22, 23
TABLE = "minit-x-ports"
POD6 = ipv6_of(POD)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("add", [Topology.add_pod, Topology.add_bridged_pod])
def test_the_hosts_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, add: Callable[[Topology, str], Place], version: int
) -> None:
    """With forwarded ports a pod does not reach it by the host's own address, which it would without the guards."""
    monkeypatch.chdir(tmp_path)
    ports = [ForwardedPort(protocol="tcp", host_port=8080, pod_port=80, host_ip=None, count=1)]
    pairs = ((POD, GATEWAY), (POD6, GATEWAY6))
    targets = [Target(address=ip_address(one), gateway=ip_address(gateway)) for one, gateway in pairs]
    with make_topology(tmp_path) as topology:
        pod = add(topology, POD)
        link = BRIDGE if add is Topology.add_bridged_pod else topology.link_of(POD)
        topology.filter_bridged(False)
        follow_routes(topology.host, link)
        topology.host.do(lambda: forward_ports(TABLE, ports, targets))
        mac, to = pod.mac("eth0"), topology.host.mac(link)
        if version == 4:
            loopback, every, chain = "127.0.0.1", "0.0.0.0", f"ip {TABLE} answers"
            frame = routed4(POD, GATEWAY, loopback, PRIVATE, mac, to)
        else:
            loopback, every, chain = "::1", "::", f"ip6 {TABLE} guard"
            frame = routed6(POD6, GATEWAY6, loopback, PRIVATE, mac, to)
        private = topology.host.listen("udp", PRIVATE, loopback)
        everybody = topology.host.listen("udp", OPEN, every)
        marker = (POD, GATEWAY) if version == 4 else (POD6, GATEWAY6)
        assert not reaches(pod, frame, private, everybody, marker)
        topology.host.run(f"nft flush chain {chain}")
        assert reaches(pod, frame, private, everybody, marker)


def follow_routes(host: Place, link: str) -> None:
    """Make a host take packets with routes, which it does not by itself."""
    for name in ("all", link):
        host.sysctl(f"conf/{name}/accept_source_route", "1")
        host.sysctl6(f"conf/{name}/seg6_enabled", "1")


def reaches(pod: Place, frame: bytes, private: socket.socket, everybody: socket.socket, ends: tuple[str, str]) -> bool:
    """Tell whether a frame of a pod gets to a socket; what the pod sends after it gets to the other one."""
    with pod.do(lambda: frame_socket("eth0")) as sending:
        sending.send(frame)
    assert pod.send("udp", ends[1], OPEN, everybody) == (ends[0], 0)
    private.setblocking(False)
    try:
        return bool(private.recv(100))
    except BlockingIOError:
        return False
