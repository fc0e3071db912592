"""The configured networks of this machine, from the files, and the pods on each network; only reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from minit.base.errors import MinitError, NetworkError, describe
from minit.base.value import Value
from minit.manifest.creatednetwork import Network, check_network_name, read_network
from minit.manifest.networkconfig import parse_network_config
from minit.podfiles.networkfiles import CNI_DIRECTORY, host_directories, list_files, read_file
from minit.stage0.pods.poddirectory import Note, PodState, read_name, walk_pods
from minit.stage0.pods.podstatus import read_networks

_PLACES = ("run",)

T = TypeVar("T")


class Member(Value):
    """A pod on a network, with the addresses there."""

    uuid: str
    name: str | None
    is_running: bool
    addresses: tuple[str, ...]


def list_networks(local_config: str, note: Note) -> list[Network]:
    """Return the networks of the host's directories by name; unreadable files are noted."""
    found: dict[str, Network] = {}
    for directory in _directories(local_config):
        of_directory: dict[str, Network] = {}
        for network in _each(directory, lambda data, path: read_network(data, str(path)), note):
            of_directory.setdefault(network.name, network)
        found |= of_directory
    return [found[name] for name in sorted(found)]


def find_network(local_config: str, name: str, note: Note) -> Network:
    """Return the network of a name; NetworkError if the host's directories have none."""
    for network in list_networks(local_config, note):
        if network.name == name:
            return network
    raise NetworkError(f'there is no network "{name}" in {" or ".join(_directories(local_config))}')


def _directories(local_config: str) -> tuple[str, ...]:
    return CNI_DIRECTORY, *host_directories(local_config)


def first_network(note: Note) -> str | None:
    """
    Return the network for all runtimes of the CNI, as a kubelet's runtime takes it: of the first valid file by name.

    Broken files are noted.
    """
    return next(_each(CNI_DIRECTORY, _name_for_pods, note), None)


def _name_for_pods(data: bytes, path: Path) -> str:
    name = parse_network_config(data, path.name, str(path.parent)).name
    try:
        check_network_name(name)  # the name is an entry of --net, which some names cannot be
    except NetworkError as error:
        raise NetworkError(f"{path}: {error}") from error
    return name


def _each(directory: str, read: Callable[[bytes, Path], T], note: Note) -> Iterator[T]:
    """Yield the value of `read` for each configuration of a directory; unreadable and broken ones are noted."""
    for file_name in _listed(directory, note):
        path = Path(directory, file_name)
        try:
            data = read_file(str(path))
            value = None if data is None else read(data, path)
        except FileNotFoundError:
            continue  # removed meanwhile
        except (MinitError, OSError) as error:
            note(f"ignoring {describe(error)}")
            continue
        if value is not None:
            yield value


def _listed(directory: str, note: Note) -> list[str]:
    try:
        return list_files(directory)
    except OSError as error:
        note(f"ignoring {describe(error)}")
        return []


def network_members(data: Path, note: Note) -> dict[str, list[Member]]:
    """Return the pods of the data directory on each network, the ended ones too that are not collected."""
    members: dict[str, list[Member]] = {}
    for pod in walk_pods(data, _PLACES, note):
        if pod.state not in (PodState.RUNNING, PodState.EXITED):
            continue
        for fields in map(dict, read_networks(pod)):
            member = Member(
                uuid=pod.uuid,
                name=read_name(pod.fd),
                is_running=pod.state is PodState.RUNNING,
                addresses=tuple(fields[key] for key in ("ip", "ip6") if fields.get(key)),
            )
            members.setdefault(fields["netName"], []).append(member)
    return members
