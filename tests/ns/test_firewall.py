"""minit.network.firewall: what packets do between the outside, a host and its pods, and what is left of its tables."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import uuid
from collections.abc import Iterator
from ipaddress import IPv4Interface
from pathlib import Path

import pytest

from minit import syscalls
from minit.errors import NetworkError
from minit.network.firewall import (
    delete_table,
    forward_ports,
    ports_table,
    protect,
    refuse_taken_ports,
    table_name,
)
from minit.plan.networks.networkplan import ForwardedPort
from tests.support.effects import killed_child
from tests.support.topology import (
    BRIDGE,
    GATEWAY,
    HOST,
    OTHER_HOST,
    OUTSIDE,
    SUBNET,
    Place,
    Topology,
    make_topology,
)

POD = "10.1.0.2"
SECOND_POD = "10.1.0.3"
PROTOCOLS = pytest.mark.parametrize("protocol", ["tcp", "udp"])

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


class Pods:
    """Pod directories, of which the working directory is one."""

    def __init__(self, topology: Topology, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topology = topology
        self.directory = directory
        self.locks: dict[str, int] = {}
        for name in ("run", "exited-garbage"):
            (directory / name).mkdir()
        self.own = self.start()
        monkeypatch.chdir(directory / "run" / self.own)

    def start(self) -> str:
        """Return the UUID of a new pod whose directory is locked."""
        name = str(uuid.uuid4())
        (self.directory / "run" / name).mkdir()
        self.locks[name] = os.open(self.directory / "run" / name, os.O_RDONLY)
        fcntl.flock(self.locks[name], fcntl.LOCK_EX)
        return name

    def end(self, name: str) -> None:
        """Let a pod end."""
        os.close(self.locks.pop(name))

    def forward(self, *ports: ForwardedPort, pod: str | None = None, address: str = POD) -> str:
        """Forward ports to a pod and return the table's name."""
        table = ports_table(pod or self.own)
        self.topology.host.do(lambda: forward_ports(table, ports, address, GATEWAY))
        return table

    def refusal(self, *ports: ForwardedPort, pod: str | None = None) -> str:
        """Return why ports cannot be forwarded, which changes nothing."""
        before = self.topology.rules()
        table = ports_table(pod or self.own)
        with pytest.raises(NetworkError) as early:
            self.topology.host.do(lambda: refuse_taken_ports(ports, table))
        with pytest.raises(NetworkError) as late:
            self.forward(*ports, pod=pod)
        assert str(early.value) == str(late.value)
        assert self.topology.rules() == before
        return str(late.value)

    def delete(self, table: str) -> None:
        """Delete a table of the host."""
        self.topology.host.do(lambda: delete_table(table))


@pytest.fixture
def pods(topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pods]:
    """Pod directories, the working directory being that of a pod which runs."""
    pods = Pods(topology, tmp_path, monkeypatch)
    yield pods
    for name in list(pods.locks):
        pods.end(name)


def port(protocol: str = "tcp", host_port: int = 8080, pod_port: int = 80, host_ip: str | None = None) -> ForwardedPort:
    """Return a forwarded port."""
    return ForwardedPort(protocol=protocol, host_port=host_port, pod_port=pod_port, host_ip=host_ip)


def localnet_of(topology: Topology, interface: str) -> str:
    """Return whether packets to 127.0.0.1 may come by an interface of the host."""
    return topology.host.sysctl(f"conf/{interface}/route_localnet")


# Forwarding.


@PROTOCOLS
def test_a_port_from_everywhere(pods: Pods, topology: Topology, protocol: str) -> None:
    """It leads to the pod from outside, from the host by any of its addresses, and from a neighbour."""
    server = topology.add_pod(POD).listen(protocol, 80)
    neighbour = topology.add_pod(SECOND_POD)
    pods.forward(port(protocol))
    assert topology.outside.send(protocol, HOST, 8080, server) == (OUTSIDE, 0)
    assert topology.outside.send(protocol, OTHER_HOST, 8080, server) == (OUTSIDE, 0)
    assert topology.host.send(protocol, HOST, 8080, server) == (HOST, 0)
    assert topology.host.send(protocol, GATEWAY, 8080, server) == (GATEWAY, 0)
    assert topology.host.send(protocol, "127.0.0.1", 8080, server) == (GATEWAY, 0)
    assert topology.host.send(protocol, "127.0.0.2", 8080, server) == (GATEWAY, 0)
    assert neighbour.send(protocol, HOST, 8080, server) == (SECOND_POD, 0)
    assert topology.outside.send(protocol, HOST, 8081, server) is None


@PROTOCOLS
def test_a_port_of_one_address(pods: Pods, topology: Topology, protocol: str) -> None:
    """Packets to another address of the host do not get to the pod."""
    server = topology.add_pod(POD).listen(protocol, 80)
    pods.forward(port(protocol, host_ip=OTHER_HOST))
    assert topology.outside.send(protocol, OTHER_HOST, 8080, server) == (OUTSIDE, 0)
    assert topology.host.send(protocol, OTHER_HOST, 8080, server) == (HOST, 0)
    for address in (HOST, "127.0.0.1"):
        assert topology.host.send(protocol, address, 8080, server) is None
    assert topology.outside.send(protocol, HOST, 8080, server) is None
    assert localnet_of(topology, topology.link_of(POD)) == "0"


@PROTOCOLS
def test_a_port_of_127_0_0_1(pods: Pods, topology: Topology, protocol: str) -> None:
    """The host alone gets to it, not even a neighbour that addresses its packets to 127.0.0.1."""
    server = topology.add_pod(POD).listen(protocol, 80)
    pods.forward(port(protocol, host_ip="127.0.0.1"))
    assert topology.host.send(protocol, "127.0.0.1", 8080, server) == (GATEWAY, 0)
    assert topology.host.send(protocol, HOST, 8080, server) is None
    assert topology.outside.send(protocol, HOST, 8080, server) is None
    send_loopback_to(topology.outside, HOST)
    assert topology.outside.send(protocol, "127.0.0.1", 8080, server) is None


def test_the_same_port_by_both_protocols(pods: Pods, topology: Topology) -> None:
    """Each protocol of a port has a way of its own."""
    pod = topology.add_pod(POD)
    tcp, udp = pod.listen("tcp", 80), pod.listen("udp", 53)
    pods.forward(port("tcp", 53, 80), port("udp", 53, 53))
    assert topology.outside.send("tcp", HOST, 53, tcp) == (OUTSIDE, 0)
    assert topology.outside.send("udp", HOST, 53, udp) == (OUTSIDE, 0)


@PROTOCOLS
def test_a_pod_by_its_own_port(pods: Pods, topology: Topology, protocol: str) -> None:
    """A pod reaches itself by the host's address."""
    pod = topology.add_pod(POD)
    server = pod.listen(protocol, 80)
    pods.forward(port(protocol))
    assert pod.send(protocol, HOST, 8080, server) == (GATEWAY, 0)


@PROTOCOLS
def test_pods_on_a_bridge(pods: Pods, topology: Topology, protocol: str) -> None:
    """Neighbours reach a port by the host's address as well as directly, and so does the pod itself."""
    pod, neighbour = topology.add_bridged_pod(POD), topology.add_bridged_pod(SECOND_POD)
    topology.filter_bridged(False)
    server = pod.listen(protocol, 80)
    pods.forward(port(protocol))
    assert topology.outside.send(protocol, HOST, 8080, server) == (OUTSIDE, 0)
    assert topology.host.send(protocol, "127.0.0.1", 8080, server) == (GATEWAY, 0)
    assert neighbour.send(protocol, HOST, 8080, server) == (GATEWAY, 0)
    assert neighbour.send(protocol, POD, 80, server) == (SECOND_POD, 0)
    assert pod.send(protocol, HOST, 8080, server) == (GATEWAY, 0)


@PROTOCOLS
def test_pods_on_a_filtered_bridge(pods: Pods, topology: Topology, protocol: str) -> None:
    """A bridge that redirects translates the answers too, and the pod's own port needs hairpin mode."""
    pod, neighbour = topology.add_bridged_pod(POD), topology.add_bridged_pod(SECOND_POD)
    topology.filter_bridged(True)
    topology.host.run(f"ip link set {topology.link_of(POD)} type bridge_slave hairpin on")
    server = pod.listen(protocol, 80)
    pods.forward(port(protocol))
    assert topology.outside.send(protocol, HOST, 8080, server) == (OUTSIDE, 0)
    assert neighbour.send(protocol, HOST, 8080, server) == (SECOND_POD, 0)
    assert neighbour.send(protocol, POD, 80, server) == (SECOND_POD, 0)
    assert pod.send(protocol, HOST, 8080, server) == (GATEWAY, 0)


def test_two_pods(pods: Pods, topology: Topology) -> None:
    """Ports of two pods lead each to its own, also where only the address tells them apart."""
    servers = [topology.add_pod(address).listen("tcp", 80) for address in (POD, SECOND_POD)]
    pods.forward(port(host_ip=HOST), port(host_port=1))
    pods.forward(port(host_ip=OTHER_HOST), port(host_port=2), pod=pods.start(), address=SECOND_POD)
    assert topology.outside.send("tcp", HOST, 8080, *servers) == (OUTSIDE, 0)
    assert topology.outside.send("tcp", OTHER_HOST, 8080, *servers) == (OUTSIDE, 1)
    assert topology.outside.send("tcp", HOST, 1, *servers) == (OUTSIDE, 0)
    assert topology.host.send("tcp", "127.0.0.1", 2, *servers) == (GATEWAY, 1)


def test_without_a_default_route(pods: Pods, topology: Topology) -> None:
    """A pod of a restricted network answers the host, which comes from its own subnet, and nobody else."""
    server = topology.add_pod(POD, with_default_route=False).listen("udp", 80)
    pods.forward(port("udp"))
    assert topology.host.send("udp", "127.0.0.1", 8080, server) == (GATEWAY, 0)
    assert topology.host.send("udp", GATEWAY, 8080, server) == (GATEWAY, 0)


def test_many_ports(pods: Pods, topology: Topology) -> None:
    """A thousand ports are forwarded, which is more than fits into a socket's usual buffer."""
    server = topology.add_pod(POD).listen("tcp", 80)
    pods.forward(*(port(host_port=number) for number in range(1000, 2000)))
    assert topology.outside.send("tcp", HOST, 1999, server) == (OUTSIDE, 0)


def test_what_is_written(pods: Pods, topology: Topology) -> None:
    """The table says what it forwards, and for which interface it switched route_localnet on."""
    topology.add_pod(POD)
    table = pods.forward(port(), port("udp", 53, 5353, OTHER_HOST))
    link = topology.link_of(POD)
    written = topology.host.run(f"nft list table {table}")
    # The name is not known to every nft in this place.
    assert written.replace("priority -100;", "priority dstnat;").split("\n") == [
        f"table ip {table} {{",
        f'\tcomment "route_localnet of {link}"',
        "\tchain ports {",
        f'\t\ttcp dport 8080 dnat to {POD}:80 comment "tcp 0.0.0.0:8080 to pod port 80"',
        f'\t\tip daddr {OTHER_HOST} udp dport 53 dnat to {POD}:5353 comment "udp {OTHER_HOST}:53 to pod port 5353"',
        "\t}",
        "",
        "\tchain prerouting {",
        "\t\ttype nat hook prerouting priority dstnat; policy accept;",
        "\t\tip daddr != 127.0.0.0/8 fib daddr type local jump ports",
        "\t}",
        "",
        "\tchain output {",
        "\t\ttype nat hook output priority dstnat; policy accept;",
        "\t\tfib daddr type local jump ports",
        "\t}",
        "",
        "\tchain postrouting {",
        "\t\ttype nat hook postrouting priority srcnat; policy accept;",
        f"\t\tip saddr 127.0.0.0/8 ip daddr {POD} masquerade",
        f"\t\tip saddr {POD} ip daddr {POD} masquerade",
        f'\t\tiifname "{link}" oifname "{link}" ip daddr {POD} ct status dnat masquerade',
        "\t}",
        "",
        "\tchain guard {",
        "\t\ttype filter hook prerouting priority raw; policy accept;",
        f'\t\tiifname "{link}" ip daddr 127.0.0.0/8 drop',
        f'\t\tiifname "{link}" ip saddr 127.0.0.0/8 drop',
        "\t}",
        "}",
        "",
    ]


def test_a_gateway_elsewhere(pods: Pods, topology: Topology) -> None:
    """Ports cannot be forwarded to a pod whose answers do not come by this host."""
    topology.add_pod(POD)
    before = topology.rules()
    with pytest.raises(NetworkError) as caught:
        topology.host.do(lambda: forward_ports(ports_table(pods.own), [port()], POD, OUTSIDE))
    assert str(caught.value).startswith(f'no interface found with IP "{OUTSIDE}"')
    assert topology.rules() == before


# The guard of 127.0.0.1.


def send_loopback_to(place: Place, gateway: str) -> None:
    """Let packets to 127.0.0.1 leave a namespace for its gateway."""
    place.run("ip address flush dev lo", "ip link set lo up")
    place.sysctl("conf/all/route_localnet", "1")
    place.run("ip route flush table local dev lo", f"ip route add 127.0.0.1 via {gateway}")


@PROTOCOLS
def test_the_guard(pods: Pods, topology: Topology, protocol: str) -> None:
    """A pod does not reach what the host keeps to 127.0.0.1, which it would without the guard."""
    pod = topology.add_pod(POD)
    private = topology.host.listen(protocol, 22, "127.0.0.1")
    table = pods.forward(port(protocol))
    assert localnet_of(topology, topology.link_of(POD)) == "1"
    send_loopback_to(pod, GATEWAY)
    assert pod.send(protocol, "127.0.0.1", 22, private) is None
    topology.host.run(f"nft flush chain {table} guard")
    assert pod.send(protocol, "127.0.0.1", 22, private) == (POD, 0)


def test_route_localnet_goes_with_the_table(pods: Pods, topology: Topology) -> None:
    """It is on as long as the ports are forwarded and the guard is there."""
    topology.add_pod(POD)
    link = topology.link_of(POD)
    table = pods.forward(port())
    assert localnet_of(topology, link) == "1"
    pods.delete(table)
    assert localnet_of(topology, link) == "0"


def test_route_localnet_of_a_bridge(pods: Pods, topology: Topology) -> None:
    """Pods that share an interface share the setting, and the last one switches it off."""
    topology.add_bridged_pod(POD)
    server = topology.add_bridged_pod(SECOND_POD).listen("tcp", 80)
    first = pods.forward(port())
    second = pods.forward(port(host_port=8081), pod=pods.start(), address=SECOND_POD)
    pods.delete(first)
    assert localnet_of(topology, BRIDGE) == "1"
    assert topology.host.send("tcp", "127.0.0.1", 8081, server) == (GATEWAY, 0)
    pods.delete(second)
    assert localnet_of(topology, BRIDGE) == "0"


def test_route_localnet_of_somebody_else(pods: Pods, topology: Topology) -> None:
    """A setting that was on before stays on."""
    topology.add_bridged_pod(POD)
    topology.host.sysctl(f"conf/{BRIDGE}/route_localnet", "1")
    pods.delete(pods.forward(port()))
    assert localnet_of(topology, BRIDGE) == "1"


def test_an_interface_that_is_gone(pods: Pods, topology: Topology) -> None:
    """The table is deleted all the same."""
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


def test_a_port_of_a_pod_that_has_ended(pods: Pods, topology: Topology) -> None:
    """A pod that waits for gc, in whichever directory, gives its ports up."""
    topology.add_pod(POD)
    server = topology.add_pod(SECOND_POD).listen("tcp", 80)
    first, second = pods.start(), pods.start()
    tables = [pods.forward(port(host_port=number), pod=pod) for number, pod in ((1, first), (2, second))]
    pods.end(first)
    pods.end(second)
    os.rename(pods.directory / "run" / second, pods.directory / "exited-garbage" / second)
    own = pods.forward(port(host_port=1), port(host_port=2), address=SECOND_POD)
    assert topology.outside.send("tcp", HOST, 1, server) == (OUTSIDE, 0)
    assert topology.outside.send("tcp", HOST, 2, server) == (OUTSIDE, 0)
    assert not [table for table in tables if table in topology.rules()]
    assert own in topology.rules()


def test_a_port_of_a_pod_from_elsewhere(pods: Pods, topology: Topology) -> None:
    """A pod of another data directory may be running."""
    topology.add_pod(POD)
    other = str(uuid.uuid4())
    pods.forward(port(), pod=other)
    assert other in pods.refusal(port())


def test_its_own_ports(pods: Pods, topology: Topology) -> None:
    """A table is written anew where one was left."""
    server = topology.add_pod(POD).listen("tcp", 80)
    pods.forward(port(), port(host_port=1))
    pods.forward(port(host_port=1), port(host_port=2))
    assert topology.outside.send("tcp", HOST, 1, server) == (OUTSIDE, 0)
    assert topology.outside.send("tcp", HOST, 2, server) == (OUTSIDE, 0)
    assert topology.outside.send("tcp", HOST, 8080, server) is None


@pytest.mark.parametrize("host_ip", [None, HOST])
def test_a_client_that_goes_on_sending(pods: Pods, topology: Topology, host_ip: str | None) -> None:
    """Its datagrams follow the port, to nobody, to a pod and to the next one, and what else it says goes on."""
    servers = [topology.add_pod(address).listen("udp", 80) for address in (POD, SECOND_POD)]
    # The kernel keeps track of connections as long as anybody's rules ask for it.
    topology.host.do(lambda: protect("minit-x-eth0", [IPv4Interface(f"{SECOND_POD}/24")]))
    with topology.outside.do(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as client:
        client.bind((OUTSIDE, 4444))
        assert exchange(client, *servers) is None
        first = pods.forward(port("udp", host_ip=host_ip))
        assert exchange(client, *servers) == 0
        pods.delete(first)
        assert exchange(client, *servers) is None
        pods.forward(port("udp", host_ip=host_ip), pod=pods.start(), address=SECOND_POD)
        assert exchange(client, *servers) == 1


def exchange(client: socket.socket, *servers: socket.socket) -> int | None:
    """Send a datagram to the port and return the number of the server that got it."""
    client.sendto(b"question", (HOST, 8080))
    reached, _, _ = select.select(servers, [], [], 0.2)
    for server in reached:
        assert server.recvfrom(100) == (b"question", (OUTSIDE, 4444))
    return servers.index(reached[0]) if reached else None


LISTENERS = {
    "any": (socket.AF_INET, "0.0.0.0", f"0.0.0.0:{8080}"),
    "loopback": (socket.AF_INET, "127.0.0.1", f"127.0.0.1:{8080}"),
    "address": (socket.AF_INET, HOST, f"{HOST}:{8080}"),
    "both": (socket.AF_INET6, "::", f"[::]:{8080}"),
    "mapped": (socket.AF_INET6, f"::ffff:{HOST}", f"{HOST}:{8080}"),
}


@PROTOCOLS
@pytest.mark.parametrize("listener", LISTENERS)
def test_a_port_that_a_program_has(pods: Pods, topology: Topology, protocol: str, listener: str) -> None:
    """Programs that listen on the host are found, IPv4 or not, with their addresses."""
    topology.add_pod(POD)
    family, address, shown = LISTENERS[listener]
    kind = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}[protocol]
    with topology.host.do(lambda: socket.socket(family, kind)) as server:
        server.bind((address, 8080))
        if protocol == "tcp":
            server.listen()
        message = f"is in use: a program on the host listens at {shown}"
        assert pods.refusal(port(protocol)) == f"{protocol} port 8080 of every address {message}"
        if listener in ("any", "address", "both", "mapped"):
            assert pods.refusal(port(protocol, host_ip=HOST)) == f"{protocol} port 8080 of {HOST} {message}"
        if listener in ("address", "loopback", "mapped"):
            pods.forward(port(protocol, host_ip=OTHER_HOST))
        if listener == "both":
            pods.forward(port(protocol, host_ip="203.0.113.1"))  # which is not the host's, or not yet
        pods.forward(port(protocol, 8081), port({"tcp": "udp", "udp": "tcp"}[protocol]))


@PROTOCOLS
def test_a_port_that_only_ipv6_has(pods: Pods, topology: Topology, protocol: str) -> None:
    """A socket that takes no IPv4 is in nobody's way."""
    topology.add_pod(POD)
    kind = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}[protocol]
    with topology.host.do(lambda: socket.socket(socket.AF_INET6, kind)) as server:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        server.bind(("::", 8080))
        if protocol == "tcp":
            server.listen()
        pods.forward(port(protocol))


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


# Masquerading.


def allow_answers(topology: Topology) -> None:
    """Let the outside answer pods that it sees."""
    topology.outside.run(f"ip route add {SUBNET} via {HOST}")


@PROTOCOLS
def test_masquerading(topology: Topology, protocol: str) -> None:
    """The outside sees the host, neighbours and the host see the pod."""
    allow_answers(topology)
    pod, neighbour = topology.add_pod(POD), topology.add_pod(SECOND_POD)
    places = (topology.outside, topology.host, neighbour)
    addresses = (OUTSIDE, HOST, SECOND_POD)
    outside, host, other = (place.listen(protocol, 7, address) for place, address in zip(places, addresses))
    assert pod.send(protocol, OUTSIDE, 7, outside) == (POD, 0)
    topology.host.do(lambda: protect(table_name("x", "eth0"), [IPv4Interface(f"{POD}/24")]))
    assert pod.send(protocol, OUTSIDE, 7, outside) == (HOST, 0)
    assert pod.send(protocol, HOST, 7, host) == (POD, 0)
    assert pod.send(protocol, SECOND_POD, 7, other) == (POD, 0)
    assert neighbour.send(protocol, OUTSIDE, 7, outside) == (SECOND_POD, 0)
    topology.host.do(lambda: delete_table(table_name("x", "eth0")))
    assert pod.send(protocol, OUTSIDE, 7, outside) == (POD, 0)


def test_masquerading_and_forwarding(pods: Pods, topology: Topology) -> None:
    """A pod with both has its port, sees who asks, and reaches itself by the host's address."""
    pod = topology.add_pod(POD)
    server = pod.listen("tcp", 80)
    topology.host.do(lambda: protect(table_name(pods.own, "eth0"), [IPv4Interface(f"{POD}/24")]))
    pods.forward(port())
    assert topology.outside.send("tcp", HOST, 8080, server) == (OUTSIDE, 0)
    assert pod.send("tcp", HOST, 8080, server) == (GATEWAY, 0)
    assert topology.host.send("tcp", "127.0.0.1", 8080, server) == (GATEWAY, 0)


def test_multicast_is_not_masqueraded(topology: Topology) -> None:
    """A group is addressed by the pod itself, and a subnet may be given by any address in it."""
    topology.host.do(lambda: protect("minit-x-eth0", [IPv4Interface(f"{POD}/20")]))
    topology.host.do(lambda: protect("minit-x-eth0", [IPv4Interface(f"{POD}/24")]))
    assert topology.host.run("nft list table minit-x-eth0").split("\n")[3:5] == [
        f"\t\tip saddr {POD} ip daddr {SUBNET} return",
        f"\t\tip saddr {POD} ip daddr != 224.0.0.0/4 masquerade",
    ]


# Others' rules, and nothing left.


def test_rules_of_others(pods: Pods, topology: Topology, tmp_path: Path) -> None:
    """They are the same byte for byte, work meanwhile, and after all of ours are gone nothing of ours is left."""
    (tmp_path / "rules").write_text(FOREIGN_RULES)
    topology.host.run(f"nft --file {tmp_path / 'rules'}")
    before = topology.rules()
    outside = topology.outside.listen("tcp", 7)
    server = topology.add_pod(POD).listen("tcp", 80)
    masqueraded = table_name(pods.own, "eth0")
    topology.host.do(lambda: protect(masqueraded, [IPv4Interface(f"{POD}/24")]))
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
    pods.delete(masqueraded)
    pods.delete(forwarded)
    assert topology.rules() == before
    pods.delete(masqueraded)
    pods.delete(forwarded)
    assert topology.rules() == before


def test_deleting_takes_the_exact_name(pods: Pods, topology: Topology) -> None:
    """A table whose name only begins like another stays."""
    topology.add_pod(POD)
    topology.host.do(lambda: protect("minit-x-eth0", [IPv4Interface(f"{POD}/24")]))
    topology.host.do(lambda: protect("minit-x-eth01", [IPv4Interface(f"{POD}/24")]))
    pods.delete("minit-x-eth0")
    pods.delete("minit-x-eth")
    assert "table ip minit-x-eth01 " in topology.rules()
    assert "table ip minit-x-eth0 " not in topology.rules()


@PROTOCOLS
def test_killed_at_any_step(pods: Pods, topology: Topology, protocol: str) -> None:
    """Whenever forwarding is killed, and deleting is killed after it, deleting leaves nothing; nor is any lock left."""
    topology.add_pod(POD)
    link = topology.link_of(POD)
    table = ports_table(pods.own)
    step = 1
    while killed_child(lambda: pods.forward(port(protocol)), step):
        # What makes the pod's packets to 127.0.0.1 possible is never there without the guard.
        assert localnet_of(topology, link) == "0" or "chain guard" in topology.rules()
        pods.delete(table)
        assert (topology.rules(), localnet_of(topology, link)) == ("", "0")
        step += 1
    assert step > 5
    step = 1
    while killed_child(lambda: pods.delete(table), step):
        assert localnet_of(topology, link) == "0" or "chain guard" in topology.rules()
        pods.delete(table)
        assert (topology.rules(), localnet_of(topology, link)) == ("", "0")
        pods.forward(port(protocol))
        step += 1
    assert step > 3
    assert (topology.rules(), localnet_of(topology, link)) == ("", "0")


def test_without_the_right(topology: Topology) -> None:
    """A process that may not change the packet filter says so in one line."""

    def work() -> None:
        syscalls.set_capabilities(0, 0, 0)
        try:
            protect("minit-x-eth0", [IPv4Interface(f"{POD}/24")])
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
