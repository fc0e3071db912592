"""
The hosts files by which pods on the same networks find each other; pure.

A name belongs to a pod, as the host name, or to an app of a pod. The image may have chosen an app's name, so an app's
name never displaces a name that a user gave to another pod, nor a name that the file already had.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from minit.base.value import Value

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_LOCAL = frozenset(("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"))
_HEADING = b"# Pods on the same networks, kept up to date by minit\n"


class NamedPod(Value):
    """
    A pod that other pods find by name: `names` come from the user, `apps` are the names of the apps. `aliases` are
    further names of the user's, each with the only network where the name is known, or with none for every network.

    `base` is the beginning of the pod's own hosts file, None without a file. `addresses` are by network. `directory` is
    the pod directory, and `started`, in nanoseconds since 1970, orders the pods.
    """

    uuid: str
    base: str | None
    names: tuple[str, ...]
    apps: tuple[str, ...]
    aliases: tuple[tuple[str, str], ...] = ()
    directory: str = ""
    started: int = 0
    addresses: tuple[tuple[str, tuple[str, ...]], ...] = ()


def hosts_files(pods: Iterable[NamedPod]) -> dict[str, bytes]:
    """Return the hosts file of each pod with a hosts file, by UUID: only pods on the same networks are in the file."""
    ordered = sorted(pods, key=lambda pod: (pod.started, pod.uuid))
    texts = {}
    blocks: dict[tuple[str, ...], list[tuple[bytes, tuple[str, ...]]]] = {}
    for pod in ordered:
        if pod.base is not None:
            networks = tuple(sorted(name for name, _ in pod.addresses))
            if networks not in blocks:
                blocks[networks] = _lines(ordered, frozenset(networks))
            texts[pod.uuid] = _text(pod.base, blocks[networks])
    return texts


def _lines(pods: Iterable[NamedPod], networks: frozenset[str]) -> list[tuple[bytes, tuple[str, ...]]]:
    """Return the addresses of pods on some networks, each with its names."""
    met = [(pod, network, each) for pod in pods for network, each in pod.addresses if network in networks]
    given = {name.lower() for pod, network, _ in met for name in _given_names(pod, network)}
    lines = []
    for pod, network, addresses in met:
        apps = (name for name in pod.apps if name.lower() not in given)
        names = tuple(name for name in dict.fromkeys((*_given_names(pod, network), *apps)) if is_usable_name(name))
        lines += [(address.encode(), names) for address in addresses if names]
    return lines


def _given_names(pod: NamedPod, network: str) -> tuple[str, ...]:
    """Return the names that the user gave the pod on a network."""
    return *pod.names, *(name for only, name in pod.aliases if only in ("", network))


def _text(base: str, lines: Iterable[tuple[bytes, tuple[str, ...]]]) -> bytes:
    own = {name.lower() for line in base.splitlines() for name in line.partition("#")[0].split()[1:]}
    block = []
    for address, names in lines:
        left = [name for name in names if name.lower() not in own]
        if left:
            block.append(address + b"\t" + " ".join(left).encode() + b"\n")
    data = base.encode(errors="surrogateescape")
    end = b"" if data.endswith(b"\n") or not data else b"\n"
    return data + end + (_HEADING + b"".join(block) if block else b"")


def is_usable_name(name: str) -> bool:
    """Tell whether a name may stand for another pod in a hosts file."""
    # An address as a name would have a pod answer for somebody else's.
    return _NAME.fullmatch(name) is not None and name.lower() not in _LOCAL and not _is_number(name)


def _is_number(name: str) -> bool:
    return all(part.isdecimal() or part.lower().startswith("0x") for part in name.split("."))


def encode_pod(pod: NamedPod) -> dict[str, object]:
    """Return a pod as JSON."""
    return {
        **vars(pod),
        "aliases": [list(each) for each in pod.aliases],
        "addresses": {name: list(each) for name, each in pod.addresses},
    }


def decode_pod(fields: Mapping[str, object]) -> NamedPod:
    """Return the pod of `encode_pod`; TypeError, KeyError or ValueError if it is none."""
    texts = {name: _text_of(fields[name]) for name in ("uuid", "directory")}
    base, addresses, started = fields["base"], fields["addresses"], fields["started"]
    aliases = fields.get("aliases", [])  # none in the record of an older launcher
    if not isinstance(aliases, list) or not isinstance(addresses, dict) or not isinstance(started, int):
        raise TypeError("not a pod")
    return NamedPod(
        **texts,
        base=None if base is None else _text_of(base),
        names=_texts_of(fields["names"]),
        apps=_texts_of(fields["apps"]),
        aliases=tuple((only, name) for only, name in map(_texts_of, aliases)),
        started=started,
        addresses=tuple((_text_of(name), _texts_of(each)) for name, each in addresses.items()),
    )


def _texts_of(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return tuple(map(_text_of, value))


def _text_of(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value
