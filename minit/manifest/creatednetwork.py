"""
Networks that a user creates: the request, the configuration for the request, and the facts in a configuration; pure.

The key `minit` marks the configuration of a created network, and has what no plugin reads.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection, Iterator
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from minit.base.errors import NetworkError
from minit.base.value import Value
from minit.manifest.reader import Node, read_json

IPNetwork = IPv4Network | IPv6Network

NAME_FORM = "letters, digits, dots, dashes and underscores, the first a letter or digit"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_RESERVED = frozenset({"all", "default", "default-restricted", "host", "none"})
_OWN = "minit"
_CNI_VERSION = "1.0.0"
_LINK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
_MTU = range(68, 65536)

# Few others take addresses there: docker begins with 172.17.0.0/16, podman with 10.88.0.0/16.
_POOLS = tuple(map(IPv4Network, ("10.180.0.0/14", "172.24.0.0/14", "192.168.0.0/16")))
_PREFIX = 24
_LOCAL_PREFIX = 0xFD  # RFC 4193: a random number of 40 bits follows
_PREFIX6 = 64


class NetworkDriver(StrEnum):
    """The kind of a network, named like the plugin."""

    BRIDGE = "bridge"
    MACVLAN = "macvlan"
    IPVLAN = "ipvlan"


_OPTIONS: dict[str, tuple[frozenset[NetworkDriver], str]] = {
    "mtu": (frozenset(NetworkDriver), "mtu"),
    "parent": (frozenset({NetworkDriver.MACVLAN, NetworkDriver.IPVLAN}), "master"),
    "mode": (frozenset({NetworkDriver.MACVLAN, NetworkDriver.IPVLAN}), "mode"),
    "bridge": (frozenset({NetworkDriver.BRIDGE}), "bridge"),
}
"""The options: the drivers with the option, and the plugin's key."""
_DOCKERS_OPTIONS = {
    "com.docker.network.driver.mtu": "mtu",
    "com.docker.network.bridge.name": "bridge",
    "macvlan_mode": "mode",
    "ipvlan_mode": "mode",
}


class NetworkRequest(Value):
    """A network to be created; without subnets a bridge gets a free one."""

    name: str
    driver: NetworkDriver = NetworkDriver.BRIDGE
    subnets: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    """Each in one of the subnets; by default the first address."""
    ranges: tuple[str, ...] = ()
    """Parts of subnets that pods get addresses from."""
    has_ipv6: bool = False
    """Without a subnet of IPv6 the network gets a free one."""
    is_internal: bool = False
    """The host passes nothing on between the network and others."""
    options: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


class Network(Value):
    """A configured network; `created` is empty unless `minit network create` made the network."""

    name: str
    path: str
    """The configuration file."""
    driver: str
    subnets: tuple[tuple[str, str], ...] = ()
    """Each with the gateway, which may be empty."""
    link: str = ""
    """The bridge, or the link of the host below the pods' links."""
    is_internal: bool = False
    created: str = ""
    options: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def is_created(self) -> bool:
        """Tell whether the network may be removed by a command."""
        return bool(self.created)


def check_network_name(name: str) -> None:
    """Raise NetworkError for a name that no created network can have."""
    if not _NAME.fullmatch(name):
        raise NetworkError(f'the name of a network has {NAME_FORM}: got "{name}"')
    if name in _RESERVED:
        raise NetworkError(f'a network cannot be called "{name}", which has a meaning for --net')


def network_document(request: NetworkRequest, taken: Collection[IPNetwork], created: str) -> dict[str, object]:
    """
    Return the configuration for a request; `taken` are the subnets of the host and of other networks.

    NetworkError for a request that contradicts itself, and for a subnet that overlaps with a taken one.
    """
    check_network_name(request.name)
    is_bridge = request.driver is NetworkDriver.BRIDGE
    if request.is_internal and not is_bridge:
        raise NetworkError(f"--internal is for bridges: a {request.driver} reaches what the host's link does")
    subnets = _subnets(request, taken)
    plugin = {
        "type": request.driver.value,
        **({"bridge": bridge_name(request.name), "isGateway": True} if is_bridge else {}),
        **({"ipMasq": True} if is_bridge and not request.is_internal else {}),
        **({"restricted": True} if request.is_internal else {}),
        **_plugin_options(request),
        "ipam": _address_manager(request, subnets),
    }
    own = {
        "created": created,
        "options": dict(request.options),
        "labels": dict(request.labels),
    }
    return {"cniVersion": _CNI_VERSION, "name": request.name, **plugin, _OWN: own}


def read_network(data: bytes, path: str) -> Network:
    """Return the facts in a configuration file, a list's of the first plugin; ManifestError as from the parser."""
    root = read_json(data, path)
    plugin = next(iter(root["plugins"].elements()), root)
    own = root[_OWN].if_object()
    return Network(
        name=root["name"].string(),
        path=path,
        driver=plugin["type"].string(),
        subnets=tuple(_subnets_of(plugin["ipam"].if_object())),
        link=_text(plugin["bridge"]) or _text(plugin["master"]),
        is_internal=plugin["restricted"].raw() is True,
        created=_text(own["created"]),
        options=own["options"].string_map(),
        labels=own["labels"].string_map(),
    )


def networks_in(network: Network) -> list[IPNetwork]:
    """Return the readable subnets of a network."""
    found: list[IPNetwork] = []
    for subnet, _ in network.subnets:
        try:
            found.append(ip_network(subnet, strict=False))
        except ValueError:
            continue  # the plugin's error, if a pod wants the network
    return found


def bridge_name(name: str) -> str:
    """Return the name of the bridge of a created network, which no other network's bridge has."""
    return f"minit-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def free_subnet(taken: Collection[IPNetwork]) -> IPv4Network:
    """Return a subnet of IPv4 that overlaps with no taken one; NetworkError if there is none."""
    for pool in _POOLS:
        for subnet in pool.subnets(new_prefix=_PREFIX):
            if _overlapping(subnet, taken) is None:
                return subnet
    raise NetworkError("no subnet is free: choose one with --subnet")


def free_local_subnet(taken: Collection[IPNetwork]) -> IPv6Network:
    """Return a random local subnet of IPv6 that overlaps with no taken one."""
    while True:
        first = bytes((_LOCAL_PREFIX,)) + secrets.token_bytes(5)
        subnet = IPv6Network((first.ljust(16, b"\0"), _PREFIX6))
        if _overlapping(subnet, taken) is None:
            return subnet


def _overlapping(subnet: IPNetwork, taken: Collection[IPNetwork]) -> IPNetwork | None:
    return next((one for one in taken if one.version == subnet.version and one.overlaps(subnet)), None)


def _subnets(request: NetworkRequest, taken: Collection[IPNetwork]) -> list[IPNetwork]:
    subnets: list[IPNetwork] = []
    for text in request.subnets:
        subnet = _parse_subnet("--subnet", text)
        other = _overlapping(subnet, (*taken, *subnets))
        if other is not None and request.driver is NetworkDriver.BRIDGE:
            raise NetworkError(f"--subnet: {subnet} overlaps with {other}, which the host or another network has")
        subnets.append(subnet)
    if request.driver is NetworkDriver.BRIDGE:
        if not subnets:
            subnets.append(free_subnet(taken))
        if request.has_ipv6 and all(subnet.version == 4 for subnet in subnets):
            subnets.append(free_local_subnet(taken))
    elif request.has_ipv6 and all(subnet.version == 4 for subnet in subnets):
        raise NetworkError(f"--ipv6: a {request.driver} needs a --subnet of IPv6, of the network around")
    return subnets


def _address_manager(request: NetworkRequest, subnets: list[IPNetwork]) -> dict[str, object]:
    gateways, ranges = list(request.gateways), list(request.ranges)
    if not subnets:
        if request.driver is NetworkDriver.IPVLAN or gateways or ranges:
            raise NetworkError(f"a network of {request.driver} needs a --subnet here, for addresses and the gateway")
        return {"type": "dhcp"}
    sets = []
    for subnet in subnets:
        chosen: dict[str, object] = {"subnet": str(subnet), "gateway": _gateway(subnet, gateways)}
        for text in [text for text in ranges if _parse_subnet("--ip-range", text).version == subnet.version]:
            part = _parse_subnet("--ip-range", text)
            if part[0] in subnet and part[-1] in subnet:
                ranges.remove(text)
                first = max(int(part[0]), int(subnet[1])) - int(subnet[0])
                last = min(int(part[-1]), int(_last(subnet))) - int(subnet[0])
                chosen |= {"rangeStart": str(subnet[first]), "rangeEnd": str(subnet[last])}
                break
        sets.append([chosen])
    for flag, left in (("--gateway", gateways), ("--ip-range", ranges)):
        if left:
            raise NetworkError(f"{flag}: {left[0]} is in none of {', '.join(map(str, subnets))}")
    ways = {subnet.version: "0.0.0.0/0" if subnet.version == 4 else "::/0" for subnet in subnets}
    routes = [] if request.is_internal else [{"dst": way} for way in ways.values()]
    return {"type": "host-local", "ranges": sets, **({"routes": routes} if routes else {})}


def _last(subnet: IPNetwork) -> IPv4Address | IPv6Address:
    return subnet[-2] if subnet.version == 4 and subnet.prefixlen < 31 else subnet[-1]


def _gateway(subnet: IPNetwork, gateways: list[str]) -> str:
    """Return the gateway of a subnet, and take it out of the wanted ones."""
    for text in gateways:
        try:
            address = ip_address(text)
        except ValueError:
            raise NetworkError(f'--gateway: expected an address, got "{text}"') from None
        if address in subnet:
            gateways.remove(text)
            return str(address)
    return str(subnet[1])


def _parse_subnet(flag: str, text: str) -> IPNetwork:
    try:
        subnet = ip_network(text)
    except ValueError:
        raise NetworkError(f'{flag}: expected ADDRESS/LENGTH without bits beyond the length, got "{text}"') from None
    if subnet.num_addresses < 4:
        raise NetworkError(f"{flag}: {subnet} has no room for a pod")
    return subnet


def _plugin_options(request: NetworkRequest) -> dict[str, object]:
    settings: dict[str, object] = {}
    for given, value in request.options:
        name = _DOCKERS_OPTIONS.get(given, given)
        drivers, key = _OPTIONS.get(name, (frozenset(), ""))
        if request.driver not in drivers:
            known = ", ".join(one for one, (of, _) in _OPTIONS.items() if request.driver in of)
            raise NetworkError(f'--opt: a network of {request.driver} has {known}, and no "{given}"')
        if name == "mtu":
            if not value.isdecimal() or int(value) not in _MTU:
                raise NetworkError(f'--opt: {given}: expected a number from {_MTU[0]} to {_MTU[-1]}, got "{value}"')
            settings[key] = int(value)
        elif name != "mode" and not _LINK_NAME.fullmatch(value):
            raise NetworkError(f'--opt: {given}: expected the name of a link, got "{value}"')
        else:
            settings[key] = value
    return settings


def _subnets_of(manager: Node) -> Iterator[tuple[str, str]]:
    """Yield the subnets of an address manager with the gateways; nothing of what is no text."""
    sets = [one for each in _elements(manager["ranges"]) for one in _elements(each)]
    for one in (manager, *(each.if_object() for each in sets)):
        if _text(one["subnet"]):
            yield _text(one["subnet"]), _text(one["gateway"])


def _elements(node: Node) -> list[Node]:
    return node.elements() if isinstance(node.raw(), list) else []


def _text(node: Node) -> str:
    value = node.raw()
    return value if isinstance(value, str) else ""
