"""The IPv6 of a machine: what a router advertises, and leases of a server of DHCP, over a pair of links."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import pytest

from minit.linux.loop import wait_readable
from minit.machine.network import MachineNetwork
from minit.manifest.machineconfig import Interface, MachineConfig
from minit.network.dhcp.client6 import BOUND, Dhcp6Client
from tests.support.ipv6router import (
    DECLINE,
    INFORMATION_REQUEST,
    MANAGED,
    OTHER,
    RENEW,
    REQUEST,
    SOLICIT,
    Ipv6Router,
    option,
)
from tests.support.wire import NAMESPACE, at_the_server, lay_wire, run

SERVER = IPv6Address("2001:db8::53")
NAME_SERVER = struct.pack(">BBHI", 25, 3, 0, 600) + SERVER.packed
NEIGHBOUR = struct.pack(">BBHI", 25, 3, 0, 600) + IPv6Address("fe80::53").packed
NO_NAME_SERVER = struct.pack(">BBHI", 25, 3, 0, 0) + SERVER.packed
DOMAIN = struct.pack(">BBHI", 31, 3, 0, 600) + b"\3lan\4test\0".ljust(16, b"\0")
LEASED = "2001:db8::20/128"


@pytest.fixture
def router() -> Iterator[Ipv6Router]:
    """A router at the other end of a wire."""
    with lay_wire():
        made = at_the_server(lambda: Ipv6Router("server"))
        yield made
        made.close()


@pytest.fixture
def forwarding() -> Iterator[None]:
    """Forward packets here."""
    switch = Path("/proc/sys/net/ipv6/conf/all/forwarding")
    before = switch.read_text()
    switch.write_text("1")
    yield
    switch.write_text(before)


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Dhcp6Client]]:
    """Those of the machine's interfaces, in the order in which they begin."""
    begun: list[Dhcp6Client] = []

    def begin(*arguments: Any) -> Dhcp6Client:
        begun.append(Dhcp6Client(*arguments))
        return begun[-1]

    monkeypatch.setattr("minit.machine.ipv6.Dhcp6Client", begin)
    yield begun
    for client in begun:
        client.close()


def connect(tmp_path: Path, **interface: bool) -> MachineNetwork:
    """Connect a machine with this interface."""
    config = MachineConfig(interfaces=(Interface(name="client", **interface),))  # type: ignore[arg-type]
    return MachineNetwork(config, str(tmp_path / "resolv.conf"), str(tmp_path / "state"))


def play(network: MachineNetwork, router: Ipv6Router, until: Callable[[], object]) -> None:
    """Have both do what is due until something is so."""
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end
        network.turn()
        router.turn()
        wait_readable(network.filenos(), 0.05)


def addresses() -> str:
    """Return the addresses of the machine that can be used, with how long they last."""
    return run("ip", "-6", "address", "show", "client", "scope", "global", "-tentative")


def test_a_router(router: Ipv6Router, forwarding: None, clients: list[Dhcp6Client], tmp_path: Path) -> None:
    """A machine that forwards packets gets address, route, name servers and domains of a router, and loses them."""
    network, resolv_conf = connect(tmp_path, accept_ra=True), tmp_path / "resolv.conf"
    said = NAME_SERVER + NEIGHBOUR + DOMAIN

    def has_all() -> bool:
        router.advertise(prefix="2001:db8:1::", options=said)
        return "2001:db8:1:" in addresses() and resolv_conf.read_text() != ""

    play(network, router, has_all)
    lines = ["search lan.test", "nameserver 2001:db8::53", "nameserver fe80::53%client", ""]
    assert resolv_conf.read_text().split("\n") == lines
    assert "proto ra" in run("ip", "-6", "route", "show", "default")
    router.advertise(options=NO_NAME_SERVER)
    play(network, router, lambda: str(SERVER) not in resolv_conf.read_text())
    assert resolv_conf.read_text().split("\n") == [lines[0], *lines[2:]]
    assert clients == [], "the router has not spoken of DHCP"


def test_advertisements_that_are_not_wanted(router: Ipv6Router, tmp_path: Path) -> None:
    """With accept_ra = false nothing of a router counts."""
    network = connect(tmp_path, accept_ra=False)
    play(network, router, lambda: "LOWER_UP" in run("ip", "link", "show", "client"))
    for _ in range(3):
        router.advertise(MANAGED, prefix="2001:db8:1::", options=NAME_SERVER)
        network.turn()
    assert addresses() == "" and (tmp_path / "resolv.conf").read_text() == ""


def test_a_lease(router: Ipv6Router, clients: list[Dhcp6Client], tmp_path: Path) -> None:
    """With dhcp6 a server gives an address with its times, name servers, and servers of time; it is renewed."""
    router.address, router.options = "2001:db8::20", option(23, SERVER.packed) + option(56, option(1, SERVER.packed))
    network = connect(tmp_path, dhcp6=True)
    play(network, router, lambda: LEASED in addresses())
    assert router.kinds() == [SOLICIT, REQUEST]
    assert (tmp_path / "resolv.conf").read_text() == f"nameserver {SERVER}\n"
    assert network.ntp_servers == [str(SERVER)]
    words = addresses().split()
    valid, preferred = (
        int(words[words.index(name) + 1].removesuffix("sec")) for name in ("valid_lft", "preferred_lft")
    )
    assert 7000 < valid <= 7200 and 3400 < preferred <= 3600
    [client] = clients
    assert 1700 < client.deadline - time.monotonic() <= 1800
    client.deadline = 0.0
    router.address = "2001:db8::21"
    play(network, router, lambda: "2001:db8::21/128" in addresses())
    assert router.kinds()[2] == RENEW and LEASED not in addresses()
    first, last = router.asked[0][1][1], router.asked[-1][1][1]
    assert first == last == bytes.fromhex((tmp_path / "state/network/duid").read_text())


def test_a_server_that_has_forgotten(router: Ipv6Router, clients: list[Dhcp6Client], tmp_path: Path) -> None:
    """A server that knows nothing of a lease when it is renewed is asked for the address anew; it stays meanwhile."""
    router.address = "2001:db8::20"
    network = connect(tmp_path, dhcp6=True)
    play(network, router, lambda: LEASED in addresses())
    router.address, clients[0].deadline = None, 0.0
    play(network, router, lambda: REQUEST in router.kinds()[3:])
    assert router.kinds()[2:4] == [RENEW, REQUEST] and LEASED in addresses()
    router.address = "2001:db8::20"
    play(network, router, lambda: clients[0].state == BOUND)


def test_an_address_of_a_neighbour(
    router: Ipv6Router, clients: list[Dhcp6Client], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An address that somebody on the link has is declined, and never used."""
    run("ip", "-n", NAMESPACE, "-6", "address", "add", LEASED, "dev", "server", "nodad")
    router.address = "2001:db8::20"
    begun = time.monotonic()
    network = connect(tmp_path, dhcp6=True)
    play(network, router, lambda: DECLINE in router.kinds())
    assert "2001:db8::20" not in run("ip", "-6", "address", "show", "client")
    assert capfd.readouterr().err == "minit: interface client: 2001:db8::20 is in use by a neighbour\n"
    assert clients[0].deadline > begun + 5


@pytest.mark.parametrize(("flags", "asked"), [(MANAGED, SOLICIT), (OTHER, INFORMATION_REQUEST)])
def test_what_a_router_leaves_to_a_server(
    router: Ipv6Router, clients: list[Dhcp6Client], tmp_path: Path, flags: int, asked: int
) -> None:
    """A server is asked for an address, or for the rest alone, where a router says so."""
    router.address, router.options = "2001:db8::20", option(24, b"\3lan\4test\0")
    network = connect(tmp_path, accept_ra=True)

    def is_told() -> bool:
        router.advertise(flags)
        return bool(clients) and clients[0].state == BOUND

    play(network, router, is_told)
    assert router.kinds()[0] == asked
    assert (tmp_path / "resolv.conf").read_text() == "search lan.test\n"
    play(network, router, lambda: (LEASED in addresses()) == (flags == MANAGED))


def test_another_helper(router: Ipv6Router, clients: list[Dhcp6Client], tmp_path: Path) -> None:
    """A helper that takes over removes the address of an old lease, and has routers repeat what they say."""
    router.address = "2001:db8::20"
    network = connect(tmp_path, dhcp6=True, accept_ra=True)
    play(network, router, lambda: LEASED in addresses())
    clients[0].close()
    router.address = "2001:db8::21"
    again = connect(tmp_path, dhcp6=True, accept_ra=True)
    play(again, router, lambda: "2001:db8::21/128" in addresses())
    assert LEASED not in addresses()
