"""
The plugin tuning: changes sysctls of the pod's network and attributes of the interface of another plugin.

The old attributes of the interface are kept in a file until DEL, in the format of the reference plugin: the interface
may be lent by the host. Sysctls stay changed: they are the pod's own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from minit.base import jsontext
from minit.base.errors import ManifestError, NetworkError, describe
from minit.base.value import Value, replace
from minit.manifest.reader import Node, read_json
from minit.network.builtin.attachment import find_host_end, read_file, remove_file, write_file
from minit.network.builtin.call import Call, mac_address, mtu, parse_arguments
from minit.network.builtin.sides import Sides, Undo
from minit.network.namespace import is_namespace, open_namespace, run_in_namespace
from minit.network.netlink.links import Attributes, LinkAttributes
from minit.network.packetfilter.confinement import Sender, follow_sender, link_local_address
from minit.network.packetfilter.tables import table_name
from minit.network.protocol import Result
from minit.podfiles.usersdirectory import tuning_directory

T = TypeVar("T")

_ALLOWLIST = "/etc/cni/tuning/allowlist.conf"
_LARGEST_QUEUE = (1 << 31) - 1
_KEYS = {"mac": "mac", "promisc": "promiscuous", "mtu": "mtu", "allmulti": "all_multicast", "txQLen": "queue_length"}
_NOTHING = Attributes()

_ROOT = "/proc/sys"
_SUBTREE = "net"
_INTERFACE = "IFNAME"
_SWAPPED = str.maketrans("./", "/.")


class Settings(Value):
    """The changes that a configuration and requests ask for."""

    sysctls: tuple[Sysctl, ...]
    attributes: Attributes


def add(call: Call) -> Result:
    """Make the changes and pass the result on; NetworkError, with every change undone, on a failure."""
    settings, result = read_settings(call), call.need_result_before()
    refuse_forbidden(settings.sysctls, _ALLOWLIST)
    with Sides(call.request) as sides, Undo() as undo:
        run_in_namespace(sides.namespace, lambda: _write_sysctls(settings.sysctls, sides.namespace, undo))
        if settings.attributes != _NOTHING:
            _change_link(sides, call, settings.attributes, undo)
    return _as_changed(result, call.request.interface, settings.attributes)


def delete(call: Call) -> None:
    """Give the interface its old attributes back, if the interface still exists."""
    path = _backup_path(call)
    try:
        before = _read_backup(path)
    except FileNotFoundError:
        before = None
    if before is not None:
        _restore(call, before)
    remove_file(path)


def check(call: Call) -> None:
    """Raise NetworkError with the first difference from the configuration."""
    settings = read_settings(call)
    call.need_result_of_add()
    namespace = open_namespace(call.request.namespace)
    try:
        run_in_namespace(namespace, lambda: _check_sysctls(settings.sysctls))
        with LinkAttributes(namespace, call.request.interface) as link:
            present = link.read()
    finally:
        os.close(namespace)
    if present is None:
        raise NetworkError(f"interface {call.request.interface} is gone")
    wanted = _to_json(settings.attributes)
    found = _to_json(present)
    for key, value in wanted.items():
        if found[key] != value:
            texts = [jsontext.dump(one).decode() for one in (found[key], value)]
            raise NetworkError(f"interface {call.request.interface}: {key} is {texts[0]}, not {texts[1]}")


def read_settings(call: Call) -> Settings:
    """Return the wanted changes; ManifestError or NetworkError for impossible ones."""
    config = call.config
    asked = call.asked
    # The last address has priority.
    macs = (
        mac_address(config["mac"]),
        parse_arguments(call.request.args).mac,
        mac_address(config["runtimeConfig"]["mac"]),
        mac_address(asked["mac"]),
    )
    promiscuous = _last(config, asked, "promisc", Node.boolean)
    attributes = Attributes(
        mac=next((mac for mac in reversed(macs) if mac), None),
        mtu=mtu(asked) or mtu(config),
        # As in the reference plugin: without a request the mode is left alone.
        promiscuous=promiscuous or None,
        all_multicast=_last(config, asked, "allmulti", Node.boolean),
        queue_length=_last(config, asked, "txQLen", _read_queue_length),
    )
    return Settings(
        sysctls=_read_sysctls((config["sysctl"], asked["sysctl"]), call.request.interface), attributes=attributes
    )


def _last(config: Node, asked: Node, key: str, read: Callable[[Node], T]) -> T | None:
    value = asked[key].optional(read)
    return config[key].optional(read) if value is None else value


def _write_sysctls(sysctls: tuple[Sysctl, ...], namespace: int, undo: Undo) -> None:
    for sysctl in sysctls:
        before = _read_value(sysctl)
        if before is not None:
            undo.add(partial(run_in_namespace, namespace, partial(_write_value, sysctl, before)))
        _write_value(sysctl, sysctl.value)


def _check_sysctls(sysctls: tuple[Sysctl, ...]) -> None:
    for sysctl in sysctls:
        found = _read_value(sysctl)
        # The kernel separates several numbers by tabs, whatever was written.
        if found is not None and found.split() != sysctl.value.split():
            raise NetworkError(f"sysctl {sysctl.key} is {found}, not {sysctl.value}")


def _change_link(sides: Sides, call: Call, wanted: Attributes, undo: Undo) -> None:
    name, path = call.request.interface, _backup_path(call)
    with LinkAttributes(sides.namespace, name) as link:
        present = link.read()
    if present is None:
        raise NetworkError(f"there is no interface {name} in the pod's network namespace")
    changed = _to_json(wanted).keys()
    before = {key: value for key, value in _to_json(present).items() if key in changed}
    kept = _from_json(Node(before, None, path))
    undo.add(lambda: remove_file(path))
    write_file(path, jsontext.dump(before))
    undo.add(lambda: _write_link(sides, call, kept))
    _write_link(sides, call, wanted)


def _restore(call: Call, before: Attributes) -> None:
    if not is_namespace(call.request.namespace):
        return
    with Sides(call.request) as sides:
        if sides.pod.find(call.request.interface) is not None:
            _write_link(sides, call, before)


def _write_link(sides: Sides, call: Call, attributes: Attributes) -> None:
    if attributes.mac is not None:
        _let_send(sides, call, attributes.mac)
    with LinkAttributes(sides.namespace, call.request.interface) as link:
        link.write(attributes)


def _let_send(sides: Sides, call: Call, mac: str) -> None:
    """
    Have the host accept the pod's packets with its new hardware address; the link tells its neighbours by a packet.
    """
    host = find_host_end(sides, call.request)
    if host is not None and call.previous is not None:
        pod = sides.pod.get(call.request.interface)
        # The address made from the old hardware address stays.
        own = (*(address.address.ip for address in call.previous.addresses), link_local_address(pod.mac))
        sender = Sender(link=host.name, mac=mac, addresses=own)
        follow_sender(table_name(call.request.container_id, call.request.interface), sender)


def _as_changed(result: Result, name: str, attributes: Attributes) -> Result:
    """Return a result with the new attributes of the pod's interface."""
    given = {"mac": attributes.mac, "mtu": attributes.mtu}
    new: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    interfaces = tuple(replace(one, **new) if one.name == name and one.sandbox else one for one in result.interfaces)
    return replace(result, interfaces=interfaces)


def _backup_path(call: Call) -> str:
    directory = call.config["dataDir"].optional(Node.string) or tuning_directory()
    return f"{directory.rstrip('/')}/{call.request.container_id}_{call.request.interface}.json"


def _read_backup(path: str) -> Attributes | None:
    """Return the old attributes of an interface, None if the file is broken: then nobody knows them."""
    try:
        return _from_json(read_json(read_file(path), path))
    except ManifestError:
        return None


def _to_json(attributes: Attributes) -> dict[str, object]:
    """Return the given attributes by their names in a configuration."""
    return {key: getattr(attributes, name) for key, name in _KEYS.items() if getattr(attributes, name) is not None}


def _from_json(node: Node) -> Attributes:
    return Attributes(
        mac=mac_address(node["mac"]),
        mtu=mtu(node),
        promiscuous=node["promisc"].optional(Node.boolean),
        all_multicast=node["allmulti"].optional(Node.boolean),
        queue_length=node["txQLen"].optional(_read_queue_length),
    )


def _read_queue_length(node: Node) -> int:
    return node.integer(0, _LARGEST_QUEUE)


class Sysctl(Value):
    """A sysctl and its new value; `key` is the name in the configuration."""

    key: str
    path: str
    value: str


def _read_sysctls(nodes: tuple[Node, ...], interface: str) -> tuple[Sysctl, ...]:
    """
    Return the sysctls of objects from keys to values; a later object has priority.

    IFNAME in a key stands for the interface. ManifestError for a sysctl outside the network, and for a repeated sysctl.
    """
    found: dict[str, Sysctl] = {}
    for node in nodes:
        own: dict[str, Sysctl] = {}
        for key, value in node.string_map():
            path = _path_of(key, interface)
            if path is None:
                raise node.error("parameters of the network, net.…", jsontext.quote(key))
            if path in own:
                raise node.error("each parameter once", f"{jsontext.quote(own[path].key)} and {jsontext.quote(key)}")
            own[path] = Sysctl(key=key, path=path, value=value)
        found |= own
    return tuple(found.values())


def refuse_forbidden(sysctls: tuple[Sysctl, ...], allowlist: str) -> None:
    """Raise NetworkError if there is such a file of regular expressions and none of its lines matches a key."""
    try:
        lines = read_file(allowlist).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return
    expressions = []
    for line in filter(None, map(str.strip, lines)):
        try:
            expressions.append(re.compile(line))
        except re.error as error:
            raise NetworkError(f"{allowlist}: expected regular expressions, got {jsontext.quote(line)}") from error
    for sysctl in sysctls:
        if not any(expression.search(sysctl.key) for expression in expressions):
            raise NetworkError(f"sysctl {sysctl.key} is not allowed by {allowlist}")


def _read_value(sysctl: Sysctl) -> str | None:
    """Return the value in the network namespace of this process, None for a write-only sysctl."""
    try:
        with open(sysctl.path, encoding="utf-8", errors="replace") as file:
            return file.read().strip("\n")
    except PermissionError:
        return None
    except OSError as error:
        raise NetworkError(f"cannot read sysctl {sysctl.key}: {describe(error)}") from error


def _write_value(sysctl: Sysctl, value: str) -> None:
    """Set the value in the network namespace of this process; NetworkError if the kernel refuses the value."""
    try:
        fd = os.open(sysctl.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise NetworkError(f"cannot set sysctl {sysctl.key} to {value}: {describe(error)}") from error


def _path_of(key: str, interface: str) -> str | None:
    """
    Return the file of a key, None for a key outside the network.

    The first separator decides: names are separated by dots, with a slash for a dot in a name, or the other way round.
    """
    first = next((letter for letter in key if letter in "./"), "/")
    path = key if first == "/" else key.translate(_SWAPPED)
    names = path.replace(_INTERFACE, interface, 1).split("/")
    if names[0] != _SUBTREE or len(names) < 2 or any(name in ("", ".", "..") or "\0" in name for name in names):
        return None
    return "/".join((_ROOT, *names))
