"""Ports of the host that lead to pods of a topology, whose directories are there and locked."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from minit.base.errors import NetworkError
from minit.network.packetfilter.forwarding import Target, forward_ports, ports_of, stop_forwarding
from minit.network.packetfilter.portuse import refuse_taken_ports
from minit.network.packetfilter.tables import ports_table
from minit.plan.networks.networkplan import ForwardedPort
from tests.support.topology import GATEWAY, GATEWAY6, POD, Topology, ipv6_of


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
        targets = [
            Target(address=ip_address(address), gateway=ip_address(GATEWAY)),
            Target(address=ip_address(ipv6_of(address)), gateway=ip_address(GATEWAY6)),
        ]
        self.topology.host.do(lambda: forward_ports(table, ports, targets))
        return table

    def refusal(self, *ports: ForwardedPort, pod: str | None = None) -> str:
        """Return why ports cannot be forwarded, which changes nothing."""
        before = self.topology.rules()
        table = ports_table(pod or self.own)
        with pytest.raises(NetworkError) as early:
            self.topology.host.do(lambda: refuse_taken_ports([*ports_of(ports, 4), *ports_of(ports, 6)], table))
        with pytest.raises(NetworkError) as late:
            self.forward(*ports, pod=pod)
        assert str(early.value) == str(late.value)
        assert self.topology.rules() == before
        return str(late.value)

    def delete(self, table: str) -> None:
        """Forward nothing any more by tables of the host."""
        self.topology.host.do(lambda: stop_forwarding(table))


@contextlib.contextmanager
def make_pods(topology: Topology, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pods]:
    """Make pod directories for the length of a with block, the working directory being that of a pod which runs."""
    pods = Pods(topology, directory, monkeypatch)
    try:
        yield pods
    finally:
        for name in list(pods.locks):
            pods.end(name)


def port(
    protocol: str = "tcp", host_port: int = 8080, pod_port: int = 80, host_ip: str | None = None, count: int = 1
) -> ForwardedPort:
    """Return a forwarded port."""
    address = None if host_ip is None else ip_address(host_ip)
    return ForwardedPort(protocol=protocol, host_port=host_port, pod_port=pod_port, host_ip=address, count=count)
