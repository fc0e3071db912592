"""
Finding the configurations of networks: in the stage1 image, of the vendor, and of the administrator.

A later directory overrides a network of the same name. The directory for all runtimes of the CNI is for networks that
are in no other. The choice of files and the messages are rkt's: of a file for a
network that nobody asked for, only the name is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from minit.base.errors import ManifestError, MinitError, NetworkError, describe
from minit.manifest.networkconfig import NetworkConfig, parse_network_config, parse_network_name
from minit.plan.networks.networkplan import ALL_NETWORKS, wants_network
from minit.podfiles import paths
from minit.podfiles.networkfiles import CNI_DIRECTORY, LIST_SUFFIX, host_directories, list_files, read_file


def _config_directories(local_config: str) -> tuple[str, ...]:
    """Return where configurations are looked for, the pod directory being the working directory."""
    return f"{paths.POD_STAGE1_ROOTFS}/etc/rkt/net.d", *host_directories(local_config)


def load_networks(local_config: str, wanted: tuple[str, ...]) -> tuple[list[NetworkConfig], list[str]]:
    """
    Return the networks that the entries of --net ask for, and the lines to print about the files.

    NetworkError names a file that cannot be read or used. A missing network is no error here.
    """
    networks: dict[str, NetworkConfig] = {}
    lines: list[str] = []
    for directory in _config_directories(local_config):
        try:
            found = _load_directory(directory, wanted, lines)
        except (MinitError, OSError) as error:
            raise NetworkError(f"failed to setup network: {describe(error)}") from error
        lines += [f'overriding "{name}" network with one from {directory}' for name in found if name in networks]
        networks |= found
    missing = tuple(entry for entry in wanted if entry.partition(":")[0] not in (ALL_NETWORKS, *networks))
    for config in _for_all_runtimes(missing, lines) if missing else ():
        networks.setdefault(config.name, config)
    return list(networks.values()), lines


def _for_all_runtimes(wanted: tuple[str, ...], lines: list[str]) -> Iterator[NetworkConfig]:
    """
    Yield the wanted networks of the directory for all runtimes.

    A broken file is a line and no error, as with other runtimes: the file may be for another plugin than ours.
    """
    try:
        for file_name in list_files(CNI_DIRECTORY):
            try:
                config = _load_file(file_name, CNI_DIRECTORY, wanted, lines)
            except (MinitError, OSError) as error:
                lines.append(f"ignoring {describe(error)}")
            else:
                if config is not None:
                    yield config
    except OSError as error:
        lines.append(f"ignoring {describe(error)}")


def _load_directory(directory: str, wanted: tuple[str, ...], lines: list[str]) -> dict[str, NetworkConfig]:
    found: dict[str, NetworkConfig] = {}
    for file_name in list_files(directory):
        config = _load_file(file_name, directory, wanted, lines)
        if config is None:
            continue
        if config.name in found:
            lines.append(f'"{config.name}" network already defined, ignoring {file_name}')
        else:
            found[config.name] = config
    return found


def _load_file(file_name: str, directory: str, wanted: tuple[str, ...], lines: list[str]) -> NetworkConfig | None:
    """Return the network in a file, None for an unwanted network."""
    path = f"{directory}/{file_name}"
    try:
        data = read_file(path)
    except FileNotFoundError:
        if os.path.lexists(path):
            raise
        return None  # a network that was removed meanwhile
    if data is None:
        lines.append(f"ignoring {path}: not a regular file")
        return None
    try:
        name = parse_network_name(data, file_name, directory)
    except ManifestError as error:
        # rkt reads no lists: a list of an administrator never kept a pod of rkt's from starting.
        asks_for_all = wants_network(wanted, "")
        if not file_name.endswith(LIST_SUFFIX) or asks_for_all:
            raise
        lines.append(f"ignoring {error}")
        return None
    if not wants_network(wanted, name or ""):
        return None
    return parse_network_config(data, file_name, directory)
