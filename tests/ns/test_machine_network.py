"""The network of a machine: addresses, and leases of busybox's DHCP server, over a pair of links."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from minit.machine.devices import MachineDevices
from minit.machine.modules import Modules
from minit.machine.network import MachineNetwork
from minit.manifest.machineconfig import Interface, MachineConfig
from minit.network.dhcp.client import BOUND, INIT, DhcpClient
from tests.support.dhcpresponder import DISCOVER, REQUEST, DhcpResponder
from tests.support.pods import BUSYBOX
from tests.support.wire import NAMESPACE, at_the_server, lay_wire, run

_SERVER = """
interface server
start 192.0.2.20
end 192.0.2.20
lease_file {directory}/leases
pidfile {directory}/pid
option subnet 255.255.255.0
option router 192.0.2.1
option dns 192.0.2.53 192.0.2.54
option domain lan
option lease {lease}
decline_time 1
"""


@pytest.fixture
def wire() -> Iterator[None]:
    """A pair of links: `client` here, `server` with an address in a namespace of its own."""
    with lay_wire():
        yield


@pytest.fixture
def serve(wire: None, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """A function that starts the server."""
    started = []

    def start(lease: int = 3600) -> subprocess.Popen[bytes]:
        config = tmp_path / "udhcpd.conf"
        config.write_text(_SERVER.format(directory=tmp_path, lease=lease))
        (tmp_path / "leases").touch()
        command = ["ip", "netns", "exec", NAMESPACE, str(BUSYBOX), "udhcpd", "-f", str(config)]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[DhcpClient]:
    """Those of the machine's interfaces, in the order in which they begin."""
    begun: list[DhcpClient] = []

    def begin(*arguments: Any) -> DhcpClient:
        begun.append(DhcpClient(*arguments))
        return begun[-1]

    monkeypatch.setattr("minit.machine.network.DhcpClient", begin)
    return begun


@pytest.fixture
def responder(wire: None) -> Iterator[DhcpResponder]:
    """A server that says what a test wants."""
    made = at_the_server(lambda: DhcpResponder("server", "192.0.2.20", {}))
    yield made
    made.close()


def play(network: MachineNetwork, server: DhcpResponder, until: Callable[[], object]) -> None:
    """Have both do what is due until something is so."""
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end
        network.turn()
        server.turn()


def routes_by_client() -> set[str]:
    """Return the routes of leases."""
    return {" ".join(line.split()) for line in run("ip", "-4", "route", "show", "proto", "dhcp").splitlines()}


def connect(tmp_path: Path, *interfaces: Interface, name_servers: tuple[str, ...] = ()) -> MachineNetwork:
    """Connect a machine with these interfaces, and wait as it does."""
    config = MachineConfig(interfaces=interfaces, name_servers=name_servers)
    network = MachineNetwork(config, str(tmp_path / "resolv.conf"))
    network.wait(MachineDevices(Modules({})))
    return network


def test_addresses_of_the_configuration(wire: None, tmp_path: Path) -> None:
    """A link gets its addresses and the default route, and the machine its name servers."""
    interface = Interface(
        name="client",
        addresses=("192.0.2.7/24", "2001:db8::7/64"),
        gateway="192.0.2.1",
        gateway6="2001:db8::1",
        wait_seconds=10,
    )
    connect(tmp_path, interface, name_servers=(*["192.0.2.53"] * 3, "192.0.2.54"))
    assert "192.0.2.7/24" in run("ip", "-4", "address", "show", "client")
    assert run("ip", "route", "show", "default").startswith("default via 192.0.2.1 dev client")
    assert (tmp_path / "resolv.conf").read_text() == "nameserver 192.0.2.53\nnameserver 192.0.2.54\n"
    assert run("ip", "-6", "route", "show", "default").startswith("default via 2001:db8::1 dev client")
    for address in ("192.0.2.1", "2001:db8::1"):
        run(str(BUSYBOX), "ping", "-c", "1", "-W", "5", address)


def test_addresses_that_are_there(wire: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A helper that takes over an interface, as one that is started again does, leaves its addresses as they are."""
    interface = Interface(name="client", dhcp=True, addresses=("2001:db8::7/64",), gateway6="2001:db8::1")
    for _ in range(2):
        connect(tmp_path, interface)
    assert run("ip", "-6", "address", "show", "client").count("2001:db8::7/64") == 1
    assert capfd.readouterr().err == ""


def test_a_lease(serve: Callable[..., object], tmp_path: Path) -> None:
    """With dhcp a server tells address, route, name servers and domain."""
    serve()
    connect(tmp_path, Interface(name="client", dhcp=True, wait_seconds=30))
    assert "192.0.2.20/24" in run("ip", "-4", "address", "show", "client")
    assert run("ip", "route", "show", "default").startswith("default via 192.0.2.1 dev client")
    assert (tmp_path / "resolv.conf").read_text() == "search lan\nnameserver 192.0.2.53\nnameserver 192.0.2.54\n"


def test_what_another_one_has_left(serve: Callable[..., object], tmp_path: Path) -> None:
    """Addresses end with their leases, and those of a helper that died at the next lease; others stay."""
    (tmp_path / "resolv.conf").write_text("nameserver 192.0.2.99\n")
    old = ("192.0.2.98/24", "dev", "client")
    run("ip", "address", "add", *old, "valid_lft", "1000", "preferred_lft", "1000")
    run("ip", "address", "add", "198.51.100.7/24", "dev", "client")
    network = connect(tmp_path, Interface(name="client", dhcp=True))
    assert (tmp_path / "resolv.conf").read_text() == "nameserver 192.0.2.99\n"
    serve()
    until = time.monotonic() + 90
    while "192.0.2.20/24" not in run("ip", "-4", "address", "show", "client"):
        assert time.monotonic() < until
        network.turn()
    shown = run("ip", "-4", "address", "show", "client")
    assert "192.0.2.98" not in shown and "198.51.100.7/24" in shown
    [line] = [line for line in shown.partition("192.0.2.20/24")[2].splitlines() if "valid_lft" in line][:1]
    assert 3500 < int(line.split()[1].removesuffix("sec")) <= 3600
    assert "nameserver 192.0.2.53" in (tmp_path / "resolv.conf").read_text()


def test_a_lease_is_renewed(serve: Callable[..., object], clients: list[DhcpClient], tmp_path: Path) -> None:
    """When the time has come the server is asked, by its address, for the same lease."""
    serve()
    network = connect(tmp_path, Interface(name="client", dhcp=True, wait_seconds=30))
    [client] = clients
    assert client.state == BOUND
    before = client.deadline
    client.deadline = 0.0
    until = time.monotonic() + 90
    network.turn()
    assert client.state != BOUND
    while client.state != BOUND:
        assert time.monotonic() < until
        network.turn()
    assert client.deadline > before


def test_an_address_that_is_in_use(
    serve: Callable[..., object], clients: list[DhcpClient], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An address that a server offers and another machine has is declined; when it is free it is taken."""
    serve()
    # The server does not see it: it asks others before it offers an address, and this is its own machine.
    run("ip", "-n", NAMESPACE, "address", "add", "192.0.2.20/24", "dev", "server")
    mac = run("ip", "netns", "exec", NAMESPACE, "cat", "/sys/class/net/server/address").strip()
    network = connect(tmp_path, Interface(name="client", dhcp=True))
    begun, said = time.monotonic(), ""
    until = begun + 90
    while not (said := said + capfd.readouterr().err):
        assert time.monotonic() < until
        network.turn()
    assert said == f"minit: interface client: 192.0.2.20 is in use by {mac}\n"
    assert "192.0.2.20" not in run("ip", "-4", "address", "show", "client")
    [client] = clients
    assert client.deadline > begun + 5
    run("ip", "-n", NAMESPACE, "address", "del", "192.0.2.20/24", "dev", "server")
    while client.state != BOUND:
        assert time.monotonic() < until
        if client.state == INIT:
            client.deadline = 0.0
        network.turn()
    assert "192.0.2.20/24" in run("ip", "-4", "address", "show", "client")


def test_all_that_a_server_tells(
    responder: DhcpResponder, clients: list[DhcpClient], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Classless routes take the place of the router, and change with the lease; so do the MTU and the domains."""
    responder.options = {
        3: IPv4Address("192.0.2.99").packed,
        15: b"lan",
        26: (1400).to_bytes(2, "big"),
        119: b"\3one\4test\0\3two\xc0\4",
        121: bytes.fromhex("00c6336401 20c633640100000000 180a0101c0000202"),
    }
    network = connect(tmp_path, Interface(name="other"), Interface(name="client", dhcp=True))
    play(network, responder, lambda: clients and clients[0].state == BOUND)
    assert routes_by_client() == {
        "default via 198.51.100.1 dev client metric 1",
        "198.51.100.1 dev client scope link metric 1",
        "10.1.1.0/24 via 192.0.2.2 dev client metric 1",
    }
    assert "mtu 1400" in run("ip", "link", "show", "client")
    assert (tmp_path / "resolv.conf").read_text() == "search one.test two.test\n"
    wanted = responder.asked[0][1][55]
    assert wanted.index(121) < wanted.index(3)
    # Half a route is none, and a small MTU would end IPv6.
    responder.options = {3: IPv4Address("192.0.2.1").packed, 26: b"\2\0", 119: b"\3one\4", 121: b"\x18\x0a"}
    responder.options |= {58: (1).to_bytes(4, "big"), 59: (2).to_bytes(4, "big")}
    clients[0].deadline = 0.0
    play(network, responder, lambda: responder.kinds()[2:] and clients[0].state == BOUND)
    assert routes_by_client() == {"default via 192.0.2.1 dev client metric 1"}
    assert round(clients[0].expires_at - clients[0].deadline) == 3590, "no server is asked every second"
    assert "mtu 1500" in run("ip", "link", "show", "client")
    assert (tmp_path / "resolv.conf").read_text() == ""
    assert capfd.readouterr().err == "minit: interface client: 192.0.2.20/24\n"


@pytest.mark.parametrize("confirms", [True, False, None])
def test_an_address_of_an_earlier_boot(
    responder: DhcpResponder, clients: list[DhcpClient], tmp_path: Path, confirms: bool | None
) -> None:
    """The address of the last lease is asked for at once; if a server says no, or none says anything, from scratch."""
    config = MachineConfig(interfaces=(Interface(name="client", dhcp=True),))
    network = MachineNetwork(config, str(tmp_path / "resolv.conf"), str(tmp_path / "state"))
    play(network, responder, lambda: clients and clients[0].state == BOUND)
    assert responder.kinds() == [DISCOVER, REQUEST]
    responder.confirms, responder.asked = confirms, []
    again = MachineNetwork(config, str(tmp_path / "resolv.conf"), str(tmp_path / "state"))
    play(again, responder, lambda: responder.asked)
    kind, options = responder.asked[0]
    assert (kind, options[50], 54 in options) == (REQUEST, IPv4Address("192.0.2.20").packed, False)
    if not confirms:
        play(again, responder, lambda: DISCOVER in responder.kinds())
        responder.confirms, responder.address = True, IPv4Address("192.0.2.21")
    play(again, responder, lambda: clients[1].state == BOUND)
    kinds = [REQUEST] if confirms else [REQUEST] * (2 if confirms is None else 1) + [DISCOVER, REQUEST]
    assert responder.kinds() == kinds
    kept = (tmp_path / "state/network/address-client").read_text()
    assert kept == ("192.0.2.20\n" if confirms else "192.0.2.21\n")


def test_addresses_that_cannot_be_kept(
    responder: DhcpResponder, clients: list[DhcpClient], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A machine has its lease though its state cannot be written, which is said."""
    (tmp_path / "state/network/address-client").mkdir(parents=True)
    config = MachineConfig(interfaces=(Interface(name="client", dhcp=True),))
    network = MachineNetwork(config, str(tmp_path / "resolv.conf"), str(tmp_path / "state"))
    play(network, responder, lambda: clients and clients[0].state == BOUND)
    assert responder.kinds() == [DISCOVER, REQUEST]
    line = "minit: network: address-client is not kept: failed to write"
    assert line in capfd.readouterr().err


def test_no_server(wire: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Apps start after a time if no server answers, with a message."""
    network = connect(tmp_path, Interface(name="client", dhcp=True, wait_seconds=1))
    assert capfd.readouterr().err == "minit: interface client: no answer from a DHCP server after 1 s\n"
    assert network.deadline is not None


def test_no_interface(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An interface that is not there is said, and connected when it comes."""
    network = connect(tmp_path, Interface(name="late", addresses=("192.0.2.9/24",), wait_seconds=1))
    assert capfd.readouterr().err == "minit: interface late: not there after 1 s\n"
    run("ip", "link", "add", "late", "type", "veth", "peer", "name", "other")
    network.turn()
    assert "192.0.2.9/24" in run("ip", "-4", "address", "show", "late")
    run("ip", "link", "del", "late")
