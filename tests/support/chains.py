"""Pods that a bridge connects, for plugins that change what another one has made, and the CNI's own such plugins."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minit.network.protocol import Request, Result, read_result, write_result
from tests.support.builtins import call_builtin
from tests.support.networks import make_network, own_network, remove_network

VERSION = "1.0.0"
"""The newest version that Debian's plugins know."""
REFERENCE = Path("/usr/lib/cni")


class Pods:
    """A host that is a network namespace, and pods that are others."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.leases = directory / "leases"
        self.namespaces: list[str] = []

    def connected(self, args: str = "") -> tuple[Request, Result]:
        """Return the request of a new pod on the bridge, and what that has come to."""
        container = str(uuid.uuid4())
        self.namespaces.append(make_network(self.directory / container))
        request = Request(container_id=container, namespace=self.namespaces[-1], interface="eth0", args=args)
        return request, call_builtin("ADD", "bridge", self.bridge(), request)

    def bridge(self) -> dict[str, Any]:
        """Return the configuration of the bridge."""
        ipam = {"type": "host-local", "subnet": "10.9.8.0/24", "dataDir": str(self.leases)}
        return {
            "cniVersion": VERSION,
            "name": "net",
            "type": "bridge",
            "bridge": "br-chain",
            "isGateway": True,
            "ipam": ipam,
        }


@contextmanager
def pods(directory: Path) -> Iterator[Pods]:
    """The process is in a network namespace of its own meanwhile."""
    made = Pods(directory)
    with own_network():
        yield made
    for namespace in made.namespaces:
        if os.path.exists(namespace):
            remove_network(namespace)


def call_reference(
    command: str, config: dict[str, Any], request: Request, previous: Result | None = None
) -> tuple[Result | None, str]:
    """Run the CNI's own plugin of the configuration's type; return its result, None for none, and its error."""
    environment = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": request.container_id,
        "CNI_NETNS": request.namespace,
        "CNI_IFNAME": request.interface,
        "CNI_PATH": str(REFERENCE),
        "CNI_ARGS": request.args,
    }
    given = config if previous is None else {**config, "prevResult": write_result(previous, VERSION)}
    program = REFERENCE / config["type"]
    done = subprocess.run([program], env=environment, input=json.dumps(given), capture_output=True, text=True)
    if done.returncode:
        return None, str(json.loads(done.stdout)["msg"])
    return read_result(json.loads(done.stdout), "result", VERSION) if done.stdout else None, ""
