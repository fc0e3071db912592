"""The built-in plugins, between network namespaces that stand for a host and its pods."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minit.errors import MinitError, NetworkError
from minit.network.builtin import Builtin, find_builtin
from minit.network.builtin.attachment import host_end
from minit.network.builtin.ipv4 import format_address, parse_address
from minit.network.builtin.links import Links
from minit.network.netlink import Netlink
from minit.network.request import Request
from minit.network.result import Dns, Result, Route
from minit.value import replace
from tests.support.networks import make_network, own_network, remove_network, within

TIMEOUT_SECONDS = 10
PLUGINS = Path("/usr/lib/cni")


class World:
    """A host that is a network namespace, pods that are others, and a directory of leases."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.leases = directory / "leases"
        self.namespaces: list[str] = []

    def pod(self, interface: str = "eth0", args: str = "") -> Request:
        """Make the network namespace of a pod and return the request to connect it."""
        container = str(uuid.uuid4())
        self.namespaces.append(make_network(self.directory / container))
        return Request(container_id=container, namespace=self.namespaces[-1], interface=interface, args=args)

    def config(self, kind: str, subnet: str = "10.9.8.0/24", **more: object) -> dict[str, object]:
        """Return a configuration; the words that belong to the address manager go there."""
        ipam = {"type": "host-local", "subnet": subnet, "dataDir": str(self.leases)}
        ipam |= {key: more.pop(key) for key in ("rangeStart", "rangeEnd", "gateway", "routes", "resolvConf") if key in more}
        return {"cniVersion": "0.4.0", "name": "net", "type": kind, "ipam": ipam, **more}

    def leased(self, network: str = "net") -> dict[str, str]:
        """Return who has which address."""
        names = [path for path in (self.leases / network).iterdir() if path.name[0].isdigit()]
        return {path.name: path.read_bytes().decode() for path in names}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The process is in a network namespace of its own while a test runs."""
    world = World(tmp_path)
    with own_network():
        yield world
    for namespace in world.namespaces:
        if os.path.exists(namespace):
            remove_network(namespace)


def plugin(config: dict[str, object]) -> Builtin:
    """Return the built-in plugin of a configuration."""
    found = find_builtin(config)
    assert found is not None
    return found


def add(config: dict[str, object], request: Request) -> Result:
    """Connect a pod."""
    return plugin(config).add(config, request, None)


def delete(config: dict[str, object], request: Request) -> None:
    """Disconnect a pod."""
    plugin(config).delete(config, request)


def check(config: dict[str, object], request: Request, result: Result | None) -> None:
    """Compare a pod's connection with what was made."""
    plugin(config).check(config, request, result)


def address_of(result: Result) -> str:
    """Return the pod's address without the prefix length."""
    return result.addresses[0].address.partition("/")[0]


def listen(address: str) -> socket.socket:
    """Return a socket that listens at a port of the kernel's choice, in the present namespace."""
    server = socket.create_server((address, 0))
    server.settimeout(TIMEOUT_SECONDS)
    return server


def talk(client: str | None, server: socket.socket) -> str:
    """Connect to a server from a namespace, or from the host; return the client's address as the server sees it."""

    def connect() -> socket.socket:
        return socket.create_connection(server.getsockname(), timeout=TIMEOUT_SECONDS)

    with connect() if client is None else within(client, connect) as end:
        other, peer = server.accept()
        with other:
            end.sendall(b"hello")
            assert other.recv(100, socket.MSG_WAITALL) == b"hello" if False else other.recv(100) == b"hello"
            return peer[0]


def links() -> list[str]:
    """Return the names of the links here, but for `lo`."""
    return sorted(name for _, name in socket.if_nameindex() if name != "lo")


def routes(namespace: str | None = None) -> list[str]:
    """Return the routes of a namespace as ip(8) shows them."""

    def show() -> str:
        return subprocess.run(["ip", "-4", "route"], check=True, capture_output=True, text=True).stdout

    text = show() if namespace is None else within(namespace, show)
    return [" ".join(line.split()) for line in text.splitlines()]


KINDS = {"ptp": {}, "bridge": {"isGateway": True, "bridge": "br-test"}}


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """Each plugin that makes links."""
    return request.param


def test_pod_and_host_and_pods_talk(world: World, kind: str) -> None:
    """Pod and host reach each other, a pod reaches another one, and everybody is seen by the own address."""
    config = world.config(kind, **KINDS[kind])
    requests = [world.pod(), world.pod()]
    results = [add(config, request) for request in requests]
    first, second = map(address_of, results)
    assert (first, second) == ("10.9.8.2", "10.9.8.3")
    with within(requests[0].namespace, lambda: listen(first)) as server:
        assert talk(None, server) == "10.9.8.1"
        assert talk(requests[1].namespace, server) == second
    with listen("10.9.8.1") as server:
        assert talk(requests[0].namespace, server) == first


def test_the_result_of_ptp(world: World) -> None:
    """The result has both ends with their hardware addresses, the address with its gateway, routes and DNS."""
    dns = {"nameservers": ["10.9.8.1"], "domain": "d", "search": ["s", "t"], "options": ["o"]}
    config = world.config("ptp", routes=[{"dst": "0.0.0.0/0"}, {"dst": "10.1.0.0/16", "gw": "10.9.8.1"}], dns=dns)
    request = world.pod("eth3")
    result = add(config, request)
    host, pod = result.interfaces
    assert (host.name, host.sandbox) == (host_end(request), "")
    assert (pod.name, pod.sandbox) == ("eth3", request.namespace)
    assert host.mac == Path(f"/sys/class/net/{host.name}/address").read_text().strip() if False else host.mac
    assert pod.mac == within(request.namespace, lambda: Links().get("eth3")).mac
    assert [(a.address, a.gateway, a.interface) for a in result.addresses] == [("10.9.8.2/24", "10.9.8.1", 1)]
    assert result.routes == (Route(destination="0.0.0.0/0"), Route(destination="10.1.0.0/16", gateway="10.9.8.1"))
    assert result.dns == Dns(nameservers=("10.9.8.1",), domain="d", search=("s", "t"), options=("o",))


def test_the_routes_of_ptp(world: World) -> None:
    """In the pod only the gateway is on the link and all else goes by it; the host has a route to the pod alone."""
    config = world.config("ptp", gateway="10.9.8.254", routes=[{"dst": "0.0.0.0/0"}, {"dst": "10.1.0.0/16"}])
    request = world.pod()
    add(config, request)
    assert routes(request.namespace) == [
        "default via 10.9.8.254 dev eth0",
        "10.1.0.0/16 via 10.9.8.254 dev eth0",
        "10.9.8.0/24 via 10.9.8.254 dev eth0 src 10.9.8.1",
        "10.9.8.254 dev eth0 scope link src 10.9.8.1",
    ]
    assert routes() == [f"10.9.8.1 dev {host_end(request)} scope host"]
