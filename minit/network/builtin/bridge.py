"""The plugin bridge: the pod's link is a port of a bridge of the host, which stays when pods go."""

from __future__ import annotations

from ipaddress import ip_interface

from minit.errors import NetworkError
from minit.manifest.reader import Node
from minit.network.addresses import EVERYWHERE, IPAddress, IPInterface
from minit.network.builtin import attachment
from minit.network.builtin.attachment import Sides
from minit.network.builtin.call import Call
from minit.network.builtin.checks import check_attachment
from minit.network.builtin.settings import dns, interface_name, masquerades, mtu, truth
from minit.network.netlink.links import Links, run_in_namespace, write_sysctl
from minit.network.netlink.messages import Link
from minit.network.result import Address, Interface, Result, Route
from minit.value import Value

_BRIDGE = "bridge"
_DEFAULT_BRIDGE = "cni0"

delete = attachment.delete


class Settings(Value):
    """The configuration of a bridge that pods are connected to."""

    bridge: str
    mtu: int | None
    ip_masq: bool
    is_gateway: bool
    is_default_gateway: bool
    force_address: bool
    hairpin: bool
    promiscuous: bool


def read_settings(config: Node) -> Settings:
    """Return what a configuration says; ManifestError if it is wrong."""
    is_default_gateway = truth(config["isDefaultGateway"])
    hairpin, promiscuous = truth(config["hairpinMode"]), truth(config["promiscMode"])
    if hairpin and promiscuous:
        raise config["hairpinMode"].error("false with promiscMode")
    return Settings(
        bridge=interface_name(config["bridge"]) or _DEFAULT_BRIDGE,
        mtu=mtu(config),
        ip_masq=masquerades(config),
        is_gateway=is_default_gateway or truth(config["isGateway"]),
        is_default_gateway=is_default_gateway,
        force_address=truth(config["forceAddress"]),
        hairpin=hairpin,
        promiscuous=promiscuous,
    )


def add(call: Call) -> Result:
    """Connect the pod; NetworkError, with nothing left of it but the bridge, if it cannot be."""
    settings, configured, request = read_settings(call.config), dns(call.config), call.request
    with attachment.Sides(request) as sides, attachment.Undo() as undo:
        leased = attachment.lease(call, undo)
        bridge = _ensure_bridge(sides.host, settings)
        host, pod = attachment.connect(sides, request, settings.mtu, undo)
        sides.host.join_bridge(host, bridge, settings.hairpin)
        gateways = [(_gateway(one), one) for one in leased.addresses]
        routes = _routes(settings, leased, [gateway.ip for gateway, _ in gateways])
        _configure_pod(sides, pod, leased.addresses, routes, [gateway.ip for gateway, _ in gateways])
        if leased.addresses and settings.is_gateway:
            for gateway, _ in gateways:
                _ensure_address(sides.host, bridge, gateway, settings.force_address)
            attachment.enable_forwarding(leased.addresses)
        if leased.addresses and settings.ip_masq:
            attachment.hide(call, leased.addresses, undo)
        sides.host.wait_until_running(host.name)
        # A bridge without an address of its own takes the lowest of its ports' hardware addresses.
        bridge = sides.host.get(bridge.name)
    return Result(
        interfaces=(
            Interface(name=bridge.name, mac=bridge.mac),
            Interface(name=host.name, mac=host.mac),
            Interface(name=request.interface, mac=pod.mac, sandbox=request.namespace),
        ),
        addresses=attachment.of_interface(leased.addresses, 2),
        routes=routes,
        dns=attachment.name_service(configured, leased.dns),
    )


def check(call: Call) -> None:
    """Raise NetworkError with what differs from the result of `add`."""
    check_attachment(call, bridge=read_settings(call.config).bridge)


def _gateway(address: Address) -> IPInterface:
    """Return the gateway of an address with the length of the subnet's prefix: the first address if none is given."""
    subnet = address.address.network
    return ip_interface((address.gateway or subnet.network_address + 1, subnet.prefixlen))


def _ensure_bridge(host: Links, settings: Settings) -> Link:
    host.add_bridge(settings.bridge, settings.mtu)
    bridge = host.get(settings.bridge)
    if bridge.kind != _BRIDGE:
        raise NetworkError(f"interface {bridge.name} exists already and is no bridge")
    if settings.promiscuous:
        host.set_promiscuous(bridge)
    try:
        write_sysctl(f"net/ipv6/conf/{bridge.name}/accept_ra", "0")
    except NetworkError:
        pass  # there is no IPv6; where there is, no pod may be taken for a router
    host.set_up(bridge)
    return bridge


def _ensure_address(host: Links, bridge: Link, wanted: IPInterface, force: bool) -> None:
    """Give the bridge the gateway's address, in place of another one of the family if that is allowed."""
    present = [one for one in host.addresses(bridge) if one.version == wanted.version and not one.is_link_local]
    if wanted in present:
        return
    for address in present:
        if not force:
            raise NetworkError(f"bridge {bridge.name} has the address {address}, not {wanted}")
        host.delete_address(bridge, address)
    host.add_address(bridge, wanted)
    host.fix_mac(host.get(bridge.name))


def _routes(settings: Settings, leased: Result, gateways: list[IPAddress]) -> tuple[Route, ...]:
    routes = leased.routes
    for gateway in gateways if settings.is_default_gateway else ():
        everywhere = EVERYWHERE[gateway.version]
        if all(route.destination != everywhere for route in routes):
            routes = (*routes, Route(destination=everywhere, gateway=gateway))
    return routes


def _configure_pod(
    sides: Sides, pod: Link, addresses: tuple[Address, ...], routes: tuple[Route, ...], gateways: list[IPAddress]
) -> None:
    if addresses:
        # The neighbours learn at once who has the address now, which another pod may have had a moment ago.
        run_in_namespace(sides.namespace, lambda: write_sysctl(f"net/ipv4/conf/{pod.name}/arp_notify", "1"))
    for address in addresses:
        sides.pod.add_address(pod, address.address)
    sides.pod.set_up(pod)
    usual = {gateway.version: gateway for gateway in reversed(gateways)}
    for route in routes:
        sides.pod.add_route(pod, route.destination, route.gateway or usual.get(route.destination.version))
