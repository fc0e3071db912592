"""The plugin ptp: a pair of links between pod and host, and a route to the pod on the host."""

from __future__ import annotations

from ipaddress import ip_interface

from minit.base.errors import NetworkError
from minit.network.addresses import IPAddress, only
from minit.network.builtin import attachment
from minit.network.builtin.attachment import check_attachment
from minit.network.builtin.call import Call, accepts_routers, dns, ipam_type, mtu_of_pair, protection
from minit.network.builtin.sides import Sides, Undo, add_routes, enable_forwarding, prepare_pod_link, usual_gateways
from minit.network.netlink.messages import SCOPE_HOST, SCOPE_LINK, Link, NewRoute
from minit.network.protocol import Address, Interface, Result

delete = attachment.delete


def add(call: Call) -> Result:
    """Connect the pod; NetworkError, with nothing left behind, on a failure."""
    config, request = call.config, call.request
    if ipam_type(config) is None:
        raise config["ipam"].error("an address manager")
    configured, size, is_routed, wanted = dns(config), mtu_of_pair(config), accepts_routers(config), protection(config)
    with Sides(request) as sides, Undo() as undo:
        leased = attachment.lease(call, undo)
        ends = [(one, _gateway(one)) for one in leased.addresses]
        addresses = [one.address for one in leased.addresses]
        enable_forwarding(addresses)
        host, pod = attachment.connect(sides, request, size, None, undo)
        prepare_pod_link(sides.namespace, pod, addresses, accept_ra=is_routed)
        _configure_pod(sides, pod, leased, ends)
        for one, gateway in ends:
            # All pods have the same gateway address of the host, which all the host's ends have.
            sides.host.add_address(host, ip_interface(gateway))
            sides.host.add_route(host, NewRoute(destination=only(one.address.ip), scope=SCOPE_HOST))
        attachment.guard(call, wanted, host, pod, addresses, undo)
        sides.host.wait_until_running(host.name)
    return Result(
        interfaces=(
            Interface(name=host.name, mac=host.mac),
            Interface(name=request.interface, mac=pod.mac, sandbox=request.namespace),
        ),
        addresses=attachment.of_interface(leased.addresses, 1),
        routes=leased.routes,
        dns=attachment.name_service(configured, leased.dns),
    )


def check(call: Call) -> None:
    """Raise NetworkError with the first difference from the result of `add`."""
    check_attachment(call, bridge=None)


def _gateway(address: Address) -> IPAddress:
    if address.gateway is None:
        raise NetworkError(f"the address manager gave {address.address} without a gateway")
    return address.gateway


def _configure_pod(sides: Sides, pod: Link, leased: Result, ends: list[tuple[Address, IPAddress]]) -> None:
    for one, _ in ends:
        sides.pod.add_address(pod, one.address)
    sides.pod.set_up(pod)
    for one, gateway in ends:
        sides.pod.add_route(pod, NewRoute(destination=only(gateway), source=one.address.ip, scope=SCOPE_LINK))
    add_routes(sides.pod, pod, leased.routes, usual_gateways(leased.addresses))
    # The neighbours in the subnet are not on this link: only the gateway is, and all packets go by the gateway. But not
    # before now, as the other routes may go by addresses of the subnet.
    for one, gateway in ends:
        sides.pod.delete_route(pod, one.address.network)
        sides.pod.add_route(pod, NewRoute(destination=one.address.network, gateway=gateway, source=one.address.ip))
