"""Remains of pods in the network of the host, which for the tests is a namespace of their session's."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from minit.podfiles.usersdirectory import (
    NAMESPACE_RECORD,
    network_leases,
    network_namespaces,
    runtime_directory,
    user_network,
)

STATE = Path("/var/lib/cni")
LEASES = Path(network_leases())
NAMESPACES = Path(os.path.realpath(network_namespaces()))
_OWN = Path(runtime_directory())
_SHARED = {
    _OWN / name
    for name in (
        *("firewall.lock", "names/.lock", "lock", NAMESPACE_RECORD),
        *("uplink.lock", "uplink.log", "uplink.state"),
    )
}
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+|[0-9a-f:]*:[0-9a-f:]*")


def leftovers() -> list[str]:
    """Return links, tables of the packet filter, leases, files and named namespaces, of whatever pod."""
    found = [f"link {link['ifname']}" for link in ip("link") if link["ifname"].startswith(("veth", "eth", "bwp"))]
    found += [f"table {line}" for line in _output("nft", "list", "tables").splitlines() if "minit-" in line]
    found += [f"file {path}" for path in kept_files()]
    return found + [f"namespace {name}" for name in os.listdir(NAMESPACES)]


def left_by(pod: str) -> list[str]:
    """Return what the pod of that UUID has left: all of it but links, whose names do not tell whose they are."""
    found = [f"table {line}" for line in _output("nft", "list", "tables").splitlines() if pod in line]
    found += [f"namespace {name}" for name in os.listdir(NAMESPACES) if pod in name]
    for path in kept_files():
        # Other pods come and go meanwhile.
        with suppress(FileNotFoundError):
            found += [f"file {path}"] if pod in path.name or pod.encode() in path.read_bytes() else []
    return found


def kept_files() -> list[Path]:
    """Return the files that the host has of pods: leases, names, what plugins keep; tests have that of tuning there."""
    found = [path for path in LEASES.glob("*/*") if _ADDRESS.fullmatch(path.name)]
    for directory in (STATE / "flannel", STATE / "tuning", _OWN):
        paths = [path for path in directory.rglob("*") if path.is_file() and path not in _SHARED]
        found += [path for path in paths if LEASES not in path.parents]
    return found


def ip(*arguments: str) -> list[dict[str, Any]]:
    """Return what ip(8) says, for example of `link` or `route`."""
    found: list[dict[str, Any]] = json.loads(_output("ip", "-json", *arguments) or "[]")
    return found


def _output(*command: str) -> str:
    if (network := user_network()) is not None:
        # What a user's pods have in place of the machine's network, from the first of them on.
        if not os.path.exists(network):
            return ""
        command = ("nsenter", f"--net={network}", *command)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
