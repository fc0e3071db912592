"""The plugin bridge: the pod's link is a port of a bridge of the host, which stays when pods go."""

from __future__ import annotations

from ipaddress import ip_interface

from minit.base.errors import NetworkError
from minit.base.value import Value, replace
from minit.manifest.reader import Node
from minit.network.addresses import EVERYWHERE, IPInterface
from minit.network.builtin import attachment
from minit.network.builtin.attachment import check_attachment
from minit.network.builtin.call import (
    Call,
    accepts_routers,
    dns,
    interface_name,
    mtu_of_pair,
    protection,
    requested_mac,
    truth,
)
from minit.network.builtin.sides import (
    Sides,
    Undo,
    add_addresses,
    add_routes,
    enable_forwarding,
    ignore_routers,
    prepare_pod_link,
    usual_gateways,
)
from minit.network.namespace import own_namespace
from minit.network.netlink.bridges import Vlans, add_bridge, allow_vlan, filter_vlans, join_bridge, set_vlans
from minit.network.netlink.links import Links
from minit.network.netlink.messages import Link
from minit.network.protocol import Address, Interface, Result, Route

_BRIDGE = "bridge"

delete = attachment.delete

_DEFAULT_BRIDGE = "cni0"
_MAX_VLAN = 4094


class BridgeConfig(Value):
    """
    The configuration of a bridge for pods.

    `vlans` are the VLANs of a pod's port, None where the bridge knows no VLANs. With `is_down` the pod's end stays
    down.
    """

    bridge: str
    mtu: int | None
    is_gateway: bool
    is_default_gateway: bool
    force_address: bool
    hairpin: bool
    promiscuous: bool
    port_isolation: bool
    vlans: Vlans | None
    detects_duplicates: bool
    accept_ra: bool
    is_down: bool


def read_bridge_config(config: Node) -> BridgeConfig:
    """Return the configuration; ManifestError for a wrong one."""
    is_default_gateway = truth(config["isDefaultGateway"])
    hairpin, promiscuous = truth(config["hairpinMode"]), truth(config["promiscMode"])
    if hairpin and promiscuous:
        raise config["hairpinMode"].error("false with promiscMode")
    is_down = truth(config["disableContainerInterface"])
    if is_down and config["ipam"].raw():
        raise config["disableContainerInterface"].error("false with ipam")
    return BridgeConfig(
        bridge=interface_name(config["bridge"]) or _DEFAULT_BRIDGE,
        mtu=mtu_of_pair(config),
        is_gateway=is_default_gateway or truth(config["isGateway"]),
        is_default_gateway=is_default_gateway,
        force_address=truth(config["forceAddress"]),
        hairpin=hairpin,
        promiscuous=promiscuous,
        port_isolation=truth(config["portIsolation"]),
        vlans=_vlans(config),
        detects_duplicates=truth(config["enabledad"]),
        accept_ra=accepts_routers(config),
        is_down=is_down,
    )


def _vlans(config: Node) -> Vlans | None:
    untagged = config["vlan"].optional(_vlan) or 0
    tagged = config["vlanTrunk"].each(_range)
    if not untagged and not tagged:
        return None
    keeps_default = config["preserveDefaultVlan"].optional(Node.boolean)
    return Vlans(untagged=untagged, tagged=tagged, keeps_default=keeps_default is not False)


def _range(node: Node) -> tuple[int, int]:
    if node["id"].given:
        number = _vlan(node["id"])
        return number, number
    first, last = _vlan(node["minID"]), _vlan(node["maxID"])
    if last < first:
        raise node["maxID"].error("a number not below minID")
    return first, last


def _vlan(node: Node) -> int:
    return node.integer(0, _MAX_VLAN)


def add(call: Call) -> Result:
    """Connect the pod; NetworkError, with nothing left behind but the bridge, on a failure."""
    settings, configured, request = read_bridge_config(call.config), dns(call.config), call.request
    wanted = protection(call.config)
    with Sides(request) as sides, Undo() as undo:
        is_late = attachment.leases_by_link(call.config)
        leased = Result() if is_late else attachment.lease(call, undo)
        bridge = _ensure_bridge(sides.host, settings)
        host, pod = attachment.connect(sides, request, settings.mtu, requested_mac(call), undo)
        join_bridge(sides.host, host, bridge, hairpin=settings.hairpin, isolated=settings.port_isolation)
        if settings.vlans is not None:
            set_vlans(sides.host, host, settings.vlans)
        if is_late:
            _prepare_pod_link(sides, pod, settings, ())
            leased = attachment.lease(call, undo)
        addresses = tuple(map(_with_gateway, leased.addresses)) if settings.is_gateway else leased.addresses
        routes = _routes(settings, leased.routes, addresses)
        if not settings.is_down:
            _configure_pod(sides, pod, settings, addresses, routes)
        if settings.is_gateway and addresses:
            _be_gateway(sides.host, bridge, settings, [_of_bridge(one) for one in addresses])
        attachment.guard(call, wanted, host, pod, [one.address for one in leased.addresses], undo)
        if not settings.is_down:
            sides.host.wait_until_running(host.name)
        # A bridge made by another program takes the hardware address of a port, or of its first address.
        bridge = sides.host.get(bridge.name)
    return Result(
        interfaces=(
            Interface(name=bridge.name, mac=bridge.mac),
            Interface(name=host.name, mac=host.mac),
            Interface(name=request.interface, mac=pod.mac, sandbox=request.namespace),
        ),
        addresses=attachment.of_interface(addresses, 2),
        routes=routes,
        dns=attachment.name_service(configured, leased.dns),
    )


def check(call: Call) -> None:
    """Raise NetworkError with the first difference from the result of `add`."""
    settings = read_bridge_config(call.config)
    check_attachment(call, bridge=settings.bridge, is_down=settings.is_down)


def _with_gateway(address: Address) -> Address:
    """Return the address with a gateway, by default the first address of its subnet."""
    return replace(address, gateway=address.gateway or address.address.network.network_address + 1)


def _of_bridge(address: Address) -> IPInterface:
    """Return the gateway of an address with the length of the subnet's prefix."""
    assert address.gateway is not None  # `_with_gateway` has made sure
    return ip_interface((address.gateway, address.address.network.prefixlen))


def _ensure_bridge(host: Links, settings: BridgeConfig) -> Link:
    add_bridge(host, settings.bridge, settings.mtu)
    bridge = host.get(settings.bridge)
    if bridge.kind != _BRIDGE:
        raise NetworkError(f"interface {bridge.name} exists already and is no bridge")
    if settings.vlans is not None:
        filter_vlans(host, bridge)
    if settings.promiscuous:
        host.set_promiscuous(bridge)
    if not bridge.up:  # else the host may get its own way out by it
        ignore_routers(bridge.name)
    host.set_up(bridge)
    return bridge


def _be_gateway(host: Links, bridge: Link, settings: BridgeConfig, gateways: list[IPInterface]) -> None:
    """Give the host the gateways' addresses, on the bridge or, for a VLAN, on the bridge's port of the VLAN."""
    link = bridge
    if settings.vlans is not None and settings.vlans.untagged:
        link = _ensure_vlan_port(host, bridge, settings)
    for gateway in gateways:
        _ensure_address(host, link, gateway, settings.force_address)
    enable_forwarding(gateways)


def _ensure_vlan_port(host: Links, bridge: Link, settings: BridgeConfig) -> Link:
    """Return the host's own link in the VLAN; make or complete the link if necessary."""
    assert settings.vlans is not None
    vlans = Vlans(untagged=settings.vlans.untagged, keeps_default=settings.vlans.keeps_default)
    name = f"{bridge.name}.{vlans.untagged}"
    peer = attachment.named_after("veth", name)
    if host.find(name) is None:
        with own_namespace() as own:
            # Another pod of the VLAN may do the same at the same time, or be killed before its link is a port.
            host.add_veth(peer, name, own, settings.mtu, may_exist=True)
    port = host.find(peer)
    if port is not None:  # else the link is one of somebody else: a link of kind vlan on top of the bridge, say
        join_bridge(host, port, bridge)
        set_vlans(host, port, vlans)
        ignore_routers(name)
    allow_vlan(host, bridge, vlans.untagged)
    link = host.get(name)
    host.set_up(link)
    return link


def _ensure_address(host: Links, link: Link, wanted: IPInterface, force: bool) -> None:
    """
    Give a link the gateway's address, in place of another address if the configuration allows that.

    A link may have several IPv6 addresses whose subnets do not overlap.
    """
    present = [one for one in host.addresses(link) if one.version == wanted.version and not one.is_link_local]
    if wanted in present:
        return
    for address in present:
        if wanted.version == 6 and not address.network.overlaps(wanted.network):
            continue
        if not force:
            raise NetworkError(f"bridge {link.name} has the address {address}, not {wanted}")
        host.delete_address(link, address)
    host.add_address(link, wanted)
    host.fix_mac(host.get(link.name))


def _routes(settings: BridgeConfig, routes: tuple[Route, ...], addresses: tuple[Address, ...]) -> tuple[Route, ...]:
    for address in addresses if settings.is_default_gateway else ():
        everywhere = EVERYWHERE[address.address.version]
        if all(route.destination != everywhere for route in routes):
            routes = (*routes, Route(destination=everywhere, gateway=address.gateway))
    return routes


def _prepare_pod_link(sides: Sides, pod: Link, settings: BridgeConfig, addresses: tuple[Address, ...]) -> None:
    prepare_pod_link(
        sides.namespace,
        pod,
        [one.address for one in addresses],
        accept_ra=settings.accept_ra,
        accept_dad=settings.detects_duplicates if addresses else None,
    )


def _configure_pod(
    sides: Sides,
    pod: Link,
    settings: BridgeConfig,
    addresses: tuple[Address, ...],
    routes: tuple[Route, ...],
) -> None:
    _prepare_pod_link(sides, pod, settings, addresses)
    add_addresses(sides, pod, addresses, settings.detects_duplicates)
    add_routes(sides.pod, pod, routes, usual_gateways(addresses))
