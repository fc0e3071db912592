"""The built-in plugin flannel, which has the built-in bridge and ptp connect pods."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minit.base.errors import ManifestError, NetworkError
from minit.base.value import replace
from minit.network.builtin.attachment import host_end
from minit.network.protocol import Request, Result
from tests.support.builtins import call_builtin
from tests.support.effects import each_failure, killed_child
from tests.support.networks import make_network, own_network, remove_network, within

TEXT = "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=false\n"
TIMEOUT_SECONDS = 60


class World:
    """A host of a flannel network, and its pods."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.env = directory / "subnet.env"
        self.env.write_text(TEXT)
        self.data = directory / "data"
        self.namespaces: list[str] = []

    def config(self, name: str = "mynet", delegate: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return a configuration."""
        return {
            "cniVersion": "1.1.0",
            "name": name,
            "type": "flannel",
            "subnetFile": str(self.env),
            "dataDir": str(self.data),
            "ipam": {"dataDir": str(self.directory / "leases")},
            "delegate": delegate if delegate is not None else {"bridge": "br-flannel"},
        }

    def pod(self) -> Request:
        """Return the request of a new pod."""
        container = str(uuid.uuid4())
        self.namespaces.append(make_network(self.directory / container))
        return Request(container_id=container, namespace=self.namespaces[-1], interface="eth0")

    def kept(self) -> list[str]:
        """Return the files with what was delegated."""
        return sorted(path.name for path in self.data.glob("*"))

    def remains(self) -> tuple[list[str], list[str], list[str]]:
        """Return what there is of pods on the host: links, leases, files."""
        links = sorted(name for _, name in socket.if_nameindex() if name.startswith("veth"))
        leases = sorted(path.name for path in self.directory.glob("leases/*/*") if path.name[0].isdigit())
        return links, leases, self.kept()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The process is in a network namespace of its own while a test runs."""
    world = World(tmp_path)
    with own_network():
        yield world
    for namespace in world.namespaces:
        remove_network(namespace)


def ask(command: str, config: dict[str, Any], request: Request, previous: Result | None = None) -> Result:
    """Make a request of the plugin."""
    return call_builtin(command, "flannel", config, request, previous)


NOTHING: tuple[list[str], list[str], list[str]] = ([], [], [])


def test_pods_of_the_subnet(world: World) -> None:
    """Pods get addresses of this host's subnet and reach each other; DEL works twice, and without flannel's file."""
    requests = [world.pod(), world.pod()]
    results = [ask("ADD", world.config(), request) for request in requests]
    assert [str(result.addresses[0].address) for result in results] == ["10.1.17.2/24", "10.1.17.3/24"]
    assert [[str(route.destination) for route in result.routes] for result in results] == [["10.1.0.0/16"]] * 2
    assert world.kept() == sorted(request.container_id for request in requests)
    with within(requests[1].namespace, lambda: socket.create_server(("10.1.17.3", 0))) as server:
        address = server.getsockname()
        client = within(requests[0].namespace, lambda: socket.create_connection(address, TIMEOUT_SECONDS))
        client.close()
    for request, result in zip(requests, results):
        ask("CHECK", world.config(), request, result)
    world.env.unlink()
    for request in (requests[0], *requests):
        ask("DEL", world.config(), request)
    assert world.remains() == NOTHING
    with pytest.raises(NetworkError, match=f"{requests[0].container_id} is gone: it has how eth0 was attached$"):
        ask("CHECK", world.config(), requests[0], results[0])


def test_pods_of_both_families(world: World) -> None:
    """With subnets of both a pod has an address of each, and reaches others by either."""
    more = "FLANNEL_IPV6_NETWORK=fd00:1::/48\nFLANNEL_IPV6_SUBNET=fd00:1:0:17::1/64\n"
    world.env.write_text(TEXT + more)
    requests = [world.pod(), world.pod()]
    results = [ask("ADD", world.config(), request) for request in requests]
    assert [str(one.address) for one in results[1].addresses] == ["10.1.17.3/24", "fd00:1:0:17::3/64"]
    for address, family in (("10.1.17.3", socket.AF_INET), ("fd00:1:0:17::3", socket.AF_INET6)):
        with within(requests[1].namespace, partial(socket.create_server, (address, 0), family=family)) as server:
            connect = partial(socket.create_connection, server.getsockname()[:2], TIMEOUT_SECONDS)
            within(requests[0].namespace, connect).close()
    for request, result in zip(requests, results):
        ask("CHECK", world.config(), request, result)
        ask("DEL", world.config(), request)
    assert world.remains() == NOTHING


def test_another_plugin(world: World) -> None:
    """The type of the delegate decides who connects the pod."""
    request = world.pod()
    result = ask("ADD", world.config(delegate={"type": "ptp"}), request)
    assert [interface.name for interface in result.interfaces] == [host_end(request), "eth0"]
    assert json.loads((world.data / request.container_id).read_text())["type"] == "ptp"
    # As it was attached, whatever the configuration says now.
    ask("DEL", world.config(), request)
    assert world.remains() == NOTHING


def test_without_flannel(world: World) -> None:
    """The error says who writes the file; nothing is kept, and DEL finds nothing to do."""
    world.env.unlink()
    request = world.pod()
    missing = "subnet.env: no such file or directory: flannel writes it when it runs$"
    for command in ("ADD", "STATUS"):
        with pytest.raises(NetworkError, match=missing):
            ask(command, world.config(), request)
    ask("DEL", world.config(), request)
    assert world.remains() == NOTHING
    world.env.write_text(TEXT)
    ask("STATUS", world.config(), request)


def test_two_networks_of_a_pod(world: World) -> None:
    """The second one has a file of its own, and each is left by itself."""
    first, second = world.pod(), None
    second = replace(first, interface="eth1")
    ask("ADD", world.config(), first)
    world.env.write_text(TEXT.replace("10.1.", "10.2."))
    other = world.config("other", {"bridge": "br-other"})
    ask("ADD", other, second)
    assert world.kept() == [first.container_id, f"{first.container_id}-eth1"]
    ask("DEL", world.config(), first)
    assert world.remains() == ([host_end(second)], ["10.2.17.2"], [f"{first.container_id}-eth1"])
    ask("DEL", world.config(), first)
    ask("DEL", other, second)
    assert world.remains() == NOTHING


def test_deleting_without_the_namespace(world: World) -> None:
    """Links, lease and file go even if nobody knows the pod's namespace any more."""
    (world.directory / "file").touch()
    for namespace in ("", "/nowhere", str(world.directory / "file")):
        request = world.pod()
        ask("ADD", world.config(), request)
        ask("DEL", world.config(), replace(request, namespace=namespace))
        assert world.remains() == NOTHING


def test_a_file_that_is_broken(world: World) -> None:
    """DEL says so once; another ADD does not mind."""
    request = world.pod()
    world.data.mkdir()
    (world.data / request.container_id).write_text("{")
    with pytest.raises(ManifestError, match=f"^{world.data}/{request.container_id}: "):
        ask("DEL", world.config(), request)
    ask("DEL", world.config(), request)
    (world.data / request.container_id).write_text("{")
    ask("ADD", world.config(), request)
    ask("DEL", world.config(), request)
    assert world.remains() == NOTHING


def test_a_delegate_that_fails_to_delete(world: World) -> None:
    """The file stays, so that another DEL can do the rest."""
    request = world.pod()
    ask("ADD", world.config(), request)
    leases = world.directory / "leases/mynet"
    leases.rename(world.directory / "moved")
    leases.touch()
    with pytest.raises(NetworkError, match="^leases: .*: not a directory$"):
        ask("DEL", world.config(), request)
    assert world.kept() == [request.container_id]
    leases.unlink()
    (world.directory / "moved").rename(leases)
    ask("DEL", world.config(), request)
    assert world.remains() == NOTHING


def test_another_add_of_what_is_there(world: World) -> None:
    """It is refused, and the first attachment stays whole, with its file."""
    request = world.pod()
    result = ask("ADD", world.config(), request)
    before = (world.data / request.container_id).read_bytes()
    world.env.write_text(TEXT.replace("1472", "1400"))
    with pytest.raises(NetworkError, match="^eth0 has the address 10.1.17.2 in network"):
        ask("ADD", world.config(), request)
    assert (world.data / request.container_id).read_bytes() == before
    ask("CHECK", world.config(), request, result)


def test_attachments_that_are_no_more(world: World) -> None:
    """GC gives back what they had, and touches neither others nor files of another network."""
    stays, gone = world.pod(), world.pod()
    for request in (stays, gone):
        ask("ADD", world.config(), request)
    (world.data / "foreign").write_text('{"name": "other", "type": "bridge"}')
    (world.data / "half.new").write_text("{")
    valid = [{"containerID": stays.container_id, "ifname": "eth0"}]
    for _ in range(2):
        ask("GC", {**world.config(), "cni.dev/valid-attachments": valid}, replace(gone, container_id="", interface=""))
        _, leases, files = world.remains()
        assert leases == ["10.1.17.2"]
        assert files == sorted((stays.container_id, "foreign", "half.new"))


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_killed_at_any_step(world: World, command: str) -> None:
    """Whenever ADD or DEL is killed, another DEL leaves nothing."""
    request = world.pod()
    step, killed = 1, True
    while killed:
        if command == "DEL":
            ask("ADD", world.config(), request)
        killed = killed_child(lambda: ask(command, world.config(), request), step)
        ask("DEL", world.config(), request)
        assert world.remains() == NOTHING
        step += 1
    assert step > 10


def test_failing_at_any_step_of_add(world: World) -> None:
    """Whichever step of ADD fails, nothing is left and the error is one line."""
    request = world.pod()

    failures = 0
    for error in each_failure(lambda: ask("ADD", world.config(), request)):
        if error is not None:
            assert "annot allocate memory" in error
            failures += 1
            assert [path for path in world.remains() if path] == []
        ask("DEL", world.config(), request)
        assert world.remains() == NOTHING
    assert failures > 10
