"""
The plugin flannel: another plugin, normally bridge, makes the link, with the subnet that flannel has given the host.

The request to the other plugin is kept until DEL in a file named after the container's id, as by the reference plugin:
flannel may have given another subnet meanwhile, or none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from minit.base import jsontext
from minit.base.errors import ManifestError, MinitError, NetworkError, describe
from minit.base.value import Value
from minit.manifest.reader import Node, read_json
from minit.network.addresses import IPNetwork, parse_destination
from minit.network.builtin.attachment import read_file, remove_file, remove_leftover, write_file
from minit.network.builtin.call import VALID_ATTACHMENTS, Call, network_name, refuse, routes, valid_attachments
from minit.network.protocol import Result

JsonObject = dict[str, object]

_SUBNET_FILE = "/run/flannel/subnet.env"
_DIRECTORY = "/var/lib/cni/flannel"
_DEFAULT_TYPE = "bridge"
_DEFAULT_MANAGER = "host-local"
_SET_HERE = ("name", "ipam")
_PASSED_ON = ("cniVersion", "runtimeConfig")

T = TypeVar("T")

_NETWORKS = ("FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK")
_SUBNETS = ("FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET")
_MTU = "FLANNEL_MTU"
_MASQUERADES = "FLANNEL_IPMASQ"
_LARGEST_MTU = 65535


def add(call: Call) -> Result:
    """Have the pod connected; NetworkError, with nothing left behind, on a failure."""
    delegated = _delegated(call)
    path, before = _place_for(call)
    write_file(path, jsontext.dump(delegated), durable=True)
    try:
        return _ask(call, "ADD", delegated)
    except (MinitError, OSError):
        try:
            if before is None:
                _delete_at(call, path, delegated)
            else:
                # The pod is attached already, and stays attached.
                write_file(path, jsontext.dump(before), durable=True)
        except (MinitError, OSError):
            pass  # the first reason is what the user needs, and DEL finds the file
        raise


def delete(call: Call) -> None:
    """Have the pod disconnected as it was connected; nothing to do if the request is unknown."""
    for path in _paths(call):
        try:
            delegated = _load(path, call)
        except ManifestError:
            # Said once: another deletion could do no more.
            remove_file(path)
            raise
        if delegated is not None:
            _delete_at(call, path, delegated)
        else:
            remove_leftover(path)


def check(call: Call) -> None:
    """Raise NetworkError with the other plugin's words about the attachment."""
    for path in _paths(call):
        delegated = _load(path, call)
        if delegated is not None:
            _ask(call, "CHECK", delegated)
            return
    raise NetworkError(f"{_paths(call)[0]} is gone: it has how {call.request.interface} was attached")


def collect(call: Call) -> None:
    """Have the remains of vanished attachments removed, and forget the attachments."""
    valid = call.config[VALID_ATTACHMENTS].raw()
    kept = {name for attachment in valid_attachments(call.config) for name in (attachment[0], "-".join(attachment))}
    directory = _directory(call)
    try:
        names = sorted(set(os.listdir(directory)) - kept)
    except FileNotFoundError:
        return
    for name in names:
        path = f"{directory}/{name}"
        try:
            delegated = _load(path, call)
        except ManifestError:
            continue  # nobody can tell which network it is about; somebody may be writing it
        if delegated is not None:
            version = call.config["cniVersion"].raw()
            _ask(call, "GC", {**delegated, "cniVersion": version, VALID_ATTACHMENTS: valid})
            remove_file(path)


def status(call: Call) -> None:
    """Raise NetworkError if flannel has given no subnet, or the other plugin could not attach anybody."""
    _ask(call, "STATUS", _delegated(call))


def delegated_config(config: Node, env: SubnetEnv) -> JsonObject:
    """Return the configuration of the other plugin; ManifestError for a key that has no place there."""
    node = config["delegate"]
    for key in _SET_HERE:
        if node[key].given:
            raise refuse(node[key], "flannel sets it")
    kind = node["type"].optional(Node.non_empty) or _DEFAULT_TYPE
    defaults: JsonObject = {"type": kind, "ipMasq": not env.masquerades, "mtu": env.mtu}
    if kind == _DEFAULT_TYPE:
        defaults["isGateway"] = True
    fields = {**_object(node), **{key: value for key, value in defaults.items() if not node[key].given}}
    fields |= {"name": network_name(config), "ipam": _manager(config["ipam"], env)}
    fields |= {key: config[key].raw() for key in _PASSED_ON if config[key].given}
    return fields


def _manager(node: Node, env: SubnetEnv) -> JsonObject:
    kind = node["type"].optional(Node.non_empty) or _DEFAULT_MANAGER
    routes(node)  # so that the line about a wrong one names this file
    return {
        **_object(node),
        "type": kind,
        "ranges": [[{"subnet": str(subnet)}] for subnet in env.subnets],
        "routes": [*node["routes"].each(Node.raw), *({"dst": str(network)} for network in env.networks)],
    }


def _delegated(call: Call) -> JsonObject:
    path = call.config["subnetFile"].optional(Node.string) or _SUBNET_FILE
    return delegated_config(call.config, _read_subnet_env(path))


def _ask(call: Call, command: str, delegated: JsonObject) -> Result:
    kind = Node(delegated, None, call.config.where)["type"].non_empty()
    return call.delegate(command, kind, delegated, None if command == "ADD" else call.previous)


def _delete_at(call: Call, path: str, delegated: JsonObject) -> None:
    _ask(call, "DEL", delegated)
    remove_file(path)


def _directory(call: Call) -> str:
    return (call.config["dataDir"].optional(Node.string) or _DIRECTORY).rstrip("/")


def _paths(call: Call) -> tuple[str, str]:
    """Return the container's file, and the file for a second network of the container."""
    path = f"{_directory(call)}/{call.request.container_id}"
    return path, f"{path}-{call.request.interface}"


def _place_for(call: Call) -> tuple[str, JsonObject | None]:
    """Return the file for this attachment, and its content if the file is about this network already."""
    first, second = _paths(call)
    for path in (first, second):
        try:
            before = _load(path, call)
        except ManifestError:
            return path, None  # nothing can be made of it any more
        if before is not None:
            return path, before
    return (second if os.path.exists(first) else first), None


def _load(path: str, call: Call) -> JsonObject | None:
    """Return the request to the other plugin, None if there is no file, or the file is about another network."""
    try:
        node = read_json(read_file(path), path)
    except FileNotFoundError:
        return None
    return _object(node) if node["name"].raw() == network_name(call.config) else None


def _object(node: Node) -> JsonObject:
    value = node.raw()
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise node.error("an object")
    return value


class SubnetEnv(Value):
    """Whole networks, the host's subnets of them, the MTU in bytes, and whether flannel hides the pods."""

    networks: tuple[IPNetwork, ...]
    subnets: tuple[IPNetwork, ...]
    mtu: int
    masquerades: bool


def _read_subnet_env(path: str) -> SubnetEnv:
    """Return the content of the file; NetworkError if the file is missing, or not as flannel writes it."""
    try:
        text = read_file(path).decode(errors="replace")
    except FileNotFoundError as error:
        raise NetworkError(f"{describe(error)}: flannel writes it when it runs") from error
    except OSError as error:
        raise NetworkError(describe(error)) from error
    return parse_subnet_env(text, path)


def parse_subnet_env(text: str, path: str) -> SubnetEnv:
    """Return the variables in the text of a file, whose `path` errors name; other variables are ignored."""
    given = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    missing = [
        " or ".join(names)
        for names in (_NETWORKS, _SUBNETS, (_MTU,), (_MASQUERADES,))
        if not any(name in given for name in names)
    ]
    if missing:
        raise NetworkError(f"{path}: no {', no '.join(missing)}")

    def read(name: str, parse: Callable[[str], T], expected: str) -> T:
        try:
            return parse(given[name])
        except ValueError as error:
            raise NetworkError(f"{path}: {name}: expected {expected}, got {jsontext.quote(given[name])}") from error

    networks = [network for name in _NETWORKS if name in given for network in read(name, _parse_networks, "subnets")]
    return SubnetEnv(
        networks=tuple(dict.fromkeys(networks)),
        subnets=tuple(read(name, parse_destination, "a subnet") for name in _SUBNETS if name in given),
        mtu=read(_MTU, _parse_mtu, f"a number up to {_LARGEST_MTU}"),
        masquerades=given[_MASQUERADES] == "true",
    )


def _parse_networks(text: str) -> list[IPNetwork]:
    return [parse_destination(part) for part in text.split(",")]


def _parse_mtu(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(_LARGEST_MTU)) or int(text) > _LARGEST_MTU:
        raise ValueError(text)
    return int(text)
