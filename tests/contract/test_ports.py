"""Ports of the host and neighbours of pods in networks of their own: who reaches whom."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.hostnet import leftovers
from tests.support.networks import within
from tests.support.pods import MakePod, PodDirectory, app_section

LOSS_SECONDS = 0.5


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Pods of any test leave nothing in the host's network once they are collected."""
    assert leftovers() == []
    yield
    assert leftovers() == []


@contextmanager
def running(pod: PodDirectory, *flags: str, net: str) -> Iterator[dict[str, str]]:
    """Let a pod run for a while and return what is known of its first network."""
    process = pod.start(*flags, net=net)
    try:
        pod.wait_ready()
        yield json.loads((pod.path / "net-info.json").read_text())[0]
    finally:
        process.terminate()
        pod.finish(process)
        assert pod.gc().returncode == 0


def sleeper(**fields: Any) -> dict[str, Any]:
    """Return an app that does nothing."""
    return app_section("/bin/sleep", "1000", **fields)


def listener(namespace: str | None, port: int, address: str = "0.0.0.0") -> socket.socket:
    """Return a socket that listens in a pod's network, or in the host's."""

    def work() -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family)

    return work() if namespace is None else within(namespace, work)


def reaches(namespace: str | None, server: socket.socket, address: str, port: int) -> bool:
    """Tell whether a client in a pod's network, or in the host's, reaches a server by an address and a port."""

    def work() -> socket.socket:
        return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)

    with work() if namespace is None else within(namespace, work) as client:
        client.settimeout(LOSS_SECONDS)
        try:
            client.connect((address, port))
        except OSError:
            return False
        server.accept()[0].close()
        return True


def namespace_of(pod: PodDirectory) -> str:
    """Return the path of a pod's network namespace."""
    return f"/var/run/netns/cni-{pod.uuid}"


def test_neighbours(make_pod: MakePod) -> None:
    """Pods of `default` reach each other, and so do those of `default-restricted`; nobody reaches the other network."""
    networks = ["default", "default", "default-restricted", "default-restricted"]
    pods = [make_pod({"a": sleeper()}) for _ in networks]
    with ExitStack() as stack:
        known = [stack.enter_context(running(pod, net=net)) for pod, net in zip(pods, networks)]
        servers = [stack.enter_context(listener(namespace_of(pod), 80)) for pod in pods]
        for server, its, network in zip(servers, known, networks):
            assert reaches(None, server, its["ip"], 80)
            for pod, own, from_network in zip(pods, known, networks):
                if own != its:
                    assert reaches(namespace_of(pod), server, its["ip"], 80) == (from_network == network)


def test_the_hosts_loopback(make_pod: MakePod) -> None:
    """A pod does not reach what listens on it, be it that a port makes the kernel take such packets."""
    section = sleeper(ports=[{"name": "http", "protocol": "tcp", "port": 80}])
    pod = make_pod({"a": section}, ports=[{"name": "http", "hostPort": 8080}])
    with ExitStack() as stack:
        its = stack.enter_context(running(pod, net="default"))
        private = stack.enter_context(listener(None, 22, "127.0.0.1"))
        # As somebody in the pod could who may change its routes.
        commands = (
            "ip address flush dev lo",
            "ip route flush table local dev lo",
            "ip route add 127.0.0.1 via 172.16.28.1",
        )
        for command in commands:
            subprocess.run(["nsenter", f"--net={namespace_of(pod)}", *command.split()], check=True)
        within(namespace_of(pod), lambda: Path("/proc/sys/net/ipv4/conf/all/route_localnet").write_text("1"))
        for address in ("127.0.0.1", "172.16.28.1"):
            assert not reaches(namespace_of(pod), private, address, 22)
        assert reaches(None, private, "127.0.0.1", 22)
        assert its["ip"]


RANGES = [[{"subnet": "10.99.30.0/24"}], [{"subnet": "fd00:1e::/64"}]]
GATEWAYS = {"0.0.0.0": "10.99.30.1", "::": "fd00:1e::1"}
ROUTES = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
IPAM = {"type": "host-local", "ranges": RANGES, "routes": ROUTES}
KINDS: dict[str, dict[str, Any]] = {
    "ptp": {"type": "ptp"},
    "bridge": {"type": "bridge", "bridge": "mtest0", "isGateway": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("every", GATEWAYS)
def test_ports_of_both_families(make_pod: MakePod, tmp_path: Path, kind: str, every: str) -> None:
    """All ports of a range are reached by the host's address and its loopback; one of the loopback by that alone."""
    config = {"cniVersion": "1.0.0", "name": "both", "ipMasq": True, "ipam": IPAM, **KINDS[kind]}
    (tmp_path / "net.d").mkdir()
    (tmp_path / "net.d" / "both.conf").write_text(json.dumps(config))
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}[every]
    section = sleeper(
        ports=[
            {"name": "many", "protocol": "tcp", "port": 80, "count": 3},
            {"name": "one", "protocol": "tcp", "port": 90},
        ]
    )
    ports = [{"name": "many", "hostPort": 8080}, {"name": "one", "hostPort": 8090, "hostIP": loopback}]
    pod = make_pod({"a": section}, ports=ports)
    with ExitStack() as stack:
        # By IPv6 the kernel drops answers to the loopback where bridged packets are filtered.
        stack.enter_context(unfiltered_bridges())
        stack.callback(subprocess.run, ["ip", "link", "delete", "mtest0"], stderr=subprocess.DEVNULL)
        stack.enter_context(running(pod, f"--local-config={tmp_path}", net="both"))
        for offset in range(3):
            with listener(namespace_of(pod), 80 + offset, every) as server:
                assert reaches(None, server, GATEWAYS[every], 8080 + offset)
                assert reaches(None, server, loopback, 8080 + offset)
                assert not reaches(None, server, loopback, 8083)
        with listener(namespace_of(pod), 90, every) as server:
            assert reaches(None, server, loopback, 8090)
            assert not reaches(None, server, GATEWAYS[every], 8090)


@contextmanager
def unfiltered_bridges() -> Iterator[None]:
    """Let packets that only cross a bridge of the host meet no rules."""
    setting = Path("/proc/sys/net/bridge/bridge-nf-call-ip6tables")
    before = setting.read_text() if setting.exists() else None
    if before is not None:
        setting.write_text("0")
    yield
    if before is not None:
        setting.write_text(before)


def test_a_port_of_a_family_that_the_pod_has_not(make_pod: MakePod) -> None:
    """The start fails with a line that names the network and the family."""
    section = sleeper(ports=[{"name": "http", "protocol": "tcp", "port": 80}])
    pod = make_pod({"a": section}, ports=[{"name": "http", "hostPort": 8080, "hostIP": "::1"}])
    result = pod.run(net="default")
    assert result.returncode == 254
    message = 'cannot forward ports: network "default" gave no IPv6 address and gateway'
    assert result.stderr.splitlines()[-1] == f"stage1: failed to setup network: {message}"
    assert pod.gc().returncode == 0
