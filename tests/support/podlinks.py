"""A host, pods and a neighbour for plugins whose link is in the pod alone; each is a network namespace."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minit.network.netlink.links import Links
from minit.network.netlink.messages import Link
from minit.network.protocol import Request, Result
from tests.support.builtins import call_builtin
from tests.support.networks import make_network, own_network, remove_network, within

MAC = "02:00:00:00:05:01"
SUBNETS = [[{"subnet": "10.5.0.0/24", "rangeStart": "10.5.0.2"}], [{"subnet": "fd00:5::/64"}]]
ROUTES = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "10.77.0.0/16", "gw": "10.5.0.9"}]
OWN_CONFIG: dict[str, dict[str, Any]] = {
    "dummy": {},
    "host-device": {"device": "up0"},
    "ipvlan": {"master": "up0"},
    "ipvlan-l3": {"type": "ipvlan", "master": "up0", "mode": "l3"},
    "macvlan": {"master": "up0"},
    "vlan": {"master": "up0", "vlanId": 7},
}
Config = dict[str, Any]


class World:
    """A host whose link `up0` leads to a neighbour, pods, and a directory of leases."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.leases = directory / "leases"
        self.namespaces: list[str] = []
        self.neighbour = self.namespace("neighbour")
        command = f"ip link add up0 address {MAC} type veth peer name far netns {self.neighbour}"
        run(*command.split())
        run("ip", "link", "set", "up0", "up")
        run("ip", "address", "add", "10.5.0.1/24", "dev", "up0")
        run("ip", "route", "add", "default", "via", "10.5.0.254")
        self.at_neighbour("ip", "link", "set", "far", "up")

    def namespace(self, name: str) -> str:
        """Make a network namespace, in which duplicate addresses are not looked for."""
        self.namespaces.append(make_network(self.directory / name))
        within(self.namespaces[-1], lambda: set_default("accept_dad", "0"))
        return self.namespaces[-1]

    def pod(self, args: str = "") -> Request:
        """Make the network namespace of a pod and return the request to connect it."""
        container = str(uuid.uuid4())
        return Request(container_id=container, namespace=self.namespace(container), interface="eth0", args=args)

    def config(self, kind: str, **more: Any) -> Config:
        """Return a configuration with addresses of both families."""
        ipam = {"type": "host-local", "ranges": SUBNETS, "routes": ROUTES, "dataDir": str(self.leases)}
        return {"cniVersion": "1.0.0", "name": "net", "type": kind, "ipam": ipam, **OWN_CONFIG[kind], **more}

    def leased(self) -> list[str]:
        """Return the addresses that somebody has."""
        return sorted(path.name for path in (self.leases / "net").glob("*") if path.name[0] in "1f")

    def at_neighbour(self, *command: str) -> str:
        """Run a command in the network of the neighbour."""
        return within(self.neighbour, lambda: run(*command))

    def traces(self) -> tuple[list[str], list[str]]:
        """Return what ADD leaves on the host: links, and leases."""
        return sorted(link.name for link in Links().all()), self.leased()


@contextmanager
def own_world(directory: Path) -> Iterator[World]:
    """The process is in a network namespace of its own for as long as this lasts."""
    with own_network():
        world = World(directory)
        yield world
    for namespace in world.namespaces:
        if os.path.exists(namespace):
            remove_network(namespace)


def run(*command: str) -> str:
    """Run a command and return its output."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def in_pod(request: Request, *command: str) -> str:
    """Run a command in the network of a pod."""
    return within(request.namespace, lambda: run(*command))


def pod_link(request: Request) -> Link | None:
    """Return the link of a pod."""
    return within(request.namespace, lambda: Links().find(request.interface))


def set_default(name: str, value: str) -> None:
    """Set a parameter of IPv6 for the links to come of the present namespace."""
    Path(f"/proc/sys/net/ipv6/conf/default/{name}").write_text(value)


def sysctl(request: Request, name: str) -> str:
    """Return a parameter of a pod's network."""
    return within(request.namespace, lambda: Path(f"/proc/sys/net/{name}").read_text().strip())


def add(config: Config, request: Request, previous: Result | None = None) -> Result:
    """Connect a pod."""
    return call_builtin("ADD", str(config["type"]), config, request, previous)


def delete(config: Config, request: Request) -> None:
    """Disconnect a pod."""
    call_builtin("DEL", str(config["type"]), config, request)


def check(config: Config, request: Request, result: Result | None) -> None:
    """Compare a pod's connection with what was made."""
    call_builtin("CHECK", str(config["type"]), config, request, result)
