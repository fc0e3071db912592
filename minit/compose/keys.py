"""
Readers of keys of compose files: of objects by tables of their keys, and of single values. Pure.

A key is supported, with a reader; or without effect here, which is noted; or refused, with the reason. All faults of a
document are found together.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar

from minit.base.errors import ManifestError
from minit.base.goduration import parse_duration
from minit.base.hostname import canonical_address, find_fault
from minit.base.processors import PROCESSORS, Processor
from minit.base.value import Value
from minit.manifest.app import MAX_ID
from minit.manifest.capabilities import NAMES
from minit.manifest.names import is_variable_name
from minit.manifest.reader import Node
from minit.manifest.ulimits import parse_bounds, spell_bounds

V = TypeVar("V", bound=Value)
Pairs = tuple[tuple[str, str], ...]

EXTENSION = "x-"
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_TRUE, _FALSE = ("true", "yes", "on", "y", "1"), ("false", "no", "off", "n", "0")
MOST = 1 << 62
_LIKENESS = 0.6


class Support(StrEnum):
    """What becomes of a key; the values are the words of docs/compose.md."""

    SUPPORTED = "supported"
    NO_EFFECT = "no effect"
    REFUSED = "refused"


class Reading:
    """Faults and notes of a document."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.notes: list[str] = []


Read = Callable[[Node, Reading], object]


class Key(Value):
    """A key: a reader for a supported one, else the reason."""

    support: Support = Support.SUPPORTED
    read: Read | None = None
    why: str = ""


Keys = Mapping[str, Key]


def reads(read: Callable[[Node], object]) -> Key:
    """Return a supported key with a reader of its value."""
    return Key(read=lambda node, reading: read(node))


def reads_with(read: Read) -> Key:
    """Return a supported key whose reader tells of faults within the value."""
    return Key(read=read)


def ignored(why: str) -> Key:
    """Return a key that changes nothing here, with the reason."""
    return Key(support=Support.NO_EFFECT, why=why)


def refused(why: str) -> Key:
    """Return a key that no pod can have, with the reason."""
    return Key(support=Support.REFUSED, why=why)


def read_fields(node: Node, keys: Keys, reading: Reading) -> dict[str, Any]:
    """Return the values of the supported keys of an object; faults go to `reading`."""
    value = node.raw()
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise node.error("a mapping")
    found: dict[str, Any] = {}
    for name in value:
        if name.startswith(EXTENSION):
            continue
        field = Node(value[name], node, name)
        key = keys.get(name)
        if key is None:
            near = get_close_matches(name, keys, n=1, cutoff=_LIKENESS)
            hint = f": did you mean {near[0]}?" if near else ""
            reading.faults.append(f"{field.where}: no key of compose files{hint}")
        elif key.read is None:
            if key.support is Support.REFUSED and value[name] not in (None, False):
                reading.faults.append(f"{field.where}: not supported: {key.why}")
            elif value[name] is not None:
                reading.notes.append(f"{field.where} has no effect: {key.why}")
        elif value[name] is not None:
            try:
                found[name] = key.read(field, reading)
            except ManifestError as error:
                reading.faults.append(str(error))
    return found


def object_of(kind: Callable[..., V], keys: Keys) -> Callable[[Node, Reading], V | None]:
    """Return the reader of an object; the result is None if a needed key is missing or faulty, which is a fault."""

    def read(node: Node, reading: Reading) -> V | None:
        before = len(reading.faults)
        fields = read_fields(node, keys, reading)
        try:
            return kind(**fields)
        except TypeError as error:
            if len(reading.faults) == before:
                missing = str(error).rpartition(" needs ")[2]
                reading.faults.append(f"{node.where}: expected the key {missing}")
            return None

    return read


def each_of(read: Read) -> Read:
    """Return the reader of a list, of which faulty elements are left out."""

    def read_all(node: Node, reading: Reading) -> tuple[object, ...]:
        found = []
        for element in node.elements():
            try:
                value = read(element, reading)
            except ManifestError as error:
                reading.faults.append(str(error))
            else:
                if value is not None:
                    found.append(value)
        return tuple(found)

    return read_all


def named_of(
    read: Read, is_name: Callable[[str], object] = bool, form: str = "a name"
) -> Callable[[Node, Reading], tuple[tuple[str, Any], ...]]:
    """Return the reader of a mapping from names to values, as pairs."""

    def read_all(node: Node, reading: Reading) -> tuple[tuple[str, Any], ...]:
        value = node.raw()
        if not isinstance(value, dict):
            raise node.error("a mapping")
        found = []
        for name in value:
            if name.startswith(EXTENSION):
                continue
            field = Node(value[name], node, name)
            if not is_name(name):
                reading.faults.append(f"{field.where}: expected {form}")
                continue
            try:
                result = read(field, reading)
            except ManifestError as error:
                reading.faults.append(str(error))
            else:
                if result is not None:
                    found.append((name, result))
        return tuple(found)

    return read_all


# Values of keys.


def text(node: Node) -> str:
    """Return a string, or the text of a number or a boolean."""
    value = node.raw()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value)
    return node.string()


def non_empty(node: Node) -> str:
    """Return a text of at least one character."""
    value = text(node)
    if not value:
        raise node.error("a non-empty string")
    return value


def flag(node: Node) -> bool:
    """Return true or false, also from a text."""
    value = node.raw()
    if isinstance(value, str) and value.lower() in (*_TRUE, *_FALSE):
        return value.lower() in _TRUE
    return node.boolean()


def number(least: int, most: int) -> Callable[[Node], int]:
    """Return the reader of an integer within bounds, also from a text."""

    def read(node: Node) -> int:
        value = node.raw()
        if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]{1,20}", value) and least <= int(value) <= most:
            return int(value)
        return node.integer(least, most)

    return read


def decimal(node: Node) -> str:
    """Return a positive number as a text."""
    value = text(node)
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9})?", value) or not float(value):
        raise node.error("a number above 0")
    return value


def size(node: Node) -> int:
    """Return a number of bytes, as in 64m or 1gb."""
    return size_text(text(node), node.where)


def size_text(given: str, where: str) -> int:
    """Return the number of bytes in a text, as in 64m or 1gb; ManifestError with `where` for another text."""
    match = _BYTES.fullmatch(given)
    if match is None or float(match[1]) > MOST >> _UNITS[match[2].lower()]:
        raise ManifestError(f'{where}: expected a number of bytes, as in 64m or 1gb, got "{given}"')
    return int(float(match[1]) * (1 << _UNITS[match[2].lower()]))


def size_or_none(node: Node) -> int:
    """Return a number of bytes, -1 for no bound."""
    return -1 if text(node) == "-1" else size(node)


def ulimit(node: Node) -> str:
    """Return limits of getrlimit(2) as SOFT[:HARD], from a number for both or from two."""
    both = node.raw()
    if isinstance(both, dict) and set(both) != {"soft", "hard"}:
        raise node.error("a number, or the keys soft and hard")
    given = f"{text(node['soft'])}:{text(node['hard'])}" if isinstance(both, dict) else text(node)
    try:
        return spell_bounds(parse_bounds(given))
    except ValueError as error:
        raise ManifestError(f"{node.where}: {error}") from error


def seconds(node: Node) -> float:
    """Return a duration in seconds, as in 1m30s."""
    value = text(node)
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise node.error("a duration, as in 1m30s") from error
    if seconds < 0:
        raise node.error("a duration of 0 or more")
    return seconds


def words(node: Node) -> tuple[str, ...]:
    """Return a command: the words of a list, or of a string as a shell splits it."""
    value = node.raw()
    if isinstance(value, list):
        return node.each(text)
    try:
        return tuple(shlex.split(text(node)))
    except ValueError as error:
        raise node.error(f"a command ({str(error).lower()})") from error


def texts(node: Node) -> tuple[str, ...]:
    """Return the texts of a list, or of a single text."""
    value = node.raw()
    return node.each(text) if isinstance(value, list) else (text(node),)


def path(node: Node) -> str:
    """Return an absolute path without dots."""
    path = node.absolute_path()
    return posixpath.normpath(path)


def pairs(node: Node) -> Pairs:
    """Return the entries of a mapping, empty where there is no value."""
    value = node.raw()
    if not isinstance(value, dict):
        raise node.error("a mapping, or a list of NAME=VALUE")
    return tuple((name, "" if value[name] is None else text(Node(value[name], node, name))) for name in value)


def variables(node: Node) -> tuple[tuple[str, str | None], ...]:
    """Return variables, None for the value of the caller."""
    value = node.raw()
    if not isinstance(value, dict):
        raise node.error("a mapping, or a list of NAME=VALUE")
    for name in value:
        if not is_variable_name(name):
            raise Node(value[name], node, name).error("the name of a variable")
    return tuple((name, None if value[name] is None else text(Node(value[name], node, name))) for name in value)


def capability(node: Node) -> str:
    """Return the full name of a capability."""
    name = f"CAP_{node.non_empty().upper().removeprefix('CAP_')}"
    if name not in (*NAMES, "CAP_ALL"):
        near = get_close_matches(name, NAMES, n=1)
        raise node.error(f"a capability{f', perhaps {near[0]}' if near else ''}")
    return name


def address(node: Node) -> str:
    """Return an IP address."""
    return node.matching(lambda given: canonical_address(given) is not None, "an IP address")


def host_entry(node: Node) -> tuple[str, str]:
    """Return address and name of NAME=IP, or of NAME:IP."""
    name, separator, address = re.match(r"([^=:]*)([=:]?)(.*)", node.string(), re.DOTALL).groups()  # type: ignore[union-attr]
    address = address.strip("[]")
    if not separator or not name or (address != HOST_GATEWAY and canonical_address(address) is None):
        raise node.error("NAME=ADDRESS, with an IP address or host-gateway")
    return address, name


HOST_GATEWAY = "host-gateway"


def hostname(node: Node) -> str:
    """Return the name of a host."""
    name = text(node)
    fault = find_fault(name)
    if fault is not None:
        raise node.error(f"a host name: it {fault}")
    return name


def restart_policy(node: Node) -> tuple[str, int | None]:
    """Return the policy as minit has it, and the most restarts."""
    value = text(node)
    policy, colon, count = value.partition(":")
    policy = {"no": "never", "false": "never", "always": "always", "unless-stopped": "always"}.get(policy, policy)
    if policy not in ("never", "always", "on-failure") or (
        colon and not (policy == "on-failure" and count.isdecimal())
    ):
        raise node.error("no, always, on-failure, on-failure:COUNT or unless-stopped")
    return policy, int(count) if colon else None


def network_mode(node: Node) -> str:
    """Return the network of a service that has no others."""
    mode = node.string()
    if mode.startswith(("service:", "container:")):
        raise node.error("host, none or bridge (a pod has a network of its own)")
    return node.one_of("host", "none", "bridge", "default")


def platform(node: Node) -> Processor:
    """Return the processor of linux/NAME."""
    system, _, name = node.string().partition("/")
    architecture, _, variant = name.partition("/")
    for processor in PROCESSORS:
        is_it = name == processor.name or (architecture == processor.architecture and variant in processor.variants)
        if system == "linux" and is_it:
            return processor
    raise node.error(" or ".join(f"linux/{processor.name}" for processor in PROCESSORS))


def pull_policy(node: Node) -> str:
    """Return when an image is fetched."""
    policy = node.one_of("always", "never", "missing", "if_not_present", "build")
    return "missing" if policy == "if_not_present" else policy


def user(node: Node) -> tuple[str, str | None]:
    """Return user and group, None without a group."""
    user, colon, group = text(node).partition(":")
    if not user or (colon and not group):
        raise node.error("USER or USER:GROUP")
    return user, group or None


def group_id(node: Node) -> int:
    """Return the number of a group."""
    return number(0, MAX_ID)(node)


def security_option(node: Node) -> str:
    """Return one of the options that a pod can have."""
    value = node.string()
    kind, _, rest = value.replace("=", ":", 1).partition(":")
    known = {"no-new-privileges": ("", "true", "false"), "label": ("disable",), "seccomp": None, "apparmor": None}
    choices = known.get(kind, ())
    if kind not in known or (choices is not None and rest not in choices) or (choices is None and not rest):
        raise node.error("no-new-privileges:true, seccomp:unconfined, seccomp:FILE, apparmor:PROFILE or label:disable")
    return f"{kind}:{rest}"
