"""The file in which flannel says what part of its network this host has: lines `FLANNEL_…=…`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from minit import jsontext
from minit.errors import NetworkError, describe
from minit.network.addresses import IPNetwork, parse_destination
from minit.network.builtin.smallfiles import read_file
from minit.value import Value

T = TypeVar("T")

_NETWORKS = ("FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK")
_SUBNETS = ("FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET")
_MTU = "FLANNEL_MTU"
_MASQUERADES = "FLANNEL_IPMASQ"
_LARGEST_MTU = 65535


class SubnetEnv(Value):
    """Whole networks, this host's subnets of them, the size of packets in bytes, and if flannel hides the pods."""

    networks: tuple[IPNetwork, ...]
    subnets: tuple[IPNetwork, ...]
    mtu: int
    masquerades: bool


def read_subnet_env(path: str) -> SubnetEnv:
    """Return what the file says; NetworkError if it is not there, or not as flannel writes it."""
    try:
        text = read_file(path).decode(errors="replace")
    except FileNotFoundError as error:
        raise NetworkError(f"{describe(error)}: flannel writes it when it runs") from error
    except OSError as error:
        raise NetworkError(describe(error)) from error
    return parse_subnet_env(text, path)


def parse_subnet_env(text: str, path: str) -> SubnetEnv:
    """Return what the text of a file says, of which errors name the `path`; other variables are ignored."""
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
