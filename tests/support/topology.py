"""
A host between the outside and its pods, each a network namespace, and packets sent among them.

    outside 192.0.2.2 --- 192.0.2.1 host 10.1.0.1 --- 10.1.0.2, 10.1.0.3, … pods
            2001:db8:2::2 --- 2001:db8:2::1  2001:db8:1::1 --- 2001:db8:1::2, …

Sockets stay in the namespace in which they were made, so that one process can be all of them. Addresses of IPv6 can be
used at once, which without `nodad` they could not, be it that nobody is asked about them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

from tests.support.networks import make_network, remove_network, within
from tests.support.waiting import wait_for

T = TypeVar("T")

HOST = "192.0.2.1"
OTHER_HOST = "192.0.2.10"
OUTSIDE = "192.0.2.2"
GATEWAY = "10.1.0.1"
SUBNET = "10.1.0.0/24"
HOST6 = "2001:db8:2::1"
OTHER_HOST6 = "2001:db8:2::10"
OUTSIDE6 = "2001:db8:2::2"
GATEWAY6 = "2001:db8:1::1"
SUBNET6 = "2001:db8:1::/64"
POD = "10.1.0.2"
SECOND_POD = "10.1.0.3"
BRIDGE = "cni0"

_KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
_PATIENCE_SECONDS = 60.0
# How long it takes until what does not arrive counts as lost. What does arrive takes a tenth of a millisecond.
_LOSS_SECONDS = 0.3


class Family(NamedTuple):
    """The addresses of a topology in one family; `every` is that of a socket for all of them."""

    host: str
    other_host: str
    outside: str
    gateway: str
    pod: str
    second_pod: str
    prefix: int
    loopback: str
    every: str


class Place:
    """A network namespace."""

    def __init__(self, path: Path) -> None:
        self.path = make_network(path)

    def remove(self) -> None:
        """Give the namespace up."""
        remove_network(self.path)

    def do(self, function: Callable[[], T]) -> T:
        """Return what `function` does here."""
        return within(self.path, function)

    def run(self, *commands: str) -> str:
        """Run commands here and return what they print."""
        output = ""
        for command in commands:
            words = ["nsenter", f"--net={self.path}", *shlex.split(command)]
            output += subprocess.run(words, check=True, capture_output=True, text=True).stdout
        return output

    def wait_for_link(self, name: str) -> None:
        """Wait until a link carries packets; before, the first of them are lost."""
        wait_for(lambda: "state UP" in self.run(f"ip link show {name}"), f"link {name}")
        wait_for(lambda: not self.run(f"ip -6 address show dev {name} tentative"), f"addresses of {name}")

    def sysctl(self, name: str, value: str | None = None) -> str:
        """Return a setting of net.ipv4, after changing it if there is a value."""
        path = Path("/proc/sys/net/ipv4") / name

        def work() -> str:
            if value is not None:
                path.write_text(value)
            return path.read_text().strip()

        return self.do(work)

    def sysctl6(self, name: str, value: str) -> None:
        """Change a setting of net.ipv6."""
        self.do(lambda: (Path("/proc/sys/net/ipv6") / name).write_text(value))

    def mac(self, link: str) -> str:
        """Return the hardware address of a link."""
        return self.run(f"ip -brief link show {link}").split()[2]

    def listen(self, protocol: str, port: int, address: str = "0.0.0.0") -> socket.socket:
        """Return a socket to which others can send, by IPv6 if it is the address of that."""

        def work() -> socket.socket:
            server = socket.socket(_family(address), _KINDS[protocol])
            if server.family == socket.AF_INET6:
                server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((address, port))
            if protocol == "tcp":
                server.listen()
            return server

        return self.do(work)

    def send(self, protocol: str, address: str, port: int, *servers: socket.socket) -> tuple[str, int] | None:
        """
        Send a word from here and let whichever server got it answer.

        Returns the address that the server saw and its own number among `servers`, None if none was reached.
        """
        with self.do(lambda: socket.socket(_family(address), _KINDS[protocol])) as client:
            client.settimeout(_LOSS_SECONDS)
            try:
                client.connect((address, port))
                client.send(b"question")
            except OSError:
                return None
            for number, server in enumerate(servers):
                try:
                    server.settimeout(_LOSS_SECONDS / len(servers))
                    source = _answer(protocol, server)
                except TimeoutError:
                    continue
                client.settimeout(_PATIENCE_SECONDS)
                assert client.recv(100) == b"answer"
                return source, number
        return None


class Topology:
    """A host with `eth0` to the outside and pods behind it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._places: list[Place] = []
        self.host = self._place("host")
        self.outside = self._place("outside")
        self.host.run(
            f"ip link add eth0 type veth peer name eth0 netns {self.outside.path}",
            f"ip address add {HOST}/24 dev eth0",
            f"ip address add {OTHER_HOST}/24 dev eth0",
            f"ip address add {HOST6}/64 dev eth0 nodad",
            # Of IPv4 the first is the source of what the host sends. Of IPv6 it is the one that is preferred.
            f"ip address add {OTHER_HOST6}/64 dev eth0 preferred_lft 0 nodad",
            "ip link set eth0 up",
        )
        self.host.sysctl("ip_forward", "1")
        self.host.sysctl6("conf/all/forwarding", "1")
        self.outside.run(
            f"ip address add {OUTSIDE}/24 dev eth0",
            f"ip address add {OUTSIDE6}/64 dev eth0 nodad",
            "ip link set eth0 up",
        )
        for place in (self.host, self.outside):
            place.wait_for_link("eth0")

    def close(self) -> None:
        """Take everything away."""
        for place in self._places:
            place.remove()

    def add_pod(self, address: str, *, with_default_route: bool = True) -> Place:
        """Return a pod at the end of a link of its own, as the ptp plugin connects it."""
        pod = self._place(f"pod-{address}")
        link = self.link_of(address)
        self.host.run(
            f"ip link add {link} type veth peer name eth0 netns {pod.path}",
            f"ip address add {GATEWAY}/32 dev {link}",
            f"ip address add {GATEWAY6}/128 dev {link} nodad",
            f"ip link set {link} up",
            f"ip route add {address}/32 dev {link}",
            f"ip route add {ipv6_of(address)}/128 dev {link}",
        )
        pod.run(
            f"ip address add {address}/24 dev eth0 noprefixroute",
            f"ip address add {ipv6_of(address)}/64 dev eth0 noprefixroute nodad",
            "ip link set eth0 up",
            f"ip route add {GATEWAY}/32 dev eth0 scope link src {address}",
            f"ip route add {SUBNET} via {GATEWAY} src {address}",
            f"ip route add {GATEWAY6}/128 dev eth0",
            f"ip route add {SUBNET6} via {GATEWAY6}",
        )
        if with_default_route:
            pod.run(f"ip route add default via {GATEWAY}", f"ip route add default via {GATEWAY6}")
        self._wait_for_pod(pod, link)
        return pod

    def add_bridged_pod(self, address: str) -> Place:
        """Return a pod on a bridge of the host, which is made for the first of them."""
        pod = self._place(f"pod-{address}")
        if not self.host.do(lambda: os.path.exists(f"/proc/sys/net/ipv4/conf/{BRIDGE}")):
            self.host.run(
                f"ip link add {BRIDGE} type bridge",
                f"ip address add {GATEWAY}/24 dev {BRIDGE}",
                f"ip address add {GATEWAY6}/64 dev {BRIDGE} nodad",
                f"ip link set {BRIDGE} up",
            )
        link = self.link_of(address)
        self.host.run(
            f"ip link add {link} type veth peer name eth0 netns {pod.path}",
            f"ip link set {link} master {BRIDGE}",
            f"ip link set {link} up",
        )
        pod.run(
            f"ip address add {address}/24 dev eth0",
            f"ip address add {ipv6_of(address)}/64 dev eth0 nodad",
            "ip link set eth0 up",
            f"ip route add default via {GATEWAY}",
            f"ip route add default via {GATEWAY6}",
        )
        self._wait_for_pod(pod, link)
        return pod

    def add_place(self, name: str) -> Place:
        """Return another namespace, which nothing leads to yet."""
        return self._place(name)

    def filter_bridged(self, filtered: bool) -> None:
        """Decide whether packets that only cross the bridge meet the rules for those that are routed."""
        paths = [Path(f"/proc/sys/net/bridge/bridge-nf-call-{name}") for name in ("iptables", "ip6tables")]
        if self.host.do(paths[0].exists):
            for path in paths:
                self.host.do(lambda path=path: path.write_text(str(int(filtered))))  # type: ignore[misc]
        elif filtered:
            pytest.skip("the kernel does not filter bridged packets")

    def link_of(self, address: str) -> str:
        """Return the name of the host's end of a pod's link."""
        return f"veth{address.replace('.', '')}"

    def rules(self) -> str:
        """Return all that the host's packet filter has, with the handles by which the kernel knows it."""
        return self.host.run("nft --handle --stateless list ruleset")

    def _wait_for_pod(self, pod: Place, link: str) -> None:
        pod.wait_for_link("eth0")
        self.host.wait_for_link(link)

    def _place(self, name: str) -> Place:
        place = Place(self._directory / name)
        self._places.append(place)
        place.sysctl6("conf/default/accept_dad", "0")
        return place


def ipv6_of(address: str) -> str:
    """Return a pod's address of IPv6."""
    return f"{SUBNET6.partition('/')[0]}{address.rpartition('.')[2]}"


IPV4 = Family(HOST, OTHER_HOST, OUTSIDE, GATEWAY, POD, SECOND_POD, 24, "127.0.0.1", "0.0.0.0")
IPV6 = Family(HOST6, OTHER_HOST6, OUTSIDE6, GATEWAY6, ipv6_of(POD), ipv6_of(SECOND_POD), 64, "::1", "::")


@contextlib.contextmanager
def make_topology(directory: Path) -> Iterator[Topology]:
    """Make a host and an outside for the length of a with block."""
    topology = Topology(directory)
    try:
        yield topology
    finally:
        topology.close()


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _answer(protocol: str, server: socket.socket) -> str:
    if protocol == "udp":
        data, peer = server.recvfrom(100)
        server.sendto(b"answer", peer)
    else:
        connection, peer = server.accept()
        with connection:
            connection.settimeout(_PATIENCE_SECONDS)
            data = connection.recv(100)
            connection.send(b"answer")
    assert data == b"question"
    return str(peer[0])
