"""
The record of the pod's networks in the pod directory: `netns`, `net-info.json`, and the files of each in `net/`.

The copy of a configuration exists from before the attachment until the detachment, so that a cleaner knows what is left
to do, however much else is missing. Beside the copy, `FILE.plugins` has the chosen plugins, so that the plugins that
added the pod also delete it, whatever was installed since. `FILE.result` is the outcome of ADD as far as ADD got; later
requests give it to the plugins.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from minit.base import jsontext
from minit.base.errors import MinitError, NetworkError, describe
from minit.base.value import Value
from minit.manifest.networkconfig import parse_network_config
from minit.plan.networks.networkplan import PlannedNetwork, interface_name
from minit.podfiles import paths
from minit.podfiles.boundedfile import read_bounded
from minit.podfiles.networkfiles import SUFFIXES
from minit.podfiles.podfile import remove_pod_file, write_pod_file

JsonObject = dict[str, object]

_MAX_CACHED_BYTES = 4 << 20


class NetInfo(Value):
    """
    A network of `net-info.json`: `ip` and `mask` are dotted quads, `ip6` has a prefix length.

    The addresses are empty during the attachment, and for a missing family. rkt does not know `ip6`.

    `file_name` is the name of the configuration's copy, `plugin` the path of the first plugin.
    """

    name: str
    file_name: str
    plugin: str
    interface: str
    args: str
    ip: str = ""
    mask: str = ""
    ip6: str = ""


def copy_configuration(network: PlannedNetwork) -> None:
    """Put the configuration of a network into the pod directory before the attachment."""
    os.makedirs(paths.POD_NET, 0o755, exist_ok=True)
    write_pod_file(f"{paths.POD_NET}/{network.config.file_name}", network.config.text)


def forget_configuration(file_name: str) -> None:
    """Remove the copy of the configuration of a detached network."""
    remove_pod_file(f"{paths.POD_NET}/{file_name}")


def write_net_info(networks: Iterable[NetInfo]) -> None:
    """Write the pod's networks for stage0."""
    entries = [
        {
            "netName": network.name,
            "netConf": f"{paths.POD_NET}/{network.file_name}",
            "pluginPath": network.plugin,
            "ifName": network.interface,
            "ip": network.ip,
            "args": network.args,
            "mask": network.mask,
            **({"ip6": network.ip6} if network.ip6 else {}),
        }
        for network in networks
    ]
    write_pod_file(paths.POD_NET_INFO, jsontext.dump(entries))


def read_attached() -> tuple[list[PlannedNetwork], list[str]]:
    """
    Return the networks that are still attached, in the order of attachment, and the unreadable ones.

    The copies stand in for a bad `net-info.json`: they sort in the order of attachment, which numbers the interfaces.
    """
    problems = []
    copies = _copies()
    try:
        known = _read_net_info()
    except (MinitError, OSError) as error:
        problems.append(f"error loading {paths.POD_NET_INFO}: {describe(error)}")
        known = []
    if not known:
        known = [(name, interface_name(index), "") for index, name in enumerate(copies)]
    networks = []
    for file_name, interface, args in known:
        if file_name not in copies:
            continue
        path = f"{paths.POD_NET}/{file_name}"
        try:
            with open(path, "rb") as file:
                config = parse_network_config(file.read(), file_name, paths.POD_NET)
        except (MinitError, OSError) as error:
            problems.append(f'error loading "{path}"; ignoring: {describe(error)}')
            continue
        networks.append(PlannedNetwork(config=config, args=args, interface=interface))
    return networks, problems


def write_namespace(path: str) -> None:
    """Record where the pod's network namespace is."""
    write_pod_file(paths.POD_NETNS, os.fsencode(path))


def forget_network() -> None:
    """Remove the records of a pod whose networks were all undone before the pod ran."""
    for name in (paths.POD_NET_INFO, paths.POD_NETNS):
        remove_pod_file(name)


def _copies() -> list[str]:
    try:
        names = os.listdir(paths.POD_NET)
    except FileNotFoundError:
        return []
    return sorted(name for name in names if name.endswith(SUFFIXES) and not name.startswith("."))


def _read_net_info() -> list[tuple[str, str, str]]:
    """Return file name, interface and arguments of each network."""
    try:
        with open(paths.POD_NET_INFO, "rb") as file:
            entries = jsontext.parse(file.read(), paths.POD_NET_INFO)
    except FileNotFoundError:
        return []
    if entries is None:
        return []
    found = []
    for entry in entries if isinstance(entries, list) else [None]:
        fields = [entry.get(key) for key in ("netConf", "ifName", "args")] if isinstance(entry, dict) else [None]
        if not all(isinstance(field, str) for field in fields):
            raise NetworkError(f"{paths.POD_NET_INFO}: not a list of networks")
        path, interface, args = map(str, fields)
        found.append((os.path.basename(path), interface, args))
    return found


def cache_plugins(file_name: str, plugins: Sequence[str]) -> None:
    """Note the chosen plugins of a network before the first plugin runs."""
    _write(_plugins_path(file_name), plugins)


def cached_plugins(file_name: str) -> tuple[str, ...]:
    """Return the plugins chosen for a network, nothing if none was ever run or the note cannot be used."""
    value = _read(_plugins_path(file_name))
    return tuple([item for item in value if isinstance(item, str)]) if isinstance(value, list) else ()


def cache_result(file_name: str, result: JsonObject) -> None:
    """Note the outcome of ADD, for a list the outcome of the plugins so far."""
    _write(_result_path(file_name), result)


def cached_result(file_name: str) -> JsonObject | None:
    """Return the outcome of ADD, None if no plugin got so far or the note cannot be used."""
    value = _read(_result_path(file_name))
    return value if isinstance(value, dict) else None


def forget(file_name: str) -> None:
    """Remove the notes about a network; no error if there are none."""
    remove_pod_file(_result_path(file_name))
    remove_pod_file(_plugins_path(file_name))


def _plugins_path(file_name: str) -> str:
    return f"{paths.POD_NET}/{file_name}.plugins"


def _result_path(file_name: str) -> str:
    return f"{paths.POD_NET}/{file_name}.result"


def _write(path: str, value: object) -> None:
    os.makedirs(paths.POD_NET, 0o755, exist_ok=True)
    write_pod_file(path, jsontext.dump(value))


def _read(path: str) -> object:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        return jsontext.parse(read_bounded(fd, path, _MAX_CACHED_BYTES), path)
    except (OSError, MinitError):
        # The specification provides for a lost result: a plugin then deletes whatever exists.
        return None
