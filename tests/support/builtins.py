"""
Built-in plugins between network namespaces that stand for a host and its pods.

They are called as `minit/network/pluginlist.py` does it, without a pod directory and a search for programs.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from minit.manifest.reader import Node
from minit.network.builtin import ask_builtin
from minit.network.builtin.call import Call
from minit.network.protocol import Request, Result
from tests.support.networks import make_network, own_network, remove_network, within

TIMEOUT_SECONDS = 60
IPAM_KEYS = ("rangeStart", "rangeEnd", "gateway", "routes", "resolvConf", "ranges")
SOURCE = "net.conf"
"""The file that errors in a configuration name."""


def call_builtin(
    command: str, plugin_type: str, config: Mapping[str, object], request: Request, previous: Result | None = None
) -> Result:
    """Make a request of a plugin, which finds the others that it delegates to among the built-in ones."""

    def delegate(command: str, plugin_type: str, fields: Mapping[str, object], previous: Result | None) -> Result:
        return call_builtin(command, plugin_type, fields, request, previous)

    call = Call(config=Node(dict(config), None, SOURCE), request=request, delegate=delegate, previous=previous)
    return ask_builtin(command, plugin_type, call)


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
        ipam: dict[str, object] = {"type": "host-local", "subnet": subnet, "dataDir": str(self.leases)}
        ipam |= {key: more.pop(key) for key in IPAM_KEYS if key in more}
        if "ranges" in ipam:
            del ipam["subnet"]
        return {"cniVersion": "0.4.0", "name": "net", "type": kind, "ipam": ipam, **more}

    def leased(self, network: str = "net") -> dict[str, str]:
        """Return who has which address."""
        files = [path for path in (self.leases / network).glob("*") if not path.name.startswith(("l", "."))]
        return {path.name: path.read_bytes().decode() for path in files}


@contextmanager
def own_world(directory: Path) -> Iterator[World]:
    """Put the process into a network namespace of its own, the host, and take the pods away at the end."""
    world = World(directory)
    with own_network():
        yield world
    for namespace in world.namespaces:
        if os.path.exists(namespace):
            remove_network(namespace)


def add(config: dict[str, object], request: Request) -> Result:
    """Connect a pod."""
    return call_builtin("ADD", str(config["type"]), config, request)


def delete(config: dict[str, object], request: Request) -> None:
    """Disconnect a pod."""
    call_builtin("DEL", str(config["type"]), config, request)


def check(config: dict[str, object], request: Request, result: Result | None) -> None:
    """Compare a pod's connection with what was made."""
    call_builtin("CHECK", str(config["type"]), config, request, result)


def listen(address: str) -> socket.socket:
    """Return a socket that listens at a port of the kernel's choice, in the present namespace."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, 0), family=family)
    server.settimeout(TIMEOUT_SECONDS)
    return server


def talk(client: str | None, server: socket.socket) -> str:
    """Connect to a server from a namespace, or from the host; return the client's address as the server sees it."""

    def connect() -> socket.socket:
        return socket.create_connection(server.getsockname()[:2], timeout=TIMEOUT_SECONDS)

    with connect() if client is None else within(client, connect):
        end, peer = server.accept()
        end.close()
        return str(peer[0])


def links() -> list[str]:
    """Return the names of the links here, but for `lo`."""
    return sorted(name for _, name in socket.if_nameindex() if name != "lo")
