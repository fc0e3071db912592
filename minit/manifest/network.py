"""Network configurations: one plugin of the CNI (`*.conf`) or a list of them (`*.conflist`)."""

from __future__ import annotations

from minit.value import Value


class PluginConfig(Value):
    """One plugin's part of a configuration; `text` is its JSON object as it stands in the file."""

    type: str
    text: bytes


class NetworkConfig(Value):
    """
    A network as configured; plugins are run in the given order.

    `file_name` is the last part of where it was found, which decides the order of networks, and `directory` the rest.
    `text` is the whole file, which a plugin that is not in a list gets as it is. `ip_masq` says that any of the plugins
    hides the pod behind the host's address.
    """

    name: str
    file_name: str
    directory: str
    text: bytes
    cni_version: str = "0.1.0"
    plugins: tuple[PluginConfig, ...] = ()
    is_list: bool = False
    ip_masq: bool = False
    disable_check: bool = False
