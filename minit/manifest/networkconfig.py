"""
Network configurations: one plugin of the CNI (`*.conf`) or a list of plugins (`*.conflist`).

The CNI specification, section 1, has the format. A plugin's own settings are left to the plugin.
"""

from __future__ import annotations

from collections.abc import Sequence

from minit.base import jsontext
from minit.base.value import Value
from minit.manifest.reader import Node
from minit.podfiles.networkfiles import LIST_SUFFIX

CNI_VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
"""The versions of the specification that a configuration may be written for, oldest first."""

_OLDEST = CNI_VERSIONS[0]
_MAX_NAME_BYTES = 255  # NAME_MAX, limits.h(0p)


def find_repeated(entries: Sequence[str]) -> str | None:
    """Return the network that more than one entry of --net names, in the form NAME[:ARGS]; None without any."""
    names = [entry.partition(":")[0] for entry in entries]
    return next((name for name in names if names.count(name) > 1), None)


class PluginConfig(Value):
    """One plugin's part of a configuration: `text` is the JSON object, byte for byte except from a list."""

    type: str
    text: bytes


class NetworkConfig(Value):
    """
    A network as configured; plugins are run in the given order.

    `file_name` is the last part of the file's path and decides the order of networks, `directory` is the rest. `text`
    is the whole file, which a plugin outside of a list gets unchanged. With `ip_masq` any of the plugins hides the pod
    behind the host's address; with `restricted` a plugin lets the pod reach its own subnet only.
    """

    name: str
    file_name: str
    directory: str
    text: bytes
    cni_version: str = _OLDEST
    plugins: tuple[PluginConfig, ...] = ()
    is_list: bool = False
    ip_masq: bool = False
    restricted: bool = False
    disable_check: bool = False


def parse_network_config(data: bytes, file_name: str, directory: str) -> NetworkConfig:
    """
    Return the configuration in the bytes of a file, a list if `file_name` ends in `.conflist`.

    ManifestError names the file and the place of an error.
    """
    root = _read_root(data, file_name, directory)
    is_list = file_name.endswith(LIST_SUFFIX)
    plugins = root["plugins"].each(_parse_plugin) if is_list else (PluginConfig(type=_read_type(root), text=data),)
    if not plugins:
        raise root["plugins"].error("a list of at least one plugin")
    return NetworkConfig(
        name=_read_name(root["name"]),
        file_name=file_name,
        directory=directory,
        text=data,
        cni_version=_read_version(root, is_list),
        plugins=plugins,
        is_list=is_list,
        ip_masq=any(root["plugins"].each(_masquerades)) if is_list else _masquerades(root),
        restricted=any(root["plugins"].each(_restricts)) if is_list else _restricts(root),
        disable_check=root["disableCheck"].optional(Node.boolean) or False,
    )


def parse_network_name(data: bytes, file_name: str, directory: str) -> str | None:
    """Return only the name in a file, None without a name; ManifestError unless the file is a JSON object."""
    return _read_root(data, file_name, directory)["name"].optional(Node.string)


def is_at_least(version: str, other: str) -> bool:
    """Return whether a version of CNI_VERSIONS is the same as another or newer."""
    return CNI_VERSIONS.index(version) >= CNI_VERSIONS.index(other)


def _read_root(data: bytes, file_name: str, directory: str) -> Node:
    source = f"{directory}/{file_name}"
    return Node(jsontext.parse(data, source), None, source)


def _read_version(root: Node, is_list: bool) -> str:
    """Return the newest known version, of the versions that a list declares."""
    versions = root["cniVersions"].each(Node.string) if is_list else ()
    known = [version for version in CNI_VERSIONS if version in (*versions, root["cniVersion"].raw())]
    if known:
        return known[-1]
    if root["cniVersion"].optional(Node.string):
        return root["cniVersion"].one_of(*CNI_VERSIONS)
    if versions:
        raise root["cniVersions"].error(f"a version of {_OLDEST} to {CNI_VERSIONS[-1]}")
    return _OLDEST


def _parse_plugin(node: Node) -> PluginConfig:
    return PluginConfig(type=_read_type(node), text=jsontext.dump(node.raw()))


def _masquerades(node: Node) -> bool:
    return node["ipMasq"].optional(Node.boolean) or False


def _restricts(node: Node) -> bool:
    # The plugin reports a bad value.
    return node["restricted"].raw() is True


def _read_name(node: Node) -> str:
    return node.matching(_is_file_name, "the name of a network, usable as a file name")


def _read_type(node: Node) -> str:
    return node["type"].matching(_is_file_name, "the name of a plugin, a file without directory")


def _is_file_name(text: str) -> bool:
    # Both become parts of paths: of the plugin, and of the directory with the network's leases.
    return text not in ("", ".", "..") and "/" not in text and len(text.encode()) <= _MAX_NAME_BYTES
