"""
The plugins whose link is in the pod alone: loopback, macvlan, ipvlan, vlan, dummy; host-device shares code with them.

Outside the pod such an attachment leaves only its addresses. The plugins find the link by its name in the pod's network
namespace, and the link ends with the namespace.
"""

from __future__ import annotations

from minit.base.errors import NetworkError
from minit.manifest.reader import Node
from minit.network.addresses import EVERYWHERE
from minit.network.builtin import attachment
from minit.network.builtin.attachment import check_addresses, check_link, check_routes
from minit.network.builtin.call import (
    Call,
    accepts_routers,
    dns,
    interface_name,
    ipam_type,
    mac_address,
    mtu,
    requested_mac,
    truth,
)
from minit.network.builtin.sides import (
    Sides,
    Undo,
    add_addresses,
    add_routes,
    pod_links,
    prepare_pod_link,
    usual_gateways,
)
from minit.network.netlink.links import Links
from minit.network.netlink.messages import (
    DUMMY,
    IPVLAN,
    IPVLAN_MODES,
    MACVLAN,
    MACVLAN_MODES,
    VLAN,
    Link,
    NewLink,
    ipvlan_data,
    macvlan_data,
    vlan_data,
)
from minit.network.protocol import Address, Dns, Interface, Request, Result

_LOOPBACK = "lo"
_LOOPBACK_MAC = "00:00:00:00:00:00"

_DEFAULT_MACVLAN_MODE = "bridge"
_LARGEST_QUEUE = (1 << 32) - 1

_DEFAULT_IPVLAN_MODE = "l2"

_LARGEST_NUMBER = 4094


def _need_manager(config: Node) -> None:
    """Raise ManifestError if the network has no address manager."""
    if ipam_type(config) is None:
        raise config["ipam"].error("an address manager")


def _below(call: Call, sides: Sides, default: str | None = None) -> tuple[Links, Link]:
    """
    Return the link below the pod's link, `master`, and the links of its namespace.

    The link is on the host, or with `linkInContainer` in the pod. Without a name the link is `default`, or else the
    link of the default route. NetworkError if there is no such link.
    """
    links, place = (sides.pod, "in the pod") if truth(call.config["linkInContainer"]) else (sides.host, "on the host")
    name = interface_name(call.config["master"]) or default
    link = _of_default_route(links) if name is None else links.find(name)
    if link is None:
        wanted = "default route" if name is None else f"interface {name}"
        raise NetworkError(f"{call.config['master'].where}: there is no {wanted} {place}")
    return links, link


def _packet_size(config: Node, lower: Link) -> int | None:
    """Return the MTU, None for the MTU of the link below; ManifestError if the link below has a smaller MTU."""
    wanted = mtu(config)
    if wanted is not None and wanted > lower.mtu:
        raise config["mtu"].error(f"at most {lower.mtu}, as {lower.name} has")
    return wanted


def _make(sides: Sides, links: Links, request: Request, new: NewLink, undo: Undo) -> Link:
    """Make the pod's link, on top of a link of `links`; return the link, which is down."""
    refuse_existing(sides, request)
    undo.add(lambda: _delete_made(sides.pod, request, new.kind))
    links.add(new, None if links is sides.pod else sides.namespace)
    return sides.pod.get(request.interface)


def refuse_existing(sides: Sides, request: Request) -> None:
    """Raise NetworkError if the pod has an interface of the name already."""
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
    Give the pod's link addresses and routes, bring the link up, and return the outcome of ADD.

    Addresses and DNS come from the address manager, or from `leased`, which was leased before; a network without an
    address manager has none. `dns` replaces the name service. If the link has neighbours (other machines), the kernel
    tells them at once about the addresses, and asks whether a neighbour has an address.
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
    """Remove the pod's link if there is a link, and give back its addresses even if the removal fails."""
    attachment.remove(call, lambda: _delete_in_pod(call.request, kind))


def check(call: Call, kind: str | None, **wanted: object) -> None:
    """
    Raise NetworkError with the first difference from the result of the last ADD.

    `wanted` are fields of the pod's link; `kind` is None if the link may be of any kind.
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


def _check_below(call: Call) -> None:
    """Raise NetworkError if the link below the pod's link has vanished."""
    with Sides(call.request) as sides:
        _below(call, sides)


def _lease(call: Call, sides: Sides, pod: Link, undo: Undo) -> Result:
    if attachment.leases_by_link(call.config):
        # The DHCP client brings the link up.
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


def add_loopback(call: Call) -> Result:
    """Bring the pod's `lo` up, and pass on the result of the plugins before."""
    with Sides(call.request) as sides:
        link = sides.pod.get(_LOOPBACK)
        sides.pod.set_up(link)
        addresses = sides.pod.addresses(link)
    return call.previous or Result(
        interfaces=(Interface(name=_LOOPBACK, mac=_LOOPBACK_MAC, sandbox=call.request.namespace),),
        addresses=tuple(Address(address=address, interface=0) for address in addresses),
    )


def delete_loopback(call: Call) -> None:
    """Bring `lo` down, if the namespace still exists."""
    with pod_links(call.request) as pod:
        if pod is not None:
            pod.set_up(pod.get(_LOOPBACK), up=False)


def check_loopback(call: Call) -> None:
    """Raise NetworkError if `lo` is down."""
    with Sides(call.request) as sides:
        if not sides.pod.get(_LOOPBACK).up:
            raise NetworkError("interface lo is down")


def add_dummy(call: Call) -> Result:
    """Make a link that leads nowhere, for its addresses; NetworkError, with nothing left behind, on a failure."""
    request = call.request
    _need_manager(call.config)
    with Sides(request) as sides, Undo() as undo:
        pod = _make(sides, sides.pod, request, NewLink(kind=DUMMY, name=request.interface), undo)
        return connect(call, sides, pod, undo, has_neighbours=False)


def check_dummy(call: Call) -> None:
    """Raise NetworkError with the first difference from the result of `add_dummy`."""
    check(call, DUMMY)


def add_macvlan(call: Call) -> Result:
    """
    Make a link with its own hardware address, in the network of a link of the host.

    NetworkError, with nothing left behind, on a failure.
    """
    config, request, mode = call.config, call.request, _macvlan_mode(call)
    names, mac = dns(config), requested_mac(call) or mac_address(config["mac"])
    queue = config["bcqueuelen"].optional(lambda node: node.integer(0, _LARGEST_QUEUE)) or None
    with Sides(request) as sides, Undo() as undo:
        links, lower = _below(call, sides)
        new = NewLink(
            kind=MACVLAN,
            name=request.interface,
            lower=lower.index,
            mtu=_packet_size(config, lower),
            mac=mac,
            data=macvlan_data(mode, queue),
        )
        pod = _make(sides, links, request, new, undo)
        return connect(call, sides, pod, undo, names)


def check_macvlan(call: Call) -> None:
    """Raise NetworkError with the first difference from the result of `add_macvlan`."""
    _check_below(call)
    check(call, MACVLAN, mode=_macvlan_mode(call))


def _macvlan_mode(call: Call) -> str:
    node = call.config["mode"]
    return node.one_of(*MACVLAN_MODES) if node.raw() else _DEFAULT_MACVLAN_MODE


def add_ipvlan(call: Call) -> Result:
    """
    Make a link with the hardware address of a link of the host, and other IP addresses.

    In a list, a network without an address manager takes the addresses and routes of the plugin before. NetworkError,
    with nothing left behind, on a failure.
    """
    config, request, mode = call.config, call.request, _ipvlan_mode(call)
    given = _given(call)
    if given is None:
        _need_manager(config)
    names = dns(config)
    with Sides(request) as sides, Undo() as undo:
        links, lower = _below(call, sides, _default_below(call))
        new = NewLink(kind=IPVLAN, name=request.interface, lower=lower.index, mtu=mtu(config), data=ipvlan_data(mode))
        pod = _make(sides, links, request, new, undo)
        # In modes other than l2 the pod is behind a router, the host, and the kernel asks no neighbours by itself.
        return connect(call, sides, pod, undo, names, leased=given)


def check_ipvlan(call: Call) -> None:
    """Raise NetworkError with the first difference from the result of `add_ipvlan`."""
    if call.config["master"].raw():
        _check_below(call)
    check(call, IPVLAN, mode=_ipvlan_mode(call))


def _ipvlan_mode(call: Call) -> str:
    node = call.config["mode"]
    return node.one_of(*IPVLAN_MODES) if node.raw() else _DEFAULT_IPVLAN_MODE


def _given(call: Call) -> Result | None:
    """Return the result of the plugin before if the result has the pod's addresses."""
    has_addresses = call.previous is not None and call.previous.addresses
    return call.previous if has_addresses and ipam_type(call.config) is None else None


def _default_below(call: Call) -> str | None:
    """Return the name of the only link of the plugin before, None if this plugin is the first."""
    if call.previous is None or interface_name(call.config["master"]) is not None:
        return None
    if len(call.previous.interfaces) != 1 or not call.previous.interfaces[0].name:
        raise NetworkError("the result of the plugin before has not one interface, which could be the master")
    return call.previous.interfaces[0].name


def add_vlan(call: Call) -> Result:
    """
    Make a link in a VLAN (IEEE 802.1Q) of the network of a link of the host.

    NetworkError, with nothing left behind, on a failure.
    """
    config, request, number = call.config, call.request, _number(call)
    if interface_name(config["master"]) is None:
        raise config["master"].error("the name of an interface")
    _need_manager(config)
    names = dns(config)
    with Sides(request) as sides, Undo() as undo:
        links, lower = _below(call, sides)
        new = NewLink(
            kind=VLAN,
            name=request.interface,
            lower=lower.index,
            mtu=_packet_size(config, lower),
            data=vlan_data(number),
        )
        pod = _make(sides, links, request, new, undo)
        return connect(call, sides, pod, undo, names)


def check_vlan(call: Call) -> None:
    """Raise NetworkError with the first difference from the result of `add_vlan`."""
    _check_below(call)
    size = mtu(call.config)
    wanted = {} if size is None else {"mtu": size}
    check(call, VLAN, vlan=_number(call), **wanted)


def _number(call: Call) -> int:
    return call.config["vlanId"].optional(lambda node: node.integer(0, _LARGEST_NUMBER)) or 0
