"""The plugin bridge: the pod's link is a port of a bridge of the host, which stays when pods go."""

from __future__ import annotations

from collections.abc import Mapping

from minit.errors import NetworkError
from minit.network.builtin import attachment
from minit.network.builtin.attachment import Lease, Sides
from minit.network.builtin.checks import check_attachment
from minit.network.builtin.config import BridgeConfig, ConfiguredRoute, read_bridge
from minit.network.ipv4 import Subnet, format_address
from minit.network.netlink.links import Link, Links, run_in_namespace, write_sysctl
from minit.network.request import Request
from minit.network.result import Address, Interface, Result

_BRIDGE = "bridge"
_EVERYWHERE = Subnet(address=0, prefix=0)

delete = attachment.delete


def add(config: Mapping[str, object], request: Request, previous: Result | None) -> Result:
    """Connect the pod; NetworkError, with nothing left of it but the bridge, if it cannot be."""
    settings = read_bridge(config)
    dns = attachment.name_service(settings.ipam, settings.dns)
    addresses: tuple[Address, ...] = ()
    routes: tuple[ConfiguredRoute, ...] = ()
    with attachment.Sides(request) as sides, attachment.Undo() as undo:
        lease = None if settings.ipam is None else attachment.lease(settings.ipam, request, undo)
        bridge = _ensure_bridge(sides.host, settings)
        host, pod = attachment.connect(sides, request, settings.mtu, undo)
        sides.host.join_bridge(host, bridge, settings.hairpin)
        if lease is None:
            sides.pod.set_up(pod)
        else:
            addresses = (lease.of_interface(2),)
            routes = _routes(settings, lease)
            _configure_pod(sides, pod, lease, routes)
            if settings.is_gateway:
                _ensure_address(sides.host, bridge, lease, settings.force_address)
                attachment.enable_forwarding()
            if settings.ip_masq:
                attachment.hide(lease, request, undo)
        sides.host.wait_until_running(host.name)
        # A bridge without an address of its own takes the lowest of its ports' hardware addresses.
        bridge = sides.host.get(bridge.name)
    return Result(
        interfaces=(
            Interface(name=bridge.name, mac=bridge.mac),
            Interface(name=host.name, mac=host.mac),
            Interface(name=request.interface, mac=pod.mac, sandbox=request.namespace),
        ),
        addresses=addresses,
        routes=attachment.result_routes(routes),
        dns=dns,
    )


def check(config: Mapping[str, object], request: Request, previous: Result | None) -> None:
    """Raise NetworkError with what differs from the result of `add`."""
    check_attachment(config, request, previous, bridge=read_bridge(config).bridge)


def _ensure_bridge(host: Links, settings: BridgeConfig) -> Link:
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


def _ensure_address(host: Links, bridge: Link, lease: Lease, force: bool) -> None:
    """Give the bridge the gateway's address, in place of another one if that is allowed."""
    wanted = (lease.gateway, lease.subnet.prefix)
    present = host.addresses(bridge)
    if wanted in present:
        return
    for address, prefix in present:
        if not force:
            has = f"{format_address(address)}/{prefix}"
            needs = f"{format_address(lease.gateway)}/{lease.subnet.prefix}"
            raise NetworkError(f"bridge {bridge.name} has the address {has}, not {needs}")
        host.delete_address(bridge, address, prefix)
    host.add_address(bridge, *wanted)
    host.fix_mac(host.get(bridge.name))


def _routes(settings: BridgeConfig, lease: Lease) -> tuple[ConfiguredRoute, ...]:
    routes = settings.ipam.routes if settings.ipam is not None else ()
    if settings.is_default_gateway and all(route.destination != _EVERYWHERE for route in routes):
        routes = (*routes, ConfiguredRoute(destination=_EVERYWHERE, gateway=lease.gateway))
    return routes


def _configure_pod(sides: Sides, pod: Link, lease: Lease, routes: tuple[ConfiguredRoute, ...]) -> None:
    # The neighbours learn at once who has the address now, which another pod may have had a moment ago.
    run_in_namespace(sides.namespace, lambda: write_sysctl(f"net/ipv4/conf/{pod.name}/arp_notify", "1"))
    sides.pod.add_address(pod, lease.address, lease.subnet.prefix)
    sides.pod.set_up(pod)
    for route in routes:
        sides.pod.add_route(pod, route.destination, gateway=route.gateway or lease.gateway)
