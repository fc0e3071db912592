"""minit.network.packetfilter.confinement: how addresses of pods look from elsewhere, and what is left of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from ipaddress import ip_interface
from pathlib import Path

import pytest

from minit.base.errors import NetworkError
from minit.linux import syscalls
from minit.network.packetfilter.confinement import delete_table, protect
from minit.network.packetfilter.tables import table_name
from tests.support.podports import Pods, make_pods, port
from tests.support.topology import (
    HOST,
    HOST6,
    IPV4,
    IPV6,
    OUTSIDE,
    POD,
    SECOND_POD,
    SUBNET,
    SUBNET6,
    Family,
    Topology,
    make_topology,
)

PROTOCOLS = pytest.mark.parametrize("protocol", ["tcp", "udp"])
FAMILIES = pytest.mark.parametrize("ip", [IPV4, IPV6], ids=["ipv4", "ipv6"])

# What others may have: rules of an administrator, and the table that iptables uses.
FOREIGN_RULES = """
table ip nat {
    chain PREROUTING { type nat hook prerouting priority dstnat; policy accept; tcp dport 7 dnat to 192.0.2.2; }
    chain POSTROUTING { type nat hook postrouting priority srcnat; policy accept; ip saddr 10.9.0.0/24 masquerade; }
    chain OUTPUT { type nat hook output priority -100; policy accept; }
}
table inet filter {
    set blocked { type ipv4_addr; elements = { 203.0.113.7 } }
    chain input { type filter hook input priority filter; policy accept; ip saddr @blocked counter drop; }
}
table ip minit {
    chain mine { counter; }
}
"""


@pytest.fixture
def topology(tmp_path: Path) -> Iterator[Topology]:
    """A host and an outside."""
    with make_topology(tmp_path) as topology:
        yield topology


@pytest.fixture
def pods(topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pods]:
    """Pod directories, the working directory being that of a pod which runs."""
    with make_pods(topology, tmp_path, monkeypatch) as pods:
        yield pods


# Masquerading.


def allow_answers(topology: Topology) -> None:
    """Let the outside answer pods that it sees."""
    topology.outside.run(f"ip route add {SUBNET} via {HOST}", f"ip route add {SUBNET6} via {HOST6}")


@FAMILIES
@PROTOCOLS
def test_masquerading(topology: Topology, ip: Family, protocol: str) -> None:
    """The outside sees the host, neighbours and the host see the pod."""
    allow_answers(topology)
    pod, neighbour = topology.add_pod(POD), topology.add_pod(SECOND_POD)
    places = (topology.outside, topology.host, neighbour)
    addresses = (ip.outside, ip.host, ip.second_pod)
    outside, host, other = (place.listen(protocol, 7, address) for place, address in zip(places, addresses))
    assert pod.send(protocol, ip.outside, 7, outside) == (ip.pod, 0)
    topology.host.do(lambda: protect(table_name("x", "eth0"), [ip_interface(f"{ip.pod}/{ip.prefix}")]))
    assert pod.send(protocol, ip.outside, 7, outside) == (ip.host, 0)
    assert pod.send(protocol, ip.host, 7, host) == (ip.pod, 0)
    assert pod.send(protocol, ip.second_pod, 7, other) == (ip.pod, 0)
    assert neighbour.send(protocol, ip.outside, 7, outside) == (ip.second_pod, 0)
    topology.host.do(lambda: delete_table(table_name("x", "eth0")))
    assert pod.send(protocol, ip.outside, 7, outside) == (ip.pod, 0)


@FAMILIES
def test_masquerading_and_forwarding(pods: Pods, topology: Topology, ip: Family) -> None:
    """A pod with both has its port, sees who asks, and reaches itself by the host's address."""
    pod = topology.add_pod(POD)
    server = pod.listen("tcp", 80, ip.every)
    topology.host.do(lambda: protect(table_name(pods.own, "eth0"), [ip_interface(f"{ip.pod}/{ip.prefix}")]))
    pods.forward(port())
    assert topology.outside.send("tcp", ip.host, 8080, server) == (ip.outside, 0)
    assert pod.send("tcp", ip.host, 8080, server) == (ip.gateway, 0)
    assert topology.host.send("tcp", ip.loopback, 8080, server) == (ip.gateway, 0)


def test_multicast_is_not_masqueraded(topology: Topology) -> None:
    """A group is addressed by the pod itself, and a subnet may be given by any address in it."""
    topology.host.do(lambda: protect("minit-x-eth0", [ip_interface(f"{POD}/20")]))
    topology.host.do(lambda: protect("minit-x-eth0", [ip_interface(f"{POD}/24")]))
    assert topology.host.run("nft list table minit-x-eth0").split("\n")[3:5] == [
        f"\t\tip saddr {POD} ip daddr {SUBNET} return",
        f"\t\tip saddr {POD} ip daddr != 224.0.0.0/4 masquerade",
    ]


# Networks that are kept to themselves.


@FAMILIES
@PROTOCOLS
def test_restricted(pods: Pods, topology: Topology, ip: Family, protocol: str) -> None:
    """The pod is reached by its subnet and the host, and by others with its ports alone; it reaches nobody else."""
    allow_answers(topology)
    pod, neighbour = topology.add_pod(POD), topology.add_pod(SECOND_POD)
    server = pod.listen(protocol, 80, ip.every)
    other, outside = neighbour.listen(protocol, 7, ip.every), topology.outside.listen(protocol, 7, ip.every)
    assert topology.outside.send(protocol, ip.pod, 80, server) == (ip.outside, 0)
    restricted = [ip_interface(f"{ip.pod}/{ip.prefix}")]
    topology.host.do(lambda: protect(table_name("x", "eth0"), restricted=restricted))
    assert topology.outside.send(protocol, ip.pod, 80, server) is None
    assert pod.send(protocol, ip.outside, 7, outside) is None
    assert neighbour.send(protocol, ip.pod, 80, server) == (ip.second_pod, 0)
    assert pod.send(protocol, ip.second_pod, 7, other) == (ip.pod, 0)
    assert topology.host.send(protocol, ip.pod, 80, server) == (ip.gateway, 0)
    pods.forward(port(protocol))
    assert topology.outside.send(protocol, ip.host, 8080, server) == (ip.outside, 0)
    assert topology.outside.send(protocol, ip.pod, 80, server) is None


# Others' rules, and nothing left.


def test_rules_of_others(pods: Pods, topology: Topology, tmp_path: Path) -> None:
    """They are the same byte for byte, work meanwhile, and after all of ours are gone nothing of ours is left."""
    (tmp_path / "rules").write_text(FOREIGN_RULES)
    topology.host.run(f"nft --file {tmp_path / 'rules'}")
    before = topology.rules()
    outside = topology.outside.listen("tcp", 7)
    server = topology.add_pod(POD).listen("tcp", 80)
    masqueraded = table_name(pods.own, "eth0")
    topology.host.do(lambda: protect(masqueraded, [ip_interface(f"{POD}/24")]))
    forwarded = pods.forward(port())
    assert topology.outside.send("tcp", HOST, 8080, server) == (OUTSIDE, 0)
    assert topology.host.sysctl("ip_forward") == "1"
    # The rule of the other table: what comes to port 7 of the host goes to the outside.
    pod = topology.add_pod(SECOND_POD)
    allow_answers(topology)
    assert pod.send("tcp", HOST, 7, outside) == (SECOND_POD, 0)
    after = topology.rules()
    assert after.startswith(before)
    assert before in after
    topology.host.do(lambda: delete_table(masqueraded))
    pods.delete(forwarded)
    assert topology.rules() == before
    topology.host.do(lambda: delete_table(masqueraded))
    pods.delete(forwarded)
    assert topology.rules() == before


def test_deleting_takes_the_exact_name(pods: Pods, topology: Topology) -> None:
    """A table whose name only begins like another stays."""
    topology.add_pod(POD)
    topology.host.do(lambda: protect("minit-x-eth0", [ip_interface(f"{POD}/24")]))
    topology.host.do(lambda: protect("minit-x-eth01", [ip_interface(f"{POD}/24")]))
    topology.host.do(lambda: delete_table("minit-x-eth0"))
    topology.host.do(lambda: delete_table("minit-x-eth"))
    assert "table ip minit-x-eth01 " in topology.rules()
    assert "table ip minit-x-eth0 " not in topology.rules()


def test_without_the_right(topology: Topology) -> None:
    """A process that may not change the packet filter says so in one line."""

    def work() -> None:
        syscalls.set_capabilities(0, 0, 0)
        try:
            protect("minit-x-eth0", [ip_interface(f"{POD}/24")])
        except NetworkError as error:
            expected = "cannot write nftables table minit-x-eth0: operation not permitted"
            os._exit(0 if str(error) == expected else 1)
        os._exit(2)

    child = os.fork()
    if child == 0:
        try:
            topology.host.do(work)
        finally:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
