"""
The parameters of a plugin that is a program, environment variables of the CNI (its specification, section 2).

What is required and what is refused, and in which words, is as in the reference plugins. CNI_PATH is optional, as the
specification has it: a built-in plugin needs it only to find others.
"""

from __future__ import annotations

import string
from collections.abc import Mapping

from minit.errors import PluginError
from minit.network.protocol import errorcodes
from minit.value import Value

_ATTACHMENT = ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME")
_REQUIRED = {
    "ADD": _ATTACHMENT,
    "CHECK": _ATTACHMENT,
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME"),
    "GC": ("CNI_PATH",),
    "STATUS": (),
    "VERSION": (),
}
_ALPHANUMERIC = frozenset(string.ascii_letters + string.digits)
_NAME_CHARACTERS = _ALPHANUMERIC | frozenset("_.-")
_MAX_INTERFACE_BYTES = 15


class Parameters(Value):
    """
    A request to a plugin, but for the configuration.

    `directories` are those of CNI_PATH. `may_be_own_namespace` is CNI_NETNS_OVERRIDE: the namespace may be the one that
    the plugin runs in.
    """

    command: str
    container_id: str = ""
    namespace: str = ""
    interface: str = ""
    args: str = ""
    directories: tuple[str, ...] = ()
    may_be_own_namespace: bool = False


def read_parameters(environment: Mapping[str, str]) -> Parameters:
    """Return the parameters in the environment; PluginError names the variables that are missing or wrong."""
    command = environment.get("CNI_COMMAND", "")
    required = ("CNI_COMMAND", *_REQUIRED.get(command, ()))
    missing = [name for name in required if not environment.get(name)]
    if missing:
        raise _refused(f"required env variables [{','.join(missing)}] missing")
    if command not in _REQUIRED:
        raise _refused(f"unknown CNI_COMMAND: {command}")
    container_id, interface = environment.get("CNI_CONTAINERID", ""), environment.get("CNI_IFNAME", "")
    if "CNI_CONTAINERID" in required and not is_valid_name(container_id):
        raise _refused("invalid characters in containerID", f"CNI_CONTAINERID is {container_id}")
    if "CNI_IFNAME" in required:
        _check_interface(interface)
    return Parameters(
        command=command,
        container_id=container_id,
        namespace=environment.get("CNI_NETNS", ""),
        interface=interface,
        args=environment.get("CNI_ARGS", ""),
        directories=tuple(filter(None, environment.get("CNI_PATH", "").split(":"))),
        may_be_own_namespace=environment.get("CNI_NETNS_OVERRIDE", "").upper() in ("1", "TRUE"),
    )


def is_valid_name(text: str) -> bool:
    """Tell whether a text may be the name of a network or the id of a container."""
    return text[:1] in _ALPHANUMERIC and _NAME_CHARACTERS.issuperset(text)


def _check_interface(name: str) -> None:
    place = f"CNI_IFNAME is {name}"
    if len(name.encode(errors="surrogateescape")) > _MAX_INTERFACE_BYTES:
        raise _refused("interface name is too long", f"{place}: expected at most {_MAX_INTERFACE_BYTES} bytes")
    if name in (".", ".."):
        raise _refused("interface name is . or ..", place)
    if any(letter in "/:" or letter.isspace() for letter in name):
        raise _refused("interface name contains / or : or whitespace characters", place)
    if "%" in name:
        raise _refused("interface name contains %", f"{place}: the kernel makes another name of it")


def _refused(message: str, details: str = "") -> PluginError:
    return PluginError(message, errorcodes.INVALID_ENVIRONMENT, details)
