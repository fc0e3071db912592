"""minit.network.packetfilter.forwarding: what gets to a pod by ports of the host, and what is left of it."""

from __future__ import annotations

import os
import select
import socket
import uuid
from collections.abc import Callable, Iterator
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import TypeAlias

import pytest

from minit.base.errors import NetworkError
from minit.network.packetfilter.confinement import protect
from minit.network.packetfilter.forwarding import Target, forward_ports
from minit.network.packetfilter.tables import ports_table
from tests.support.effects import killed_child
from tests.support.frames import frame_socket, udp6
from tests.support.podports import Pods, make_pods, port
from tests.support.topology import (
    BRIDGE,
    GATEWAY,
    GATEWAY6,
    HOST,
    HOST6,
    IPV4,
    IPV6,
    OTHER_HOST,
    OTHER_HOST6,
    OUTSIDE,
    OUTSIDE6,
    POD,
    SECOND_POD,
    Family,
    Place,
    Topology,
    make_topology,
)

AddPod: TypeAlias = Callable[[Topology, str], Place]

BOTH_KINDS = pytest.mark.parametrize("add", [Topology.add_pod, Topology.add_bridged_pod], ids=["routed", "bridged"])
PROTOCOLS = pytest.mark.parametrize("protocol", ["tcp", "udp"])
FAMILIES = pytest.mark.parametrize("ip", [IPV4, IPV6], ids=["ipv4", "ipv6"])


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


def localnet_of(topology: Topology, interface: str) -> str:
    """Return whether packets to 127.0.0.1 may come by an interface of the host."""
    return topology.host.sysctl(f"conf/{interface}/route_localnet")


def loopback_route(topology: Topology, interface: str) -> bool:
    """Tell whether answers to ::1 may come by an interface of the host."""
    return f"local ::1 dev {interface} " in topology.host.run("ip -6 route show table local")


def ways(topology: Topology, interface: str) -> tuple[bool, bool]:
    """Return of each family whether an interface is a way from the host's loopback to a pod."""
    return localnet_of(topology, interface) == "1", loopback_route(topology, interface)


# Forwarding.


@FAMILIES
@PROTOCOLS
def test_a_port_from_everywhere(pods: Pods, topology: Topology, ip: Family, protocol: str) -> None:
    """It leads to the pod from outside, from the host by any of its addresses, and from a neighbour."""
    server = topology.add_pod(POD).listen(protocol, 80, ip.every)
    neighbour = topology.add_pod(SECOND_POD)
    pods.forward(port(protocol))
    assert topology.outside.send(protocol, ip.host, 8080, server) == (ip.outside, 0)
    assert topology.outside.send(protocol, ip.other_host, 8080, server) == (ip.outside, 0)
    assert topology.host.send(protocol, ip.host, 8080, server) == (ip.host, 0)
    assert topology.host.send(protocol, ip.gateway, 8080, server) == (ip.gateway, 0)
    assert topology.host.send(protocol, ip.loopback, 8080, server) == (ip.gateway, 0)
    if ip is IPV4:
        assert topology.host.send(protocol, "127.0.0.2", 8080, server) == (GATEWAY, 0)
    assert neighbour.send(protocol, ip.host, 8080, server) == (ip.second_pod, 0)
    assert topology.outside.send(protocol, ip.host, 8081, server) is None


@FAMILIES
@PROTOCOLS
def test_a_port_of_one_address(pods: Pods, topology: Topology, ip: Family, protocol: str) -> None:
    """Packets to another address of the host do not get to the pod."""
    server = topology.add_pod(POD).listen(protocol, 80, ip.every)
    pods.forward(port(protocol, host_ip=ip.other_host))
    assert topology.outside.send(protocol, ip.other_host, 8080, server) == (ip.outside, 0)
    # Of IPv6 the kernel takes the same address for the source.
    source = ip.host if ip is IPV4 else ip.other_host
    assert topology.host.send(protocol, ip.other_host, 8080, server) == (source, 0)
    for address in (ip.host, ip.loopback):
        assert topology.host.send(protocol, address, 8080, server) is None
    assert topology.outside.send(protocol, ip.host, 8080, server) is None
    assert localnet_of(topology, topology.link_of(POD)) == "0"


@FAMILIES
@PROTOCOLS
def test_a_port_of_the_loopback(pods: Pods, topology: Topology, ip: Family, protocol: str) -> None:
    """The host alone gets to it, not even a neighbour that addresses its packets to that address."""
    server = topology.add_pod(POD).listen(protocol, 80, ip.every)
    pods.forward(port(protocol, host_ip=ip.loopback))
    assert topology.host.send(protocol, ip.loopback, 8080, server) == (ip.gateway, 0)
    assert topology.host.send(protocol, ip.host, 8080, server) is None
    assert topology.outside.send(protocol, ip.host, 8080, server) is None
    if ip is IPV4:  # of IPv6 no such packet leaves a machine
        send_loopback_to(topology.outside, HOST)
        assert topology.outside.send(protocol, ip.loopback, 8080, server) is None


@FAMILIES
def test_the_same_port_by_both_protocols(pods: Pods, topology: Topology, ip: Family) -> None:
    """Each protocol of a port has a way of its own."""
    pod = topology.add_pod(POD)
    tcp, udp = pod.listen("tcp", 80, ip.every), pod.listen("udp", 53, ip.every)
    pods.forward(port("tcp", 53, 80), port("udp", 53, 53))
    assert topology.outside.send("tcp", ip.host, 53, tcp) == (ip.outside, 0)
    assert topology.outside.send("udp", ip.host, 53, udp) == (ip.outside, 0)


@FAMILIES
@PROTOCOLS
def test_a_pod_by_its_own_port(pods: Pods, topology: Topology, ip: Family, protocol: str) -> None:
    """A pod reaches itself by the host's address."""
    pod = topology.add_pod(POD)
    server = pod.listen(protocol, 80, ip.every)
    pods.forward(port(protocol))
    assert pod.send(protocol, ip.host, 8080, server) == (ip.gateway, 0)


@FAMILIES
@PROTOCOLS
def test_pods_on_a_bridge(pods: Pods, topology: Topology, ip: Family, protocol: str) -> None:
    """Neighbours reach a port by the host's address as well as directly, and so does the pod itself."""
    pod, neighbour = topology.add_bridged_pod(POD), topology.add_bridged_pod(SECOND_POD)
    topology.filter_bridged(False)
    server = pod.listen(protocol, 80, ip.every)
    pods.forward(port(protocol))
    assert topology.outside.send(protocol, ip.host, 8080, server) == (ip.outside, 0)
    assert topology.host.send(protocol, ip.loopback, 8080, server) == (ip.gateway, 0)
    assert neighbour.send(protocol, ip.host, 8080, server) == (ip.gateway, 0)
    assert neighbour.send(protocol, ip.pod, 80, server) == (ip.second_pod, 0)
    assert pod.send(protocol, ip.host, 8080, server) == (ip.gateway, 0)


@FAMILIES
@PROTOCOLS
def test_pods_on_a_filtered_bridge(pods: Pods, topology: Topology, ip: Family, protocol: str) -> None:
    """A bridge that redirects translates the answers too, and the pod's own port needs hairpin mode."""
    pod, neighbour = topology.add_bridged_pod(POD), topology.add_bridged_pod(SECOND_POD)
    topology.filter_bridged(True)
    topology.host.run(f"ip link set {topology.link_of(POD)} type bridge_slave hairpin on")
    server = pod.listen(protocol, 80, ip.every)
    pods.forward(port(protocol))
    assert topology.outside.send(protocol, ip.host, 8080, server) == (ip.outside, 0)
    assert neighbour.send(protocol, ip.host, 8080, server) == (ip.second_pod, 0)
    assert neighbour.send(protocol, ip.pod, 80, server) == (ip.second_pod, 0)
    assert pod.send(protocol, ip.host, 8080, server) == (ip.gateway, 0)


@FAMILIES
def test_two_pods(pods: Pods, topology: Topology, ip: Family) -> None:
    """Ports of two pods lead each to its own, also where only the address tells them apart."""
    servers = [topology.add_pod(address).listen("tcp", 80, ip.every) for address in (POD, SECOND_POD)]
    pods.forward(port(host_ip=ip.host), port(host_port=1))
    pods.forward(port(host_ip=ip.other_host), port(host_port=2), pod=pods.start(), address=SECOND_POD)
    assert topology.outside.send("tcp", ip.host, 8080, *servers) == (ip.outside, 0)
    assert topology.outside.send("tcp", ip.other_host, 8080, *servers) == (ip.outside, 1)
    assert topology.outside.send("tcp", ip.host, 1, *servers) == (ip.outside, 0)
    assert topology.host.send("tcp", ip.loopback, 2, *servers) == (ip.gateway, 1)


@FAMILIES
def test_without_a_default_route(pods: Pods, topology: Topology, ip: Family) -> None:
    """A pod of a restricted network answers the host, which comes from its own subnet, and nobody else."""
    server = topology.add_pod(POD, with_default_route=False).listen("udp", 80, ip.every)
    pods.forward(port("udp"))
    assert topology.host.send("udp", ip.loopback, 8080, server) == (ip.gateway, 0)
    assert topology.host.send("udp", ip.gateway, 8080, server) == (ip.gateway, 0)


@FAMILIES
def test_many_ports(pods: Pods, topology: Topology, ip: Family) -> None:
    """A thousand ports are forwarded, which is more than fits into a socket's usual buffer."""
    server = topology.add_pod(POD).listen("tcp", 80, ip.every)
    pods.forward(*(port(host_port=number) for number in range(1000, 2000)))
    assert topology.outside.send("tcp", ip.host, 1999, server) == (ip.outside, 0)


def test_what_is_written(pods: Pods, topology: Topology) -> None:
    """The tables say what they forward, and for which interface they opened a way from the loopback."""
    topology.add_pod(POD)
    table = pods.forward(port(), port("udp", 53, 5353, OTHER_HOST), port("udp", 54, 5354, OTHER_HOST6))
    link = topology.link_of(POD)
    assert written(topology, "ip", table) == table_text(
        IPV4,
        table,
        link,
        comment=f"route_localnet of {link}",
        ports=(
            f'tcp dport 8080 dnat to {POD}:80 comment "tcp 0.0.0.0:8080 to pod port 80"',
            f'ip daddr {OTHER_HOST} udp dport 53 dnat to {POD}:5353 comment "udp {OTHER_HOST}:53 to pod port 5353"',
        ),
    )
    pod = IPV6.pod
    comment = f"udp [{OTHER_HOST6}]:54 to pod port 5354"
    assert written(topology, "ip6", table) == table_text(
        IPV6,
        table,
        link,
        comment=f"route to ::1 by {link}",
        ports=(
            f'tcp dport 8080 dnat to [{pod}]:80 comment "tcp [::]:8080 to pod port 80"',
            f'ip6 daddr {OTHER_HOST6} udp dport 54 dnat to [{pod}]:5354 comment "{comment}"',
        ),
    )


def written(topology: Topology, family: str, table: str) -> list[str]:
    """Return the lines of a table."""
    text = topology.host.run(f"nft list table {family} {table}")
    # The name is not known to every nft in this place.
    return [line.strip() for line in text.replace("priority -100;", "priority dstnat;").splitlines() if line.strip()]


ANSWERS = (
    "chain answers {",
    "type filter hook input priority raw; policy accept;",
    'iifname != "lo" ip daddr 127.0.0.0/8 ct direction reply return',
    'iifname != "lo" ip daddr 127.0.0.0/8 drop',
    "}",
)


def table_text(ip: Family, table: str, link: str, comment: str, ports: tuple[str, ...]) -> list[str]:
    """Return the lines that a table of forwarded ports has."""
    name, loopback = {IPV4: ("ip", "127.0.0.0/8"), IPV6: ("ip6", "::1")}[ip]
    return [
        f"table {name} {table} {{",
        f'comment "{comment}"',
        "chain ports {",
        *ports,
        "}",
        "chain prerouting {",
        "type nat hook prerouting priority dstnat; policy accept;",
        f"{name} daddr != {loopback} fib daddr type local jump ports",
        "}",
        "chain output {",
        "type nat hook output priority dstnat; policy accept;",
        "fib daddr type local jump ports",
        "}",
        "chain postrouting {",
        "type nat hook postrouting priority srcnat; policy accept;",
        f"{name} saddr {loopback} {name} daddr {ip.pod} masquerade",
        f"{name} saddr {ip.pod} {name} daddr {ip.pod} masquerade",
        f'iifname "{link}" oifname "{link}" {name} daddr {ip.pod} ct status dnat masquerade',
        "}",
        "chain guard {",
        "type filter hook prerouting priority raw; policy accept;",
        f'iifname != "lo" {name} daddr {loopback} drop',
        f'iifname != "lo" {name} saddr {loopback} drop',
        *([f'iifname "{link}" exthdr rt exists drop'] if ip is IPV6 else []),
        "}",
        *(ANSWERS if ip is IPV4 else []),
        "}",
    ]


@FAMILIES
@PROTOCOLS
@pytest.mark.parametrize(("host_port", "pod_port"), [(8000, 8000), (8000, 9000)])
def test_a_range(pods: Pods, topology: Topology, ip: Family, protocol: str, host_port: int, pod_port: int) -> None:
    """Each port of it leads to its own of the pod, the first to the first and the last to the last."""
    pod = topology.add_pod(POD)
    servers = [pod.listen(protocol, pod_port + offset, ip.every) for offset in (0, 7, 9, 10)]
    pods.forward(port(protocol, host_port, pod_port, count=10))
    assert topology.outside.send(protocol, ip.host, host_port, *servers) == (ip.outside, 0)
    assert topology.host.send(protocol, ip.loopback, host_port + 7, *servers) == (ip.gateway, 1)
    assert topology.outside.send(protocol, ip.other_host, host_port + 9, *servers) == (ip.outside, 2)
    for beyond in (host_port - 1, host_port + 10):
        assert topology.outside.send(protocol, ip.host, beyond, *servers) is None


@pytest.mark.parametrize("pod_port", [20000, 30000])
def test_a_long_range(pods: Pods, topology: Topology, pod_port: int) -> None:
    """Ten thousand ports are forwarded, whatever their numbers in the pod, and are known to be taken."""
    server = topology.add_pod(POD).listen("tcp", pod_port + 9999)
    other = pods.start()
    table = pods.forward(port(host_port=20000, pod_port=pod_port, count=10000), pod=other)
    assert topology.outside.send("tcp", HOST, 29999, server) == (OUTSIDE, 0)
    end = f" is in use: forwarded to pod {other} (nftables table {table})"
    assert pods.refusal(port(host_port=29999)) == f"tcp port 29999 of every address{end}"
    pods.forward(port(host_port=19990, count=10), port(host_port=30000, count=10))
    message = pods.refusal(port(host_port=19990, count=11), pod=pods.start())
    assert message.startswith("tcp ports 19990-20000 of every address is in use")
    pods.delete(table)


@pytest.mark.parametrize(("wanted", "other"), [(IPV4, IPV6), (IPV6, IPV4)])
@PROTOCOLS
def test_every_address_of_one_family(
    pods: Pods, topology: Topology, protocol: str, wanted: Family, other: Family
) -> None:
    """A port of 0.0.0.0 is one of IPv4 alone, one of :: of IPv6, and another pod may have the other."""
    servers = [topology.add_pod(address).listen(protocol, 80, wanted.every) for address in (POD, SECOND_POD)]
    pods.forward(port(protocol, host_ip=wanted.every))
    pods.forward(port(protocol, host_ip=other.every), pod=pods.start(), address=SECOND_POD)
    assert topology.outside.send(protocol, wanted.host, 8080, *servers) == (wanted.outside, 0)
    assert topology.host.send(protocol, wanted.loopback, 8080, *servers) == (wanted.gateway, 0)
    assert pods.refusal(port(protocol, host_ip=wanted.host), pod=pods.start())


@FAMILIES
def test_a_pod_of_one_family(pods: Pods, topology: Topology, ip: Family) -> None:
    """Its ports are of that family, and nothing of the other is written or opened."""
    server = topology.add_pod(POD).listen("tcp", 80, ip.every)
    table = ports_table(pods.own)
    target = Target(address=ip_address(ip.pod), gateway=ip_address(ip.gateway))
    topology.host.do(lambda: forward_ports(table, [port()], [target]))
    assert topology.outside.send("tcp", ip.host, 8080, server) == (ip.outside, 0)
    assert topology.host.send("tcp", ip.loopback, 8080, server) == (ip.gateway, 0)
    assert ways(topology, topology.link_of(POD)) == (ip is IPV4, ip is IPV6)
    assert topology.rules().count("table ") == 1
    pods.delete(table)
    assert ways(topology, topology.link_of(POD)) == (False, False)


@FAMILIES
def test_a_gateway_elsewhere(pods: Pods, topology: Topology, ip: Family) -> None:
    """Ports cannot be forwarded to a pod whose answers do not come by this host."""
    topology.add_pod(POD)
    before = topology.rules()
    target = Target(address=ip_address(ip.pod), gateway=ip_address(ip.outside))
    with pytest.raises(NetworkError) as caught:
        topology.host.do(lambda: forward_ports(ports_table(pods.own), [port()], [target]))
    assert str(caught.value).startswith(f'no interface found with IP "{ip.outside}"')
    assert topology.rules() == before


# The guard of the loopback, and the way from it.


def send_loopback_to(place: Place, gateway: str) -> None:
    """Let packets to 127.0.0.1 leave a namespace for its gateway."""
    place.run("ip address flush dev lo", "ip link set lo up")
    place.sysctl("conf/all/route_localnet", "1")
    place.run("ip route flush table local dev lo", f"ip route add 127.0.0.1 via {gateway}")


@PROTOCOLS
@BOTH_KINDS
def test_the_guard(pods: Pods, topology: Topology, protocol: str, add: AddPod) -> None:
    """A pod does not reach what the host keeps to 127.0.0.1, which it would without the guard."""
    pod = add(topology, POD)
    private = topology.host.listen(protocol, 22, "127.0.0.1")
    table = pods.forward(port(protocol))
    link = BRIDGE if add is Topology.add_bridged_pod else topology.link_of(POD)
    assert localnet_of(topology, link) == "1"
    send_loopback_to(pod, GATEWAY)
    assert pod.send(protocol, "127.0.0.1", 22, private) is None
    for chain in ("guard", "answers"):
        topology.host.run(f"nft flush chain {table} {chain}")
    assert pod.send(protocol, "127.0.0.1", 22, private) == (POD, 0)


@PROTOCOLS
def test_the_guard_of_other_links(pods: Pods, topology: Topology, protocol: str) -> None:
    """A neighbour of the host does not get there either where somebody made that possible."""
    topology.add_pod(POD)
    private = topology.host.listen(protocol, 22, "127.0.0.1")
    topology.host.sysctl("conf/all/route_localnet", "1")
    send_loopback_to(topology.outside, HOST)
    assert topology.outside.send(protocol, "127.0.0.1", 22, private) == (OUTSIDE, 0)
    table = pods.forward(port(protocol))
    assert topology.outside.send(protocol, "127.0.0.1", 22, private) is None
    pods.delete(table)
    assert topology.outside.send(protocol, "127.0.0.1", 22, private) == (OUTSIDE, 0)


@BOTH_KINDS
@pytest.mark.parametrize("who", ["pod", "outside"])
def test_the_loopback_of_ipv6(pods: Pods, topology: Topology, add: AddPod, who: str) -> None:
    """Nobody else reaches what the host keeps to ::1, or the port of a pod there, without the guard neither."""
    pod = add(topology, POD)
    # Where a bridge filters, answers to ::1 are dropped by the kernel, which sees their address too early.
    topology.filter_bridged(False)
    private, server = topology.host.listen("udp", 22, "::1"), pod.listen("udp", 80, "::")
    table = pods.forward(port("udp"))
    assert topology.host.send("udp", "::1", 8080, server) == (GATEWAY6, 0)
    bridged = add is Topology.add_bridged_pod
    sender, source, by = {
        "pod": (pod, IPV6.pod, BRIDGE if bridged else topology.link_of(POD)),
        "outside": (topology.outside, OUTSIDE6, "eth0"),
    }[who]
    mac, to = sender.mac("eth0"), topology.host.mac(by)
    for number in (22, 8080):
        for guarded in (True, False):
            if not guarded:
                topology.host.run(f"nft flush chain ip6 {table} guard")
            frames = [udp6(source, address, mac, to, ports=(4000, number)) for address in ("::1", HOST6, GATEWAY6)]
            with sender.do(lambda: frame_socket("eth0")) as sending:
                sending.send(frames[0])
                # What is forwarded arrives, and after what was sent before it.
                if number == 8080:
                    sending.send(frames[1])
            if number == 8080:
                server.settimeout(60)
                assert server.recvfrom(100)[0] == b"spoofed?"
                server.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    server.recv(100)
            else:
                private.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    private.recv(100)


def test_the_way_goes_with_the_table(pods: Pods, topology: Topology) -> None:
    """It is open as long as the ports are forwarded and the guard is there."""
    topology.add_pod(POD)
    link = topology.link_of(POD)
    table = pods.forward(port())
    assert ways(topology, link) == (True, True)
    pods.delete(table)
    assert ways(topology, link) == (False, False)


@FAMILIES
def test_the_way_of_a_bridge(pods: Pods, topology: Topology, ip: Family) -> None:
    """Pods that share an interface share the way, and the last one closes it."""
    topology.add_bridged_pod(POD)
    topology.filter_bridged(False)
    server = topology.add_bridged_pod(SECOND_POD).listen("tcp", 80, ip.every)
    first = pods.forward(port())
    second = pods.forward(port(host_port=8081), pod=pods.start(), address=SECOND_POD)
    pods.delete(first)
    assert ways(topology, BRIDGE) == (True, True)
    assert topology.host.send("tcp", ip.loopback, 8081, server) == (ip.gateway, 0)
    pods.delete(second)
    assert ways(topology, BRIDGE) == (False, False)


def test_route_localnet_of_somebody_else(pods: Pods, topology: Topology) -> None:
    """A setting that was on before stays on."""
    topology.add_bridged_pod(POD)
    topology.host.sysctl(f"conf/{BRIDGE}/route_localnet", "1")
    pods.delete(pods.forward(port()))
    assert localnet_of(topology, BRIDGE) == "1"


def test_an_interface_that_is_gone(pods: Pods, topology: Topology) -> None:
    """The tables are deleted all the same."""
    topology.add_pod(POD)
    table = pods.forward(port())
    topology.host.run(f"ip link delete {topology.link_of(POD)}")
    pods.delete(table)
    assert topology.rules() == ""


# Ports that are taken.


def test_a_port_of_another_pod(pods: Pods, topology: Topology) -> None:
    """A port that a running pod has is refused, and the pod is named."""
    topology.add_pod(POD)
    other = pods.start()
    table = pods.forward(port(), port("udp", 53, 53, HOST), pod=other)
    end = f" is in use: forwarded to pod {other} (nftables table {table})"
    assert pods.refusal(port()) == f"tcp port 8080 of every address{end}"
    assert pods.refusal(port(host_port=1), port(host_ip=HOST)) == f"tcp port 8080 of {HOST}{end}"
    assert pods.refusal(port("udp", 53, 1)) == f"udp port 53 of every address{end}"
    pods.forward(port("udp"), port("tcp", 53), port("udp", 53, 1, OTHER_HOST))


@FAMILIES
def test_a_port_of_a_pod_that_has_ended(pods: Pods, topology: Topology, ip: Family) -> None:
    """A pod that waits for gc, in whichever directory, gives its ports up."""
    topology.add_pod(POD)
    server = topology.add_pod(SECOND_POD).listen("tcp", 80, ip.every)
    first, second = pods.start(), pods.start()
    tables = [pods.forward(port(host_port=number), pod=pod) for number, pod in ((1, first), (2, second))]
    pods.end(first)
    pods.end(second)
    os.rename(pods.directory / "run" / second, pods.directory / "exited-garbage" / second)
    own = pods.forward(port(host_port=1), port(host_port=2), address=SECOND_POD)
    assert topology.outside.send("tcp", ip.host, 1, server) == (ip.outside, 0)
    assert topology.outside.send("tcp", ip.host, 2, server) == (ip.outside, 0)
    assert not [table for table in tables if table in topology.rules()]
    assert own in topology.rules()


def test_a_port_of_a_pod_from_elsewhere(pods: Pods, topology: Topology) -> None:
    """A pod of another data directory may be running."""
    topology.add_pod(POD)
    other = str(uuid.uuid4())
    pods.forward(port(), pod=other)
    assert other in pods.refusal(port())


@FAMILIES
def test_its_own_ports(pods: Pods, topology: Topology, ip: Family) -> None:
    """A table is written anew where one was left."""
    server = topology.add_pod(POD).listen("tcp", 80, ip.every)
    pods.forward(port(), port(host_port=1))
    pods.forward(port(host_port=1), port(host_port=2))
    assert topology.outside.send("tcp", ip.host, 1, server) == (ip.outside, 0)
    assert topology.outside.send("tcp", ip.host, 2, server) == (ip.outside, 0)
    assert topology.outside.send("tcp", ip.host, 8080, server) is None


@FAMILIES
@pytest.mark.parametrize("is_of_one_address", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_a_client_that_goes_on_sending(
    pods: Pods, topology: Topology, ip: Family, is_of_one_address: bool, count: int
) -> None:
    """Its datagrams follow the port, to nobody, to a pod and to the next one, and what else it says goes on."""
    wanted = port("udp", host_ip=ip.host if is_of_one_address else None, count=count)
    servers = [topology.add_pod(address).listen("udp", 80, ip.every) for address in (POD, SECOND_POD)]
    # The kernel keeps track of connections as long as anybody's rules ask for it.
    topology.host.do(lambda: protect("minit-x-eth0", [ip_interface(f"{ip.second_pod}/{ip.prefix}")]))
    family = socket.AF_INET if ip is IPV4 else socket.AF_INET6
    with topology.outside.do(lambda: socket.socket(family, socket.SOCK_DGRAM)) as client:
        client.bind((ip.outside, 4444))
        assert exchange(client, ip, *servers) is None
        first = pods.forward(wanted)
        assert exchange(client, ip, *servers) == 0
        pods.delete(first)
        assert exchange(client, ip, *servers) is None
        pods.forward(wanted, pod=pods.start(), address=SECOND_POD)
        assert exchange(client, ip, *servers) == 1


def exchange(client: socket.socket, ip: Family, *servers: socket.socket) -> int | None:
    """Send a datagram to the port and return the number of the server that got it."""
    client.sendto(b"question", (ip.host, 8080))
    reached, _, _ = select.select(servers, [], [], 0.2)
    for server in reached:
        data, peer = server.recvfrom(100)
        assert (data, peer[:2]) == (b"question", (ip.outside, 4444))
    return servers.index(reached[0]) if reached else None


# The family of a socket that takes IPv6 alone, which is not the number of one.
IPV6_ONLY = -1

# Of each listener what of a port it takes: every address of IPv4, one of them, and likewise of IPv6.
LISTENERS = {
    "any": (socket.AF_INET, "0.0.0.0", "0.0.0.0:8080", "AB.."),
    "loopback": (socket.AF_INET, "127.0.0.1", "127.0.0.1:8080", "A..."),
    "address": (socket.AF_INET, HOST, f"{HOST}:8080", "AB.."),
    "both": (socket.AF_INET6, "::", "[::]:8080", "ABCD"),
    "mapped": (socket.AF_INET6, f"::ffff:{HOST}", f"{HOST}:8080", "AB.."),
    "any of IPv6": (IPV6_ONLY, "::", "[::]:8080", "..CD"),
    "loopback of IPv6": (socket.AF_INET6, "::1", "[::1]:8080", "..C."),
    "address of IPv6": (socket.AF_INET6, HOST6, f"[{HOST6}]:8080", "..CD"),
}


@PROTOCOLS
@pytest.mark.parametrize("listener", LISTENERS)
def test_a_port_that_a_program_has(pods: Pods, topology: Topology, protocol: str, listener: str) -> None:
    """Programs that listen on the host are found, with their addresses, if they take what the pod is to get."""
    topology.add_pod(POD)
    family, address, shown, taken = LISTENERS[listener]
    kind = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}[protocol]
    is_ipv6_only = family == IPV6_ONLY
    with topology.host.do(lambda: socket.socket(socket.AF_INET6 if is_ipv6_only else family, kind)) as server:
        if is_ipv6_only:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        server.bind((address, 8080))
        if protocol == "tcp":
            server.listen()
        message = f"is in use: a program on the host listens at {shown}"
        for letter, host_ip, name in (
            ("A", "0.0.0.0", "every address"),
            ("B", HOST, HOST),
            ("C", "::", "every IPv6 address"),
            ("D", HOST6, HOST6),
        ):
            for wanted in (port(protocol, host_ip=host_ip), port(protocol, 8075, host_ip=host_ip, count=10)):
                if letter in taken:
                    numbers = "port 8080" if wanted.count == 1 else "ports 8075-8084"
                    assert pods.refusal(wanted) == f"{protocol} {numbers} of {name} {message}"
                else:
                    pods.delete(pods.forward(wanted))
        assert pods.refusal(port(protocol)).endswith(message)
        if listener not in ("any", "both", "any of IPv6"):
            pods.forward(port(protocol, host_ip=OTHER_HOST), port(protocol, host_ip=OTHER_HOST6))
        # Addresses which are not the host's, or not yet.
        if listener == "both":
            pods.forward(port(protocol, host_ip="203.0.113.1"))
        pods.forward(port(protocol, 8081), port({"tcp": "udp", "udp": "tcp"}[protocol]))


@PROTOCOLS
def test_a_port_of_a_connection(pods: Pods, topology: Topology, protocol: str) -> None:
    """A connection that happens to have the number does not hold the port."""
    topology.add_pod(POD)
    kind = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}[protocol]
    server = topology.outside.listen(protocol, 7)
    with server, topology.host.do(lambda: socket.socket(socket.AF_INET, kind)) as client:
        client.bind((HOST, 8080))
        client.connect((OUTSIDE, 7))
        pods.forward(port(protocol))


def test_two_at_once(pods: Pods, topology: Topology) -> None:
    """Of pods that want the same port at the same moment one gets it."""
    topology.add_pod(POD)
    names = [pods.start() for _ in range(4)]
    for _ in range(5):
        outcomes = [race(pods, name) for name in names]
        results = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in outcomes]
        assert sorted(results) == [0, 1, 1, 1]
        for name in names:
            pods.delete(ports_table(name))
    assert topology.rules() == ""


def race(pods: Pods, name: str) -> int:
    """Return a child that forwards a port and ends with 1 if it is taken."""
    child = os.fork()
    if child:
        return child
    status = 2
    try:
        pods.forward(port(), pod=name)
        status = 0
    except NetworkError as error:
        status = 1 if "is in use" in str(error) else 3
    finally:
        os._exit(status)


@PROTOCOLS
def test_killed_at_any_step(pods: Pods, topology: Topology, protocol: str) -> None:
    """Whenever forwarding is killed, and deleting is killed after it, deleting leaves nothing; nor is any lock left."""
    topology.add_pod(POD)
    link = topology.link_of(POD)
    table = ports_table(pods.own)
    step = 1
    while killed_child(lambda: pods.forward(port(protocol)), step):
        # What makes the pod's packets to 127.0.0.1 possible is never there without the guard.
        assert ways(topology, link) == (False, False) or topology.rules().count("chain guard") == 2
        pods.delete(table)
        assert (topology.rules(), ways(topology, link)) == ("", (False, False))
        step += 1
    assert step > 5
    step = 1
    while killed_child(lambda: pods.delete(table), step):
        assert ways(topology, link) == (False, False) or topology.rules().count("chain guard") == 2
        pods.delete(table)
        assert (topology.rules(), ways(topology, link)) == ("", (False, False))
        pods.forward(port(protocol))
        step += 1
    assert step > 3
    assert (topology.rules(), ways(topology, link)) == ("", (False, False))
