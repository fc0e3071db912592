"""
The plugin dhcp: an address leased by a DHCP server of the network, kept until the interface is detached.

The daemon of the reference plugin is not needed, and `daemonSocketPath` has no effect: each lease has its own process
(`minit/network/dhcp/podlease.py`). The pod's interface has to be there before.
"""

from __future__ import annotations

import os
from contextlib import suppress

from minit.base.errors import MinitError, NetworkError
from minit.manifest.reader import Node
from minit.network.addresses import EVERYWHERE, IPAddress
from minit.network.builtin.call import Call, network_name, valid_attachments
from minit.network.dhcp.client import release_lease
from minit.network.dhcp.message import (
    CLIENT_IDENTIFIER,
    DOMAIN,
    HOST_NAME,
    NAME_SERVERS,
    NO_ADDRESS,
    ROUTERS,
    SUBNET_MASK,
    Answer,
    Identity,
)
from minit.network.dhcp.podlease import KeptLease, PodLease, find_record, forget_all_but, make_record
from minit.network.namespace import open_namespace, run_in_namespace
from minit.network.netlink.links import Links
from minit.network.netlink.messages import SCOPE_LINK, Link
from minit.network.protocol import Address, Dns, Request, Result, Route

_NAMES = {
    "dhcp-client-identifier": CLIENT_IDENTIFIER,
    "subnet-mask": SUBNET_MASK,
    "routers": ROUTERS,
    "host-name": HOST_NAME,
    "user-class": 77,
    "vendor-class-identifier": 60,
}
_USUALLY_WANTED = (ROUTERS, SUBNET_MASK)
_PROTOCOLS_OWN = (0, 50, 53, 54, 55, 57, 255)
_LONGEST_BYTES = 255
_LONGEST_IDENTIFIER = 254
_HARDWARE_ADDRESS_BYTES = 6
_LARGEST_PRIORITY = (1 << 32) - 1


def add(call: Call) -> Result:
    """Get a lease and start the process that keeps it; NetworkError, with neither left behind, on a failure."""
    request, network = call.request, network_name(call.config)
    priority = call.config["ipam"]["priority"].optional(lambda node: node.integer(0, _LARGEST_PRIORITY)) or None
    if "IP" in _arguments(request):
        raise NetworkError("CNI_ARGS: IP: the DHCP server chooses the address")
    namespace = open_namespace(request.namespace)
    try:
        link = _ready_link(call, namespace)
        identity = read_identity(call, bytes.fromhex(link.mac.replace(":", "")))
        with make_record(network, request) as record:
            if record.keeper() is not None:
                raise NetworkError(f'{request.interface} has a lease in network "{network}" already')
            lease = PodLease(link, identity, record)
            try:
                answer = lease.obtain(namespace, call.cancelled)
                lease.keep(namespace, request.namespace)
            except BaseException:
                with suppress(MinitError, OSError):
                    delete(call)
                raise
    finally:
        os.close(namespace)
    return _result(answer, identity, priority)


def delete(call: Call) -> None:
    """End the process that keeps the lease, and give the lease back if the interface still exists."""
    record = find_record(network_name(call.config), call.request)
    if record is None:
        return
    with record:
        record.end_keeper()
        lease = record.read()
        if lease is not None and not lease.loss:
            _give_back(call, lease)
        record.remove()


def check(call: Call) -> None:
    """Raise NetworkError if the interface has no lease, or no process keeps the lease."""
    interface, network = call.request.interface, network_name(call.config)
    record = find_record(network, call.request)
    if record is None:
        raise NetworkError(f'{interface} has no lease in network "{network}"')
    with record:
        lease, keeper = record.read(), record.keeper()
    if lease is not None and lease.loss:
        raise NetworkError(f"interface {interface}: {lease.loss}")
    if keeper is None:
        raise NetworkError(f"interface {interface}: nobody renews the lease: the process that did it died")


def collect(call: Call) -> None:
    """End the leases of all vanished interfaces; the servers are not told."""
    forget_all_but(network_name(call.config), valid_attachments(call.config))


def read_identity(call: Call, mac: bytes) -> Identity:
    """Return the interface's identity for the server; ManifestError for a wrong configuration."""
    ipam, request = call.config["ipam"], call.request
    ipam["daemonSocketPath"].optional(Node.string)
    arguments = _arguments(request)
    options: dict[int, bytes] = {}
    for node in ipam["provide"].elements():
        code = _provided_option(node["option"])
        from_argument = node["fromArg"].optional(Node.string)
        value = arguments.get(from_argument or "", node["value"].optional(Node.string) or "").encode()
        if len(value) > _LONGEST_BYTES:
            raise node.error(f"a value of at most {_LONGEST_BYTES} bytes")
        if value:
            options[code] = value
    wanted: list[int] = []
    usual: tuple[int, ...] = _USUALLY_WANTED
    for node in ipam["request"].elements():
        if node["skipDefault"].optional(Node.boolean):
            usual = ()
        if node["option"].raw():
            wanted.append(_option(node["option"]))
    name = f"{request.container_id}/{network_name(call.config)}/{request.interface}"
    # The first byte says: not a hardware address.
    identifier = b"\0" + name.encode()[:_LONGEST_IDENTIFIER]
    return Identity(
        mac=mac,
        identifier=options.pop(CLIENT_IDENTIFIER, identifier),
        wanted=bytes(dict.fromkeys((*wanted, *usual))),
        options=tuple(options.items()),
    )


def _ready_link(call: Call, namespace: int) -> Link:
    """Return the pod's link after bringing it up."""
    name = call.request.interface
    with Links(namespace) as pod:
        link = pod.find(name)
        if link is None:
            kind = call.config["type"].string()
            raise NetworkError(f'there is no interface {name} yet: DHCP does not go with networks of type "{kind}"')
        if len(link.mac.split(":")) != _HARDWARE_ADDRESS_BYTES:
            raise NetworkError(f"interface {name} has no hardware address, which DHCP needs")
        if not link.up:
            pod.set_up(link)
        return link


def _give_back(call: Call, lease: KeptLease) -> None:
    """Tell the server, if possible: without notice the lease ends in its time."""
    try:
        namespace = open_namespace(call.request.namespace)
    except OSError:
        return
    try:
        with Links(namespace) as pod:
            link = pod.find(call.request.interface)
        if link is not None:
            identity = read_identity(call, bytes.fromhex(link.mac.replace(":", "")))
            run_in_namespace(namespace, lambda: release_lease(link.name, identity, lease.as_answer()))
    except (NetworkError, OSError):
        pass
    finally:
        os.close(namespace)


def _result(answer: Answer, identity: Identity, priority: int | None) -> Result:
    gateway = answer.routers[0] if answer.routers else None
    return Result(
        addresses=(Address(address=answer.address, gateway=gateway),),
        routes=_routes(answer, gateway, priority),
        # As with the reference plugin, the network's name servers are the pod's only if the configuration asks for
        # them.
        dns=Dns(
            nameservers=tuple(map(str, answer.name_servers)) if NAME_SERVERS in identity.wanted else (),
            domain=answer.domain if DOMAIN in identity.wanted else "",
        ),
    )


def _routes(answer: Answer, gateway: IPAddress | None, priority: int | None) -> tuple[Route, ...]:
    """Return the routes from the server; classless routes replace all others (RFC 3442)."""
    if answer.classless_routes or not gateway:
        told = answer.classless_routes or answer.static_routes
        default: tuple[Route, ...] = ()
    else:
        told = answer.static_routes
        default = (Route(destination=EVERYWHERE[4], gateway=gateway, priority=priority),)
    routes = tuple(
        Route(
            destination=one.destination,
            gateway=None if one.router == NO_ADDRESS else one.router,
            scope=SCOPE_LINK if one.router == NO_ADDRESS else None,
            priority=priority,
        )
        for one in told
    )
    return (*routes, *default)


def _arguments(request: Request) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in request.args.split(";"))
    return {key: value for key, equals, value in pairs if equals}


def _provided_option(node: Node) -> int:
    code = _option(node)
    if code in _PROTOCOLS_OWN:
        raise node.error("an option that is not the protocol's own")
    return code


def _option(node: Node) -> int:
    text = node.string()
    if text in _NAMES:
        return _NAMES[text]
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < _LONGEST_BYTES:
        raise node.error(f"the number of an option, or one of {', '.join(_NAMES)}")
    return int(text)
