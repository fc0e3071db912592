"""
New networks of this machine, and the removal of created ones.

A created network is a file of the local configuration, as an administrator's is, so that every pod finds the network.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Network
from pathlib import Path

from minit.base import jsontext
from minit.base.errors import NetworkError, describe
from minit.base.utctime import utc_text
from minit.linux.hostlinks import delete_bridge, route_destinations
from minit.manifest.creatednetwork import (
    IPNetwork,
    Network,
    NetworkDriver,
    NetworkRequest,
    bridge_name,
    check_network_name,
    network_document,
    networks_in,
    read_network,
)
from minit.podfiles.networkfiles import host_directories
from minit.podfiles.usersdirectory import is_of_user, network_leases
from minit.pods.caller import Caller
from minit.stage0.files.durable import create_file, make_directory, move_into_place, remove_file
from minit.stage0.networks import Member, find_network, list_networks, network_members

_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755
# The image's, which are in no directory of the host unless an administrator replaces them.
_OF_IMAGE = ("172.16.28.0/24", "172.31.0.0/16")
_MAX_LEASE_BYTES = 4096


def create_network(caller: Caller, request: NetworkRequest) -> Network:
    """Write the configuration of a network; NetworkError if there is one of the name, or for an impossible request."""
    check_network_name(request.name)
    if is_of_user() and request.driver is not NetworkDriver.BRIDGE:
        raise NetworkError(f"the driver {request.driver} needs root: links of the machine are not yours")
    with _changed(caller) as directory:
        networks = list_networks(caller.local_config, caller.note)
        for network in networks:
            if network.name == request.name:
                raise NetworkError(f'there is a network "{request.name}" already: {network.path}')
        taken = [*_host_subnets(), *(subnet for network in networks for subnet in networks_in(network))]
        document = network_document(request, taken, utc_text(time.time()))
        data = jsontext.dump(document) + b"\n"
        path = directory / f"50-{request.name}.conf"
        new = directory / f".{request.name}.new"
        remove_file(new)
        create_file(new, data, _FILE_MODE)
        move_into_place(new, path)
    return read_network(data, str(path))


def remove_network(caller: Caller, name: str) -> None:
    """
    Remove a created network, with its bridge and the leases of ended pods.

    NetworkError while a running pod has the network, and for a network that nobody created by a command.
    """
    with _changed(caller):
        network = find_network(caller.local_config, name, caller.note)
        if not network.is_created:
            raise NetworkError(f'network "{name}" was not made by minit network create: remove {network.path} by hand')
        _refuse_used(name, network_members(caller.data, caller.note).get(name, []))
        remove_file(Path(network.path))
        shutil.rmtree(f"{network_leases()}/{name}", ignore_errors=True)
        if network.link == bridge_name(name):
            delete_bridge(network.link)


def prune_networks(caller: Caller, leaves: Callable[[Network], bool]) -> list[str]:
    """Remove the created networks that no pod has, running or not, but for what it `leaves`; return the names."""
    members = network_members(caller.data, caller.note)
    networks = list_networks(caller.local_config, caller.note)
    removed = []
    for network in networks:
        if network.is_created and not members.get(network.name) and not leaves(network):
            try:
                remove_network(caller, network.name)
            except NetworkError as error:
                caller.note(describe(error))
            else:
                removed.append(network.name)
    return removed


def _refuse_used(name: str, members: list[Member]) -> None:
    running = [member.name or member.uuid for member in members if member.is_running]
    if running:
        raise NetworkError(f'network "{name}" is in use: stop these pods first: {", ".join(running)}')
    known = {member.uuid for member in members}
    others = sorted(_lessees(name) - known)
    if others:
        raise NetworkError(f'network "{name}" is in use by pods of another data directory: {", ".join(others)}')


def _lessees(name: str) -> set[str]:
    """Return the containers with an address of a network; host-local's files begin with a container's id."""
    found = set()
    with suppress(FileNotFoundError):
        for entry in os.scandir(f"{network_leases()}/{name}"):
            if entry.name[0].isdigit() or ":" in entry.name:
                with suppress(OSError), open(entry.path, encoding="utf-8", errors="replace") as file:
                    found.add(file.read(_MAX_LEASE_BYTES).splitlines()[0].strip())
    return found


def _host_subnets() -> list[IPNetwork]:
    """Return the destinations of the host's routes but for the default routes, and the image's subnets."""
    return [*route_destinations(), *map(IPv4Network, _OF_IMAGE)]


@contextmanager
def _changed(caller: Caller) -> Iterator[Path]:
    """Yield the directory of created networks, which nobody else changes meanwhile."""
    directory = Path(host_directories(caller.local_config)[-1])
    try:
        make_directory(directory, _DIRECTORY_MODE)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise NetworkError(f"cannot keep networks: {describe(error)}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield directory
    except OSError as error:
        raise NetworkError(f"cannot change networks: {describe(error)}") from error
    finally:
        os.close(fd)
