"""minit.network.packetfilter.confinement: packets of no connection pass a restricted network neither way."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_interface
from pathlib import Path

import pytest

from minit.network.packetfilter.confinement import protect
from minit.network.packetfilter.tables import table_name
from tests.support.frames import frame_socket, ipv4, ipv6, routed4, routed6, udp4
from tests.support.topology import (
    GATEWAY,
    GATEWAY6,
    HOST,
    HOST6,
    OUTSIDE,
    OUTSIDE6,
    POD,
    SUBNET,
    SUBNET6,
    Place,
    Topology,
    ipv6_of,
    make_topology,
)

POD6 = ipv6_of(POD)
TCP = 6
# Without any flags, which no connection knows.
NOTHING = bytes(12) + b"\x50" + bytes(7)


@pytest.fixture
def topology(tmp_path: Path) -> Iterator[Topology]:
    """A host that follows routes in packets, and an outside that knows the way to its pods."""
    with make_topology(tmp_path) as topology:
        for name in ("all", "default", "eth0"):
            topology.host.sysctl(f"conf/{name}/accept_source_route", "1")
            topology.host.sysctl6(f"conf/{name}/seg6_enabled", "1")
        topology.outside.run(f"ip route add {SUBNET} via {HOST}", f"ip route add {SUBNET6} via {HOST6}")
        yield topology


def frames(
    source: str, source6: str, gateway: str, gateway6: str, target: str, target6: str, ends: tuple[str, str]
) -> dict[str, bytes]:
    """Return frames from one side to the other."""
    return {
        "no connection": ipv4(source, target, TCP, NOTHING, *ends),
        "no connection by IPv6": ipv6(source6, target6, TCP, NOTHING, *ends),
        "route": routed4(source, gateway, target, 7, *ends),
        "route by IPv6": routed6(source6, gateway6, target6, 7, *ends),
    }


def arrived(sender: Place, receiver: Place, sent: dict[str, bytes], marker: bytes) -> set[str]:
    """Return the names of the frames whose end the receiver gets before that of the marker."""
    with receiver.do(lambda: frame_socket("eth0")) as seen, sender.do(lambda: frame_socket("eth0")) as sending:
        seen.settimeout(60)
        for frame in (*sent.values(), marker):
            sending.send(frame)
        found = set()
        while (got := seen.recv(2000))[-24:] != marker[-24:]:
            # Of a packet with a route the way that is left is changed, but not its source and its end.
            found |= {name for name, frame in sent.items() if got[-8:] == frame[-8:] and len(got) == len(frame)}
        return found


@pytest.mark.parametrize("is_outwards", [True, False])
def test_neither_way(topology: Topology, is_outwards: bool) -> None:
    """A pod sends nobody else anything, and gets nothing; without the restriction it would."""
    pod = topology.add_pod(POD)
    link = topology.link_of(POD)
    if is_outwards:
        sender, receiver = pod, topology.outside
        ends = (pod.mac("eth0"), topology.host.mac(link))
        sent = frames(POD, POD6, GATEWAY, GATEWAY6, OUTSIDE, OUTSIDE6, ends)
    else:
        sender, receiver = topology.outside, pod
        ends = (topology.outside.mac("eth0"), topology.host.mac("eth0"))
        sent = frames(OUTSIDE, OUTSIDE6, HOST, HOST6, POD, POD6, ends)
    topology.host.sysctl("conf/all/rp_filter", "0")
    # Of the pod's subnet, from where all may come.
    marker = udp4("10.1.0.99", OUTSIDE if is_outwards else POD, *ends, ports=(9, 9))
    assert arrived(sender, receiver, sent, marker) == sent.keys()
    restricted = [ip_interface(f"{POD}/24"), ip_interface(f"{POD6}/64")]
    topology.host.do(lambda: protect(table_name("x", "eth0"), restricted=restricted))
    assert arrived(sender, receiver, sent, marker) == set()
