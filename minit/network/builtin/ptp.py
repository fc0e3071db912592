"""The plugin ptp: a pair of links between pod and host, and a route to the pod on the host."""

from __future__ import annotations

from collections.abc import Mapping

from minit.network.builtin import attachment
from minit.network.builtin.attachment import Lease, Sides
from minit.network.builtin.checks import check_attachment
from minit.network.builtin.config import Ipam, read_ptp
from minit.network.ipv4 import Subnet
from minit.network.netlink.links import SCOPE_HOST, SCOPE_LINK, Link
from minit.network.request import Request
from minit.network.result import Interface, Result

_ONE_HOST = 32

delete = attachment.delete


def add(config: Mapping[str, object], request: Request, previous: Result | None) -> Result:
    """Connect the pod; NetworkError, with nothing left of it, if it cannot be."""
    settings = read_ptp(config)
    dns = attachment.name_service(settings.ipam, settings.dns)
    with attachment.Sides(request) as sides, attachment.Undo() as undo:
        lease = attachment.lease(settings.ipam, request, undo)
        attachment.enable_forwarding()
        host, pod = attachment.connect(sides, request, settings.mtu, undo)
        _configure_pod(sides, pod, lease, settings.ipam)
        # Every pod's gateway is one address of the host, which all its ends have.
        sides.host.add_address(host, lease.gateway, _ONE_HOST)
        sides.host.add_route(host, Subnet(address=lease.address, prefix=_ONE_HOST), scope=SCOPE_HOST)
        if settings.ip_masq:
            attachment.hide(lease, request, undo)
        sides.host.wait_until_running(host.name)
    return Result(
        interfaces=(
            Interface(name=host.name, mac=host.mac),
            Interface(name=request.interface, mac=pod.mac, sandbox=request.namespace),
        ),
        addresses=(lease.of_interface(1),),
        routes=attachment.result_routes(settings.ipam.routes),
        dns=dns,
    )


def check(config: Mapping[str, object], request: Request, previous: Result | None) -> None:
    """Raise NetworkError with what differs from the result of `add`."""
    check_attachment(config, request, previous, bridge=None)


def _configure_pod(sides: Sides, pod: Link, lease: Lease, ipam: Ipam) -> None:
    # The neighbours in the subnet are not on this link: only the gateway is, and everything goes by it.
    sides.pod.add_address(pod, lease.address, lease.subnet.prefix, prefix_route=False)
    sides.pod.set_up(pod)
    gateway = Subnet(address=lease.gateway, prefix=_ONE_HOST)
    sides.pod.add_route(pod, gateway, source=lease.address, scope=SCOPE_LINK)
    sides.pod.add_route(pod, lease.subnet, gateway=lease.gateway, source=lease.address)
    for route in ipam.routes:
        sides.pod.add_route(pod, route.destination, gateway=route.gateway or lease.gateway)
