"""
The common part of plugins whose link is in the pod alone: macvlan, ipvlan, vlan, dummy and host-device.

The only remains of an attachment outside of the pod are its addresses. The link is found again by its name in the pod's
network namespace, and goes with that.
"""

from __future__ import annotations

from minit.base.errors import NetworkError
from minit.manifest.reader import Node
from minit.network.addresses import EVERYWHERE
from minit.network.builtin import attachment
from minit.network.builtin.addressing import add_addresses, add_routes, usual_gateways
from minit.network.builtin.attachment import Sides, Undo, pod_links
from minit.network.builtin.call import Call
from minit.network.builtin.checks import check_addresses, check_link, check_routes
from minit.network.builtin.linksettings import prepare_pod_link
from minit.network.builtin.settings import accepts_routers, interface_name, ipam_type, mtu, truth
from minit.network.netlink.links import Links
from minit.network.netlink.messages import Link
from minit.network.netlink.newlinks import NewLink
from minit.network.protocol.request import Request
from minit.network.protocol.result import Dns, Interface, Result


def need_manager(config: Node) -> None:
    """ManifestError for a network that has to have an address manager and has none."""
    if ipam_type(config) is None:
        raise config["ipam"].error("an address manager")


def below(call: Call, sides: Sides, default: str | None = None) -> tuple[Links, Link]:
    """
    Return the link that the pod's is to be on top of, `master`, and the links beside it.

    It is one of the host, or with `linkInContainer` of the pod. Without a name it is `default`, or else the one of the
    default route. NetworkError if there is no such link.
    """
    links, place = (sides.pod, "in the pod") if truth(call.config["linkInContainer"]) else (sides.host, "on the host")
    name = interface_name(call.config["master"]) or default
    link = _of_default_route(links) if name is None else links.find(name)
    if link is None:
        wanted = "default route" if name is None else f"interface {name}"
        raise NetworkError(f"{call.config['master'].where}: there is no {wanted} {place}")
    return links, link


def size(config: Node, lower: Link) -> int | None:
    """Return the largest size of packets, None if it is that of the link below; ManifestError if that has less."""
    wanted = mtu(config)
    if wanted is not None and wanted > lower.mtu:
        raise config["mtu"].error(f"at most {lower.mtu}, as {lower.name} has")
    return wanted


def make(sides: Sides, links: Links, request: Request, new: NewLink, undo: Undo) -> Link:
    """Make the pod's link on top of one of `links`, and return it; it is down."""
    refuse_existing(sides, request)
    undo.add(lambda: _delete_made(sides.pod, request, new.kind))
    links.add(new, None if links is sides.pod else sides.namespace)
    return sides.pod.get(request.interface)


def refuse_existing(sides: Sides, request: Request) -> None:
    """NetworkError if the pod has an interface of the name already."""
    if sides.pod.find(request.interface) is not None:
        raise NetworkError(f"interface {request.interface} exists already in the pod's network namespace")


def connect(
    call: Call,
    sides: Sides,
    pod: Link,
    undo: Undo,
    dns: Dns | None = None,
    leased: Result | None = None,
    has_neighbours: bool = True,
) -> Result:
    """
    Give the pod's link addresses and routes, bring it up, and return the outcome of ADD.

    They are from the address manager, none for a network without one, or `leased` before; so is what is known of names,
    unless `dns` is given. With neighbours, other machines, these learn at once who has the addresses, and are asked
    whether one of them has.
    """
    leased = _lease(call, sides, pod, undo) if leased is None else leased
    addresses = [one.address for one in leased.addresses]
    is_routed = accepts_routers(call.config)
    prepare_pod_link(sides.namespace, pod, addresses, accept_ra=is_routed, tells_neighbours=has_neighbours)
    add_addresses(sides, pod, leased.addresses, duplicates=has_neighbours)
    add_routes(sides.pod, pod, leased.routes, usual_gateways(leased.addresses))
    return Result(
        interfaces=(Interface(name=pod.name, mac=pod.mac, sandbox=call.request.namespace),),
        addresses=attachment.of_interface(leased.addresses, 0),
        routes=leased.routes,
        dns=leased.dns if dns is None else dns,
    )


def delete(call: Call, kind: str) -> None:
    """Remove the pod's link, if it is there, and give back its addresses, even if that fails."""
    attachment.remove(call, lambda: _delete_in_pod(call.request, kind))


def check(call: Call, kind: str | None, **wanted: object) -> None:
    """
    Raise NetworkError with the first thing that is not as the result of the last ADD says.

    `wanted` are fields of the pod's link, which is of a kind unless that can be any.
    """
    request, previous = call.request, call.need_result_of_add()
    attachment.check_lease(call)
    with Sides(request) as sides:
        pod = sides.pod.find(request.interface)
        if pod is None:
            raise NetworkError(f"interface {request.interface} is gone")
        if kind is not None and pod.kind != kind:
            raise NetworkError(f"interface {pod.name} is no {kind}")
        for name, value in wanted.items():
            if getattr(pod, name) != value:
                raise NetworkError(f"interface {pod.name} has the {name} {getattr(pod, name)}, not {value}")
        check_link(pod, request.namespace, previous)
        check_addresses(sides.pod.addresses(pod), pod, previous)
        check_routes(sides, previous)


def check_below(call: Call) -> None:
    """NetworkError if there is no link any more that the pod's is to be on top of."""
    with Sides(call.request) as sides:
        below(call, sides)


def _lease(call: Call, sides: Sides, pod: Link, undo: Undo) -> Result:
    if attachment.leases_by_link(call.config):
        # It brings the link up.
        prepare_pod_link(sides.namespace, pod, (), accept_ra=accepts_routers(call.config))
    leased = attachment.lease(call, undo)
    if ipam_type(call.config) is not None and not leased.addresses:
        raise NetworkError("the address manager gave no address")
    return leased


def _delete_in_pod(request: Request, kind: str) -> None:
    with pod_links(request) as pod:
        if pod is not None:
            _delete_made(pod, request, kind)


def _delete_made(links: Links, request: Request, kind: str) -> None:
    link = links.find(request.interface)
    if link is not None and link.kind == kind:
        links.delete(link)


def _of_default_route(links: Links) -> Link | None:
    everywhere = EVERYWHERE.values()
    index = next((one.index for one in links.routes() if one.destination in everywhere and one.index), None)
    return None if index is None else next((link for link in links.all() if link.index == index), None)
