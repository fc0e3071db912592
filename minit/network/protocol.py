"""Requests to a plugin of the CNI, and answers: parameters, results, error codes (CNI specification, 2 and 5)."""

from __future__ import annotations

from minit.base.value import Value, replace
from minit.manifest.networkconfig import CNI_VERSIONS, is_at_least
from minit.manifest.reader import Node
from minit.network.addresses import (
    IPAddress,
    IPInterface,
    IPNetwork,
    parse_address,
    parse_destination,
    parse_interface,
)

JsonObject = dict[str, object]

_LISTS_SINCE = "0.3.0"  # before, a result had at most one address of each family, with its own routes
_FAMILY_OMITTED_SINCE = "1.0.0"
_DETAILS_SINCE = "1.1.0"
_VERSIONS = (4, 6)
_LARGEST_INDEX = (1 << 31) - 1
_LARGEST_NUMBER = (1 << 32) - 1  # rtnetlink(7) has attributes of 32 bits

# The codes of a plugin's errors (CNI, "Error"); the last two are the reference plugins' own.
INCOMPATIBLE_VERSION = 1
UNSUPPORTED_FIELD = 2
INVALID_ENVIRONMENT = 4
IO_FAILURE = 5
DECODING_FAILURE = 6
INVALID_CONFIGURATION = 7
INVALID_NAMESPACE = 8
NOT_AVAILABLE = 50  # answered to STATUS alone: no ADD would succeed
ANY_OTHER = 999


class Interface(Value):
    """
    A link made by a plugin; `sandbox` is the path of its network namespace, empty for the host's.

    The fields from `mtu` on are those of 1.1.0: the MTU in bytes, the socket of a user-space network, and the PCI
    address of a network card.
    """

    name: str
    mac: str = ""
    sandbox: str = ""
    mtu: int | None = None
    socket_path: str = ""
    pci_id: str = ""


class Address(Value):
    """An address of the pod; `interface` is an index into the result's interfaces."""

    address: IPInterface
    gateway: IPAddress | None = None
    interface: int | None = None


class Route(Value):
    """
    A route of the pod; without a gateway it takes the address's gateway.

    The fields from `mtu` on are those of 1.1.0: bytes of a packet and of a TCP segment, and the metric, table and scope
    of ip-route(8).
    """

    destination: IPNetwork
    gateway: IPAddress | None = None
    mtu: int | None = None
    advertised_mss: int | None = None
    priority: int | None = None
    table: int | None = None
    scope: int | None = None


class Dns(Value):
    """The network's settings of name resolution, resolv.conf(5)."""

    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class Result(Value):
    """The outcome of ADD, of any version of the specification."""

    interfaces: tuple[Interface, ...] = ()
    addresses: tuple[Address, ...] = ()
    routes: tuple[Route, ...] = ()
    dns: Dns = Dns()

    @property
    def ipv4(self) -> Address | None:
        """The pod's first IPv4 address, which alone rkt knows; None without any."""
        return self.first_address(4)

    def first_address(self, version: int) -> Address | None:
        """Return the pod's first address of IP version 4 or 6; None without any."""
        for address in self.addresses:
            if address.address.version == version and self._is_inside(address):
                return address
        return None

    def _is_inside(self, address: Address) -> bool:
        # A plugin may also report addresses of the host's end.
        index = address.interface
        return index is None or not 0 <= index < len(self.interfaces) or bool(self.interfaces[index].sandbox)


def read_result(value: object, source: str, version: str) -> Result:
    """
    Return the result in a JSON value, of the version in the value, or else of `version`.

    In a result before 0.3.0, name servers without an IPv4 address do not count, as in rkt. ManifestError names `source`
    and the place.
    """
    root = Node(value, None, source)
    if root["cniVersion"].optional(Node.string):
        version = root["cniVersion"].one_of(*CNI_VERSIONS)
    if not is_at_least(version, _LISTS_SINCE):
        return _read_old(root)
    return Result(
        interfaces=root["interfaces"].each(_read_interface),
        addresses=root["ips"].each(_read_address),
        routes=root["routes"].each(read_route),
        dns=read_dns(root["dns"]),
    )


def write_result(result: Result, version: str) -> JsonObject:
    """
    Return `result` as the JSON object of a version of the specification.

    Before 0.3.0 there is room for only the first address of each family, and the routes of these families; before 1.1.0
    for only the first fields of an interface and of a route.
    """
    written: JsonObject = {"cniVersion": version}
    has_details = is_at_least(version, _DETAILS_SINCE)
    if not is_at_least(version, _LISTS_SINCE):
        _write_old(result, written)
    else:
        with_family = not is_at_least(version, _FAMILY_OMITTED_SINCE)
        if result.interfaces:
            written["interfaces"] = [_write_interface(interface, has_details) for interface in result.interfaces]
        if result.addresses:
            written["ips"] = [_write_address(address, with_family) for address in result.addresses]
        if result.routes:
            written["routes"] = [_write_route(route, has_details) for route in result.routes]
    written["dns"] = _write_dns(result.dns)
    return written


def _read_old(root: Node) -> Result:
    addresses = []
    routes: list[Route] = []
    for version in _VERSIONS:
        section = root[f"ip{version}"]
        if section.given:
            address = section["ip"].parsed(parse_interface, "an address in CIDR notation")
            addresses.append(Address(address=address, gateway=_read_ip(section["gateway"])))
            routes += section["routes"].each(read_route)
    result = Result(addresses=tuple(addresses), routes=tuple(routes), dns=read_dns(root["dns"]))
    return result if result.ipv4 else replace(result, dns=Dns())


def _read_interface(node: Node) -> Interface:
    return Interface(
        name=node["name"].string(),
        mac=node["mac"].optional(Node.string) or "",
        sandbox=node["sandbox"].optional(Node.string) or "",
        mtu=node["mtu"].optional(_read_number) or None,
        socket_path=node["socketPath"].optional(Node.string) or "",
        pci_id=node["pciID"].optional(Node.string) or "",
    )


def _read_address(node: Node) -> Address:
    return Address(
        address=node["address"].parsed(parse_interface, "an address in CIDR notation"),
        gateway=_read_ip(node["gateway"]),
        interface=node["interface"].optional(_read_index),
    )


def _read_index(node: Node) -> int:
    return node.integer(-1, _LARGEST_INDEX)


def read_route(node: Node) -> Route:
    """Return a route of a result or of a configuration."""
    destination = node["dst"].parsed(parse_destination, "a destination in CIDR notation")
    return Route(
        destination=destination,
        gateway=_read_ip(node["gw"]),
        # The reference plugins write 0 for a missing value.
        mtu=node["mtu"].optional(_read_number) or None,
        advertised_mss=node["advmss"].optional(_read_number) or None,
        priority=node["priority"].optional(_read_number) or None,
        table=node["table"].optional(_read_number),
        scope=node["scope"].optional(_read_number),
    )


def _read_number(node: Node) -> int:
    return node.integer(0, _LARGEST_NUMBER)


def _read_ip(node: Node) -> IPAddress | None:
    text = node.optional(Node.string)
    return node.parsed(parse_address, "an IP address") if text else None


def read_dns(node: Node) -> Dns:
    """Return the settings of a result or of a configuration, empty for an absent node."""
    return Dns(
        nameservers=node["nameservers"].each(Node.string),
        domain=node["domain"].optional(Node.string) or "",
        search=node["search"].each(Node.string),
        options=node["options"].each(Node.string),
    )


def _write_old(result: Result, written: JsonObject) -> None:
    for version in _VERSIONS:
        address = result.first_address(version)
        if address is not None:
            routes = [route for route in result.routes if route.destination.version == version]
            written_routes = [_write_route(route, False) for route in routes]
            section: JsonObject = {"gateway": _text(address.gateway), "routes": written_routes}
            written[f"ip{version}"] = {"ip": str(address.address), **_without_empty(section)}


def _write_interface(interface: Interface, has_details: bool) -> JsonObject:
    fields: JsonObject = {"mac": interface.mac, "sandbox": interface.sandbox}
    if has_details:
        fields |= {"mtu": interface.mtu, "socketPath": interface.socket_path, "pciID": interface.pci_id}
    return {"name": interface.name, **_without_empty(fields)}


def _write_address(address: Address, with_family: bool) -> JsonObject:
    written: JsonObject = {"version": str(address.address.version)} if with_family else {}
    if address.interface is not None:
        written["interface"] = address.interface
    return {**written, "address": str(address.address), **_without_empty({"gateway": _text(address.gateway)})}


def _write_route(route: Route, has_details: bool) -> JsonObject:
    fields: JsonObject = {"gw": _text(route.gateway)}
    if has_details:
        fields |= {"mtu": route.mtu, "advmss": route.advertised_mss, "priority": route.priority}
        fields |= {"table": route.table, "scope": route.scope}
    return {"dst": str(route.destination), **_without_empty(fields)}


def _text(address: IPAddress | None) -> str | None:
    return None if address is None else str(address)


def _write_dns(dns: Dns) -> JsonObject:
    lists = {"nameservers": dns.nameservers, "search": dns.search, "options": dns.options}
    return _without_empty({"domain": dns.domain, **{name: list(items) for name, items in lists.items()}})


def _without_empty(fields: JsonObject) -> JsonObject:
    return {name: value for name, value in fields.items() if value not in (None, "", [])}


class Request(Value):
    """
    The attachment of an interface of a pod to a network.

    `namespace` is the path of the pod's network namespace, empty for a vanished namespace; `args` is CNI_ARGS as given.
    """

    container_id: str
    namespace: str
    interface: str
    args: str = ""
