"""The plugin dhcp behind a bridge, with busybox's server on it; the present namespace stands for the host."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from pyroute2.netlink.rtnl import RTMGRP_IPV4_IFADDR, RTMGRP_LINK

from minit.base.errors import NetworkError
from minit.base.value import replace
from minit.linux.loop import wait_readable
from minit.network.dhcp import podlease
from minit.network.dhcp.podlease import find_record
from minit.network.netlink.links import Links
from minit.network.netlink.transport import KernelEvents
from minit.network.pluginrequests import PluginRequests, PluginSearch
from minit.network.protocol import Dns, Request, Result, write_result
from tests.support.builtins import call_builtin
from tests.support.campaign import LONG
from tests.support.dhcpserver import ADDRESS, BRIDGE, DhcpServer, run
from tests.support.effects import each_failure, killed_child
from tests.support.linkkinds import need_kind
from tests.support.networks import make_network, own_network, remove_network, within
from tests.support.pods import BUSYBOX
from tests.support.waiting import TIMEOUT_SECONDS, wait_for

Config = dict[str, object]

STEPS = 1 if LONG else 9
"""The distance of the steps at which a campaign stops ADD: each time takes a second."""


class World:
    """A host with a bridge, a machine with a DHCP server on it, and pods."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.server = DhcpServer(directory)
        self.log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.log.bind(podlease.SYSTEM_LOG)
        self.log.settimeout(TIMEOUT_SECONDS)
        self._namespaces: list[str] = []
        self._keepers: list[int] = []

    def pod(self) -> Request:
        """Make the network namespace of a pod and return the request to connect it."""
        container = str(uuid.uuid4())
        self._namespaces.append(make_network(self.directory / container))
        return Request(container_id=container, namespace=self._namespaces[-1], interface="eth0")

    def config(self, **ipam: object) -> Config:
        """Return a configuration; the words belong to the address manager."""
        return {
            "cniVersion": "1.0.0",
            "name": "net",
            "type": "bridge",
            "bridge": BRIDGE,
            "ipam": {"type": "dhcp", **ipam},
        }

    def add(self, config: Config, request: Request) -> Result:
        """Connect a pod, and know of the process that keeps its lease."""
        result = call_builtin("ADD", "bridge", config, request)
        self._keepers += [keeper] if (keeper := keeper_of(request)) else []
        return result

    def remove(self) -> None:
        """Take all of it away."""
        self.log.close()
        self.server.remove()
        for namespace in self._namespaces:
            if os.path.exists(namespace):
                remove_network(namespace)
        for pid in self._keepers:
            # Children of this process: nobody else has the number.
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The process is in a network namespace of its own while a test runs."""
    monkeypatch.setattr(podlease, "DIRECTORY", str(tmp_path / "records"))
    monkeypatch.setattr(podlease, "SYSTEM_LOG", str(tmp_path / "log"))
    with own_network():
        world = World(tmp_path)
        yield world
        world.remove()


def delete(config: Config, request: Request) -> None:
    """Disconnect a pod."""
    call_builtin("DEL", "bridge", config, request)


def check(config: Config, request: Request, result: Result) -> None:
    """Compare a pod's connection with what was made."""
    call_builtin("CHECK", "bridge", config, request, result)


def keeper_of(request: Request) -> int | None:
    """Return the process that keeps a pod's lease."""
    record = find_record("net", request)
    if record is None:
        return None
    with record:
        return record.keeper()


def recorded(world: World) -> list[str]:
    """Return the names of all records."""
    return sorted(path.name for path in (world.directory / "records").glob("net/*"))


def address_of(result: Result) -> str:
    """Return the pod's address without the prefix length."""
    return str(result.addresses[0].address.ip)


def addresses(request: Request, *, leased: bool = False) -> list[str]:
    """Return the IPv4 addresses of a pod, or only those with an end."""

    def look() -> list[str]:
        with Links() as links:
            present = links.addresses(links.get("eth0"), leased=leased)
        return [str(address) for address in present if address.version == 4]

    return within(request.namespace, look)


def left_seconds(request: Request) -> int:
    """Return how long the address of a pod is its own."""
    shown = run("nsenter", f"--net={request.namespace}", "ip", "-4", "address", "show", "eth0")
    [seconds] = [line.split()[1] for line in shown.splitlines() if "valid_lft" in line]
    return int(seconds.removesuffix("sec"))


def within_events(request: Request) -> KernelEvents:
    """Return the events of a pod's network."""
    return within(request.namespace, lambda: KernelEvents(RTMGRP_LINK | RTMGRP_IPV4_IFADDR))


def links() -> list[str]:
    """Return the names of the pods' ends here."""
    return sorted(name for _, name in socket.if_nameindex() if name.startswith("veth"))


def await_end(pid: int) -> None:
    """Wait for the end of a process."""
    pidfd = os.pidfd_open(pid)
    assert wait_readable([pidfd], TIMEOUT_SECONDS)
    os.close(pidfd)


def kill(pid: int | None) -> None:
    """Kill a process and wait for its end."""
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await_end(pid)


@pytest.mark.parametrize("ipam", [{}, {"type": "dhcp"}], ids=["without addresses", "dhcp"])
def test_a_client_of_the_pod(world: World, ipam: Config) -> None:
    """A program of a pod on a bridge gets a lease by itself."""
    world.server.start(last="192.0.2.21")
    config, request = {**world.config(), "ipam": ipam}, world.pod()
    world.add(config, request)
    client = (BUSYBOX, "udhcpc", "-i", "eth0", "-f", "-q", "-n", "-t", "30", "-T", "1", "-s", "/bin/true")
    words = ("nsenter", f"--net={request.namespace}", *map(str, client))
    done = subprocess.run(words, capture_output=True, text=True)
    assert f"obtained from {ADDRESS}" in done.stderr
    delete(config, request)


def test_the_life_of_a_lease(world: World) -> None:
    """The pod has address and routes, a process of its own keeps the lease, and afterwards another pod gets it."""
    world.server.start(f"router {ADDRESS}")
    config, request = world.config(), world.pod()
    result = world.add(config, request)
    [address] = result.addresses
    assert (str(address.address), str(address.gateway), address.interface) == ("192.0.2.20/24", ADDRESS, 2)
    assert [(str(route.destination), str(route.gateway)) for route in result.routes] == [("0.0.0.0/0", ADDRESS)]
    assert result.dns == Dns()
    assert addresses(request) == ["192.0.2.20/24"]
    keeper = keeper_of(request)
    assert keeper is not None
    assert os.readlink(f"/proc/{keeper}/ns/net") == within(request.namespace, lambda: os.readlink("/proc/self/ns/net"))
    assert Path(f"/proc/{keeper}/comm").read_text() == "minit-dhcp\n"
    check(config, request, result)
    delete(config, request)
    assert not os.path.exists(f"/proc/{keeper}")
    assert (recorded(world), links()) == ([], [])
    other = world.pod()
    assert address_of(world.add(config, other)) == "192.0.2.20"
    delete(config, other)
    delete(config, other)


def test_the_address_ends_with_the_lease(world: World) -> None:
    """The kernel knows when, so that nobody has to live for it."""
    world.server.start(lease=1000)
    config, request = world.config(), world.pod()
    world.add(config, request)
    wait_for(lambda: addresses(request, leased=True) == ["192.0.2.20/24"], "the end of the address")
    assert 900 < left_seconds(request) <= 1000
    delete(config, request)


def test_a_lease_is_renewed(world: World) -> None:
    """When the time has come the server is asked again, and the address gets more time."""
    world.server.start("0x3a 00000001", lease=20)
    config, request = world.config(), world.pod()
    with within_events(request) as events:
        world.add(config, request)
        wait_for(lambda: addresses(request, leased=True) == ["192.0.2.20/24"], "the end of the address")
        events.drop()
        # Nobody else changes anything there.
        assert wait_readable([events.fileno()], TIMEOUT_SECONDS)
    assert left_seconds(request) > 15
    delete(config, request)


def test_a_server_that_vanishes(world: World) -> None:
    """When the lease has run out the address is gone, CHECK and the log of the system say why, and DEL works."""
    world.server.start("0x3a 00000001", "0x3b 00000002", lease=10)
    config, request = world.config(), world.pod()
    result = world.add(config, request)
    keeper = keeper_of(request)
    world.server.stop()
    assert keeper is not None
    await_end(keeper)
    assert addresses(request) == []
    loss = "the lease of 192.0.2.20 is lost: no DHCP server has renewed it"
    assert world.log.recv(1024).decode() == f"<27>minit: {request.container_id}:eth0: {loss}"
    with pytest.raises(NetworkError, match=f"^interface eth0: {loss}$"):
        check(config, request, result)
    delete(config, request)
    assert recorded(world) == []


def test_a_server_that_refuses(world: World) -> None:
    """An address that the server does not give any more is gone at once."""
    # A pod that asks while there is no server asks all servers ten seconds after the lease began.
    world.server.start("0x3a 00000001", "0x3b 0000000a")
    config, request = world.config(), world.pod()
    result = world.add(config, request)
    keeper = keeper_of(request)
    world.server.stop()
    with within(world.server.namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as server:
        server.bind(("", 67))
        server.settimeout(TIMEOUT_SECONDS)
        asked, client = server.recvfrom(1024)
        assert client == ("192.0.2.20", 68)
        # The same transaction and client, message type 6, this server.
        server.sendto(b"\2" + asked[1:240] + b"\x35\1\6\x36\4\xc0\0\2\1\xff", client)
    assert keeper is not None
    await_end(keeper)
    assert addresses(request) == []
    with pytest.raises(NetworkError, match="192.0.2.20 is lost: a DHCP server refused to renew it$"):
        check(config, request, result)
    delete(config, request)


def test_pods_are_told_apart(world: World) -> None:
    """Each has an address and a process of its own, and one that is lost is not the other's."""
    world.server.start(last="192.0.2.21")
    config, requests = world.config(), [world.pod(), world.pod()]
    results = [world.add(config, request) for request in requests]
    assert sorted(map(address_of, results)) == ["192.0.2.20", "192.0.2.21"]
    assert len({keeper_of(request) for request in requests}) == 2
    delete(config, requests[0])
    check(config, requests[1], results[1])
    with pytest.raises(NetworkError, match="^interface eth0 exists already"):
        world.add(config, requests[1])
    check(config, requests[1], results[1])
    delete(config, requests[1])


def test_a_lease_of_an_interface_that_has_one(world: World) -> None:
    """It is refused, and the first one stays."""
    world.server.start()
    config, request = world.config(), world.pod()
    world.add(config, request)
    with pytest.raises(NetworkError, match='^eth0 has a lease in network "net" already$'):
        call_builtin("ADD", "dhcp", config, request)
    assert keeper_of(request) is not None
    delete(config, request)


def test_a_killed_keeper(world: World) -> None:
    """CHECK says that nobody renews the lease, which DEL gives back all the same."""
    world.server.start()
    config, request = world.config(), world.pod()
    result = world.add(config, request)
    kill(keeper_of(request))
    with pytest.raises(NetworkError, match="^interface eth0: nobody renews the lease: the process that did it died$"):
        check(config, request, result)
    delete(config, request)
    assert recorded(world) == []
    assert address_of(world.add(config, other := world.pod())) == "192.0.2.20"
    delete(config, other)


def test_a_link_that_vanishes(world: World) -> None:
    """Nobody keeps a lease that no interface has."""
    world.server.start()
    config, request = world.config(), world.pod()
    world.add(config, request)
    keeper = keeper_of(request)
    assert keeper is not None
    run("nsenter", f"--net={request.namespace}", "ip", "link", "delete", "eth0")
    await_end(keeper)
    delete(config, request)
    assert recorded(world) == []


def test_a_namespace_that_vanishes(world: World) -> None:
    """A network namespace that nobody can reach any more is not kept for a lease."""
    world.server.start("0x3a 00000001")
    config, request = world.config(), world.pod()
    world.add(config, request)
    keeper = keeper_of(request)
    assert keeper is not None
    remove_network(request.namespace)
    await_end(keeper)
    wait_for(lambda: links() == [], "the end of the link")
    delete(config, replace(request, namespace=""))
    assert recorded(world) == []


def test_no_server(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer in time there is one line, and nothing is left."""
    monkeypatch.setattr(podlease, "TIMEOUT_SECONDS", 0.5)
    with pytest.raises(NetworkError, match="^interface eth0: no lease after 0.5 seconds: no DHCP server answers$"):
        world.add(world.config(), world.pod())
    assert (recorded(world), links()) == ([], [])


def test_an_address_that_is_in_use(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names whoever has it."""
    monkeypatch.setattr(podlease, "TIMEOUT_SECONDS", 3.0)
    run("nsenter", f"--net={world.server.namespace}", "ip", "address", "add", "192.0.2.20/24", "dev", "server")
    world.server.start()
    with pytest.raises(NetworkError, match=r"^interface eth0: no lease .*: 192\.0\.2\.20 is in use by [0-9a-f:]{17}$"):
        world.add(world.config(), world.pod())
    assert (recorded(world), links()) == ([], [])


def test_a_pod_that_is_not_wanted_any_more(world: World) -> None:
    """Nobody waits for a server then."""
    reader, writer = os.pipe()
    os.close(writer)
    requests = PluginRequests(PluginSearch((), "/image"), world.pod(), "1.0.0", "net.conf", cancelled=reader)
    with pytest.raises(NetworkError, match="^interface eth0: no lease: the pod is not wanted any more$"):
        requests.make_of_builtin("ADD", "bridge", world.config())
    os.close(reader)
    assert (recorded(world), links()) == ([], [])


def test_routes_and_name_servers_of_the_server(world: World) -> None:
    """Routes without classes take the place of the router's; name servers are taken if they are asked for."""
    routes = "staticroutes 10.1.0.0/16 192.0.2.3,10.2.0.0/16 0.0.0.0"
    world.server.start(f"router {ADDRESS}", "dns 192.0.2.53", "domain lan", routes)
    config, request = world.config(priority=7), world.pod()
    result = world.add(config, request)
    told = [(str(one.destination), str(one.gateway), one.scope, one.priority) for one in result.routes]
    assert told == [("10.1.0.0/16", "192.0.2.3", None, 7), ("10.2.0.0/16", "None", 253, 7)]
    shown = run("nsenter", f"--net={request.namespace}", "ip", "-4", "route")
    assert [line.strip() for line in shown.splitlines()][:2] == [
        "10.1.0.0/16 via 192.0.2.3 dev eth0 metric 7",
        "10.2.0.0/16 dev eth0 scope link metric 7",
    ]
    assert result.dns == Dns()
    check(config, request, result)
    delete(config, request)
    config = world.config(request=[{"option": "6"}, {"option": "15"}])
    result = world.add(config, request)
    assert result.dns == Dns(nameservers=("192.0.2.53",), domain="lan")
    delete(config, request)


def test_a_network_without_neighbours(world: World) -> None:
    """The pod of ptp has nobody to ask."""
    config = {**world.config(), "type": "ptp"}
    with pytest.raises(
        NetworkError, match='^there is no interface eth0 yet: DHCP does not go with networks of type "p'
    ):
        call_builtin("ADD", "ptp", config, world.pod())
    assert (recorded(world), links()) == ([], [])


def test_collecting_what_is_no_more(world: World) -> None:
    """GC ends the leases of the network that nobody has, and no other."""
    world.server.start(last="192.0.2.21")
    config, requests = world.config(), [world.pod(), world.pod()]
    for request in requests:
        world.add(config, request)
    keepers = [keeper_of(request) for request in requests]
    valid = [{"containerID": requests[1].container_id, "ifname": "eth0"}]
    call_builtin("GC", "bridge", {**config, "cniVersion": "1.1.0", "cni.dev/valid-attachments": valid}, requests[0])
    assert not os.path.exists(f"/proc/{keepers[0]}")
    assert recorded(world) == [f"{requests[1].container_id}:eth0"]
    assert keeper_of(requests[1]) == keepers[1]
    for request in requests:
        delete(config, request)


@pytest.mark.parametrize("kind", ["macvlan", "ipvlan"])
def test_pods_on_a_link_of_the_host(world: World, kind: str) -> None:
    """They ask by their own links, be their hardware address the same, and DEL gives back before it removes them."""
    need_kind(kind)
    world.server.start(f"router {ADDRESS}", "0x3a 00000001", last="192.0.2.21", lease=20)
    config, requests = {**world.config(), "type": kind, "master": BRIDGE}, [world.pod(), world.pod()]
    for _ in range(2):
        results = [call_builtin("ADD", kind, config, request) for request in requests]
        assert sorted(map(address_of, results)) == ["192.0.2.20", "192.0.2.21"]
        for request, result in zip(requests, results):
            own = [str(one.address) for one in result.addresses]
            wait_for(partial(is_limited, request, own), "the end of the address")
            with within_events(request) as events:
                assert wait_readable([events.fileno()], TIMEOUT_SECONDS)  # it is renewed
            call_builtin("CHECK", kind, config, request, result)
        for request in requests:
            call_builtin("DEL", kind, config, request)
            assert within(request.namespace, lambda: [name for _, name in socket.if_nameindex()]) == ["lo"]
        assert recorded(world) == []


def is_limited(request: Request, own: list[str]) -> bool:
    """Tell whether a pod has these addresses, and all with an end."""
    return addresses(request) == addresses(request, leased=True) == own


REFERENCE = Path("/usr/lib/cni/dhcp")


@pytest.fixture
def daemon(world: World) -> Iterator[str]:
    """The reference plugin's daemon, and the path of its socket."""
    path = str(world.directory / "daemon.sock")
    process = subprocess.Popen([REFERENCE, "daemon", "-socketpath", path], stderr=subprocess.DEVNULL)
    wait_for(lambda: os.path.exists(path), "the daemon")
    yield path
    process.kill()
    process.wait()


@pytest.mark.skipif(not REFERENCE.exists(), reason="needs the reference plugins")
@pytest.mark.parametrize(
    ("options", "ipam"),
    [
        ((f"router {ADDRESS}",), {}),
        ((), {}),
        ((f"router {ADDRESS}", "dns 192.0.2.53", "domain lan"), {}),
        ((f"router {ADDRESS}", "0x21 0a000000c0000202"), {"request": [{"option": "33"}]}),
        ((f"router {ADDRESS}", "staticroutes 10.1.0.0/16 192.0.2.3"), {"request": [{"option": "121"}]}),
    ],
)
def test_the_result_is_that_of_the_reference_plugin(
    world: World, daemon: str, options: tuple[str, ...], ipam: dict[str, object]
) -> None:
    """One configuration and one server give the same address, gateway, routes and name servers."""
    world.server.start(*options)
    config = world.config(daemonSocketPath=daemon, **ipam)
    answers = []
    for is_reference in (True, False):
        request = world.pod()
        run("ip", "link", "add", "end", "type", "veth", "peer", "name", "eth0", "netns", request.namespace)
        run("ip", "link", "set", "end", "master", BRIDGE, "up")
        if is_reference:
            answers.append(reference("ADD", config, request))
            reference("DEL", config, request)
        else:
            answers.append(write_result(call_builtin("ADD", "dhcp", config, request), "1.0.0"))
            call_builtin("DEL", "dhcp", config, request)
        run("ip", "link", "delete", "end")
    assert answers[1] == answers[0]


def reference(command: str, config: Config, request: Request) -> object:
    """Run the reference plugin."""
    variables = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": request.container_id,
        "CNI_NETNS": request.namespace,
        "CNI_IFNAME": request.interface,
        "CNI_PATH": str(REFERENCE.parent),
    }
    done = subprocess.run([REFERENCE], env=variables, input=json.dumps(config), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout or "null")


@pytest.mark.timeout(600)
def test_killed_at_any_step_of_add(world: World) -> None:
    """Whenever ADD is killed, DEL finds all that it left, the lease on the server too."""
    world.server.start()
    config, request = world.config(), world.pod()

    def attempt() -> None:
        with suppress(NetworkError):  # of a keeper that is killed at the same step
            call_builtin("ADD", "bridge", config, request)

    step = 1
    while killed_child(attempt, step):
        delete(config, request)
        assert (recorded(world), links()) == ([], [])
        step += STEPS
    assert step > 20
    delete(config, request)
    assert (recorded(world), links()) == ([], [])
    # The server may have lost the message that the lease is over, and has no address for anybody else then.
    assert address_of(world.add(config, request)) == "192.0.2.20"
    delete(config, request)


@pytest.mark.timeout(600)
def test_killed_at_any_step_of_delete(world: World) -> None:
    """Whenever DEL is killed, another DEL finishes it."""
    world.server.start()
    config, request = world.config(), world.pod()
    step, killed = 1, True
    while killed:
        world.add(config, request)
        killed = killed_child(lambda: delete(config, request), step)
        delete(config, request)
        assert (recorded(world), links()) == ([], [])
        step += 1
    assert step > 8


@pytest.mark.timeout(600)
def test_failing_at_any_step_of_add(world: World) -> None:
    """Whichever step of ADD fails, nothing is left and the error is one line."""
    world.server.start()
    config, request = world.config(), world.pod()

    runs = 0
    for error in each_failure(lambda: call_builtin("ADD", "bridge", config, request), stride=STEPS):
        # The keeper fails at the step of this number, too, and then so does this process, which undoes its work.
        is_twice = error is not None and ("keeps the lease died" in error or "no lease after" in error)
        assert error is None or is_twice or (recorded(world), links()) == ([], [])
        delete(config, request)
        assert (recorded(world), links()) == ([], [])
        runs += 1
    assert runs * STEPS > 20
