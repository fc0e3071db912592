"""
The configuration of the built-in plugins, with the keys of the reference plugins.

Keys are found whatever their case, as by the reference plugins. A configuration that asks for more than is built in is
left to a real plugin; one that is built in and wrong is refused with a line that names network and key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from minit.manifest.reader import Node
from minit.network.builtin.hostlocal import DEFAULT_DIRECTORY, Pool
from minit.network.ipv4 import Subnet, parse_address, parse_interface, parse_subnet, subnet_of
from minit.network.result import Dns
from minit.value import Value

T = TypeVar("T")

HOST_LOCAL = "host-local"

_COMMON = ("cniVersion", "name", "type", "dns", "prevResult", "capabilities")
_ATTACHMENT = (*_COMMON, "ipam", "ipMasq", "ipMasqBackend", "mtu")
_KEYS = {
    "loopback": _COMMON,
    "ptp": _ATTACHMENT,
    "bridge": (
        *_ATTACHMENT,
        *("bridge", "isGateway", "isDefaultGateway", "forceAddress", "hairpinMode", "promiscMode"),
    ),
}
_RANGE_KEYS = ("subnet", "rangeStart", "rangeEnd", "gateway")
_IPAM_KEYS = (*_RANGE_KEYS, "type", "name", "ranges", "routes", "dataDir", "resolvConf")
_ROUTE_KEYS = ("dst", "gw")

_DEFAULT_BRIDGE = "cni0"
_MAX_MTU = 65535
_MAX_INTERFACE_NAME = 15
_MAX_POOL_PREFIX = 30


class ConfiguredRoute(Value):
    """A route of the pod; without a gateway it goes by that of the addresses."""

    destination: Subnet
    gateway: int | None = None


class Ipam(Value):
    """The source of addresses, and the routes and the resolv.conf(5) that go with them."""

    pool: Pool
    routes: tuple[ConfiguredRoute, ...] = ()
    resolv_conf: str = ""


class PtpConfig(Value):
    """The configuration of a pair of links between pod and host."""

    network: str
    ipam: Ipam
    ip_masq: bool
    mtu: int | None
    dns: Dns


class BridgeConfig(Value):
    """The configuration of a bridge that pods are connected to; without `ipam` the pod's end gets no address."""

    network: str
    ipam: Ipam | None
    ip_masq: bool
    mtu: int | None
    dns: Dns
    bridge: str
    is_gateway: bool
    is_default_gateway: bool
    force_address: bool
    hairpin: bool
    promiscuous: bool


def is_supported(config: Mapping[str, object]) -> bool:
    """Tell whether a built-in plugin does all that the configuration asks for."""
    keys = _KEYS.get(str(config.get("type")))
    if keys is None or not _only(config, keys) or _field(config, "ipMasqBackend") not in (None, "", "nftables"):
        return False
    ipam = _field(config, "ipam") or {}
    if not isinstance(ipam, dict) or not ipam:
        return True
    return (
        _field(ipam, "type") in (None, HOST_LOCAL)
        and _only(ipam, _IPAM_KEYS)
        and _has_one_range(ipam)
        and all(isinstance(route, dict) and _only(route, _ROUTE_KEYS) for route in _list(ipam, "routes"))
        and not _has_ipv6(ipam)
    )


def read_ptp(config: Mapping[str, object]) -> PtpConfig:
    """Return what a configuration says to the plugin ptp; ManifestError if it is wrong."""
    root = _root(config)
    return PtpConfig(
        network=network_name(config),
        ipam=_ipam(root),
        ip_masq=_truth(root["ipMasq"]),
        mtu=_mtu(root),
        dns=_dns(root["dns"]),
    )


def read_bridge(config: Mapping[str, object]) -> BridgeConfig:
    """Return what a configuration says to the plugin bridge; ManifestError if it is wrong."""
    root = _root(config)
    is_default_gateway = _truth(root["isDefaultGateway"])
    name = root["bridge"].optional(lambda node: node.matching(_is_interface_name, "the name of an interface"))
    hairpin, promiscuous = _truth(root["hairpinMode"]), _truth(root["promiscMode"])
    if hairpin and promiscuous:
        raise root["hairpinMode"].error("false with promiscMode")
    return BridgeConfig(
        network=network_name(config),
        ipam=_ipam(root) if root["ipam"].raw() else None,
        ip_masq=_truth(root["ipMasq"]),
        mtu=_mtu(root),
        dns=_dns(root["dns"]),
        bridge=name or _DEFAULT_BRIDGE,
        is_gateway=is_default_gateway or _truth(root["isGateway"]),
        is_default_gateway=is_default_gateway,
        force_address=_truth(root["forceAddress"]),
        hairpin=hairpin,
        promiscuous=promiscuous,
    )


def network_name(config: Mapping[str, object]) -> str:
    """Return the name of the network, which names the directory of its leases; ManifestError if it cannot."""
    return _root(config)["name"].matching(_is_file_name, "the name of a network")


def lease_parent(config: Mapping[str, object]) -> str:
    """Return the directory with those of all networks, whatever else is wrong with the configuration."""
    ipam = _field(config, "ipam")
    directory = _field(ipam, "dataDir") if isinstance(ipam, dict) else None
    return directory if directory and isinstance(directory, str) else DEFAULT_DIRECTORY


def uses_leases(config: Mapping[str, object]) -> bool:
    """Tell whether the network has an address manager."""
    return bool(_field(config, "ipam"))


def masquerades(config: Mapping[str, object]) -> bool:
    """Tell whether the network hides its pods behind the host's address."""
    return bool(_field(config, "ipMasq"))


def _root(config: Mapping[str, object]) -> Node:
    return Node(dict(config), None, f'network "{config.get("name")}"')


def _ipam(root: Node) -> Ipam:
    ipam = root["ipam"]
    ipam["type"].one_of(HOST_LOCAL)
    return Ipam(
        pool=_pool(root, ipam),
        routes=ipam["routes"].each(_route),
        resolv_conf=ipam["resolvConf"].optional(Node.string) or "",
    )


def _pool(root: Node, ipam: Node) -> Pool:
    ranges = [node for nodes in ipam["ranges"].each(lambda node: node.each(_itself)) for node in nodes]
    block = ranges[0] if ranges and not ipam["subnet"].given else ipam
    subnet = _read(block["subnet"], parse_subnet, "an IPv4 subnet")
    if subnet.prefix > _MAX_POOL_PREFIX:
        raise block["subnet"].error(f"a prefix of at most {_MAX_POOL_PREFIX}")

    def in_subnet(name: str, otherwise: int) -> int:
        if not block[name].given:
            return otherwise
        address = _read(block[name], parse_address, "an IPv4 address")
        if address not in subnet:
            raise block[name].error(f"an address in {subnet}")
        return address

    # The gateway may be elsewhere, as for host-local.
    gateway = block["gateway"].optional(lambda node: _read(node, parse_address, "an IPv4 address"))
    first = in_subnet("rangeStart", subnet.address + 1)
    last = in_subnet("rangeEnd", subnet.broadcast - 1)
    if last < first:
        raise block["rangeEnd"].error("an address not before rangeStart")
    return Pool(
        network=root["name"].matching(_is_file_name, "the name of a network"),
        directory=ipam["dataDir"].optional(Node.string) or DEFAULT_DIRECTORY,
        subnet=subnet,
        first=first,
        last=last,
        gateway=subnet.address + 1 if gateway is None else gateway,
    )


def _route(node: Node) -> ConfiguredRoute:
    return ConfiguredRoute(
        destination=_read(node["dst"], _destination, "an IPv4 subnet"),
        gateway=node["gw"].optional(lambda gateway: _read(gateway, parse_address, "an IPv4 address")),
    )


def _destination(text: str) -> Subnet:
    return subnet_of(*parse_interface(text))


def _dns(node: Node) -> Dns:
    return Dns(
        nameservers=node["nameservers"].each(Node.string),
        domain=node["domain"].optional(Node.string) or "",
        search=node["search"].each(Node.string),
        options=node["options"].each(Node.string),
    )


def _mtu(root: Node) -> int | None:
    return root["mtu"].optional(lambda node: node.integer(0, _MAX_MTU)) or None


def _truth(node: Node) -> bool:
    return bool(node.optional(Node.boolean))


def _itself(node: Node) -> Node:
    return node


def _read(node: Node, parse: Callable[[str], T], expected: str) -> T:
    try:
        return parse(node.string())
    except ValueError as error:
        raise node.error(expected) from error


def _is_file_name(text: str) -> bool:
    return text not in ("", ".", "..") and "/" not in text


def _is_interface_name(text: str) -> bool:
    # As the kernel's dev_valid_name().
    return _is_file_name(text) and len(text.encode()) <= _MAX_INTERFACE_NAME and not set(text) & set(": \t\n\v\f\r")


def _only(fields: Mapping[str, object], keys: tuple[str, ...]) -> bool:
    """Tell whether all else that an object has is switched off."""
    known = {key.lower() for key in keys}
    return all(key.lower() in known or not value for key, value in fields.items())


def _field(fields: Mapping[str, object], key: str) -> object:
    return next((value for name, value in fields.items() if name.lower() == key.lower()), None)


def _list(fields: Mapping[str, object], key: str) -> list[object]:
    value = _field(fields, key)
    return value if isinstance(value, list) else []


def _has_one_range(ipam: Mapping[str, object]) -> bool:
    """Tell whether addresses come from a single block: a second set would be a second address."""
    sets = _list(ipam, "ranges")
    if not sets:
        return True
    blocks = sets[0] if len(sets) == 1 and isinstance(sets[0], list) else []
    return (
        len(blocks) == 1
        and isinstance(blocks[0], dict)
        and _only(blocks[0], _RANGE_KEYS)
        and not _field(ipam, "subnet")
    )


def _has_ipv6(value: object) -> bool:
    """Tell whether any address of an address manager's configuration is one of IPv6."""
    if isinstance(value, dict):
        return any(_has_ipv6(item) for key, item in value.items() if key.lower() not in ("datadir", "resolvconf"))
    if isinstance(value, list):
        return any(_has_ipv6(item) for item in value)
    return isinstance(value, str) and ":" in value
