"""
The common part of the plugins: leasing, the pair of links between pod and host, masquerading, checking, and undoing.

Outside the pod an attachment leaves the lease, the host's end of the pair, the nf_tables table, and small files. Their
names follow from container and interface, so that all are found again even if their maker was killed.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack

from minit.base.errors import MinitError, NetworkError, describe
from minit.base.value import replace
from minit.manifest.reader import Node
from minit.network.addresses import IPInterface
from minit.network.builtin.call import (
    Call,
    Protection,
    accepts_routers,
    ipam_type,
    network_name,
    protection,
    valid_attachments,
)
from minit.network.builtin.sides import Sides, Undo, ignore_routers, pod_links
from minit.network.netlink.links import Links
from minit.network.netlink.messages import TABLE_MAIN, Link
from minit.network.packetfilter.confinement import Sender, delete_table, delete_tables_of, protect
from minit.network.packetfilter.tables import table_name
from minit.network.protocol import Address, Dns, Request, Result
from minit.podfiles.boundedfile import read_bounded

_VETH = "veth"
_DHCP = "dhcp"
_NAME_BYTES = 15  # IFNAMSIZ without its end

_MAX_BYTES = 1 << 20
_NEW = ".new"
_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600


def host_end(request: Request) -> str:
    """Return the name of the host's end of the pair of links."""
    return named_after(_VETH, f"{request.container_id} {request.interface}")


def named_after(prefix: str, text: str) -> str:
    """Return the name of an interface made from a text of any length."""
    return f"{prefix}{hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()}"[:_NAME_BYTES]


def find_host_end(sides: Sides, request: Request) -> Link | None:
    """Return the other end of the pod's link if the end is the host's, None for another kind of link."""
    pod = sides.pod.find(request.interface)
    host = sides.host.at(pod.peer) if pod is not None and pod.kind == _VETH else None
    # The host may have a link of the same index as another namespace.
    return host if pod is not None and host is not None and (host.kind, host.peer) == (_VETH, pod.index) else None


def lease(call: Call, undo: Undo) -> Result:
    """Ask the address manager for addresses and routes; an empty result for a network without a manager."""
    manager = ipam_type(call.config)
    if manager is None:
        return Result()
    leased = _ask_manager(call, "ADD")
    # Not before: the manager refuses an interface that has a lease already, and the old lease must stay.
    undo.add(lambda: _ask_manager(call, "DEL"))
    return leased


def leases_by_link(config: Node) -> bool:
    """
    Tell whether the address manager needs the pod's link: it is asked after the link is made and before its removal.
    """
    return ipam_type(config) == _DHCP


def check_lease(call: Call) -> None:
    """Raise NetworkError if the address manager does not have the pod's addresses."""
    _ask_manager(call, "CHECK")


def connect(sides: Sides, request: Request, mtu: int | None, mac: str | None, undo: Undo) -> tuple[Link, Link]:
    """Make the pair of links and return the host's end, which is up, and the pod's end, which is down."""
    name = host_end(request)
    try:
        sides.host.add_veth(name, request.interface, sides.namespace, mtu, mac)
    except NetworkError:
        if sides.pod.find(request.interface) is not None:
            raise NetworkError(f"interface {request.interface} exists already in the pod's network namespace") from None
        if sides.host.find(name) is not None:
            message = f"interface {name} exists already: {request.interface} of this pod was not removed"
            raise NetworkError(message) from None
        raise
    # Not before: a pair of another attachment has to stay.
    undo.add(lambda: _delete_host_end(sides.host, request))
    host = sides.host.get(name)
    ignore_routers(name)
    return host, sides.pod.get(request.interface)


def guard(call: Call, wanted: Protection, host: Link, pod: Link, addresses: Sequence[IPInterface], undo: Undo) -> None:
    """Write the rules of the packet filter for the pod's link, in one transaction."""
    if not wanted.is_needed:
        return
    sender = None
    if wanted.checks_senders or wanted.checks_macs:
        own = tuple(address.ip for address in addresses) if wanted.checks_senders else ()
        sender = Sender(
            link=host.name,
            mac=pod.mac,
            addresses=own,
            uses_dhcp=leases_by_link(call.config),
            follows_routers=accepts_routers(call.config),
        )
    table = table_name(call.request.container_id, call.request.interface)
    undo.add(lambda: delete_table(table))
    hidden = addresses if wanted.masquerades else ()
    kept = addresses if wanted.restricts else ()
    protect(table, masqueraded=hidden, sender=sender, network=network_name(call.config), restricted=kept)


def name_service(configured: Dns, leased: Dns) -> Dns:
    """Return the network's DNS settings, or else its address manager's."""
    return leased if configured == Dns() else configured


def of_interface(addresses: Iterable[Address], index: int) -> tuple[Address, ...]:
    """Return addresses for a result, with `index` as their interface."""
    return tuple(replace(address, interface=index) for address in addresses)


def delete(call: Call) -> None:
    """
    Remove the remains of an attachment, with or without the pod's network namespace.

    A failure does not stop the other steps; NetworkError names all failures.
    """
    # The kernel waits for all processors over links as well as over tables: both at once take half the time.
    with ExitStack() as own:
        freed = call.freed or own
        remove(call, lambda: _delete_tables(call, freed), lambda: _delete_links(call, freed))


def collect(call: Call) -> None:
    """
    Remove the remains outside of pods of vanished attachments to this network.

    The links went with their network namespaces. Each part is tried even if another fails.
    """
    valid = [table_name(*attachment) for attachment in valid_attachments(call.config)]
    try_all(
        lambda: delete_tables_of(network_name(call.config), valid),
        lambda: _ask_manager(call, "GC"),
    )


def status(call: Call) -> None:
    """Raise NetworkError if the address manager has no address to give."""
    _ask_manager(call, "STATUS")


def remove(call: Call, *steps: Callable[[], object]) -> None:
    """
    Try all steps, and to give back the addresses.

    The addresses come last: their next owner must not meet links or rules of this pod. If the manager needs the link,
    the addresses come first.
    """

    def give_back() -> None:
        _ask_manager(call, "DEL")

    try_all(*((give_back, *steps) if leases_by_link(call.config) else (*steps, give_back)))


def try_all(*steps: Callable[[], object]) -> None:
    """Take each step even if another fails; NetworkError names all failures."""
    problems = []
    for step in steps:
        try:
            step()
        except (MinitError, OSError) as error:
            problems.append(error)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise NetworkError("; ".join(map(describe, problems)))


def _delete_links(call: Call, freed: ExitStack) -> None:
    request = call.request
    with Links() as host:
        link = _find_own_end(host, request)
        if link is not None:
            host.delete_early(link, freed)
            return
    # minit does not know the name of a host's end made by an external plugin.
    with pod_links(request) as pod:
        link = None if pod is None else pod.find(request.interface)
        if pod is not None and link is not None and link.kind == _VETH:
            pod.delete(link)


def _delete_host_end(host: Links, request: Request) -> None:
    """Remove the pair by its end on the host."""
    link = _find_own_end(host, request)
    if link is not None:
        host.delete(link)


def _find_own_end(host: Links, request: Request) -> Link | None:
    """Return the host's end of a pair of minit's; None without a pair."""
    link = host.find(host_end(request))
    return None if link is None or link.kind != _VETH else link


def _delete_tables(call: Call, freed: ExitStack) -> None:
    if protection(call.config).is_needed:
        delete_table(table_name(call.request.container_id, call.request.interface), freed)


def _ask_manager(call: Call, command: str) -> Result:
    """Make a request of the address manager; an empty result if the network has none."""
    manager = ipam_type(call.config)
    return Result() if manager is None else call.delegate(command, manager, call.fields, call.previous)


def check_attachment(call: Call, bridge: str | None, *, is_down: bool = False) -> None:
    """
    Raise NetworkError with the first difference from the result of the last ADD.

    With `bridge` the host's end has to be a port of the bridge of that name; with `is_down` the pod's end is left down.
    """
    request, previous = call.request, call.need_result_of_add()
    check_lease(call)
    with Sides(request) as sides:
        pod, host = sides.pod.find(request.interface), sides.host.find(host_end(request))
        if pod is None:
            raise NetworkError(f"interface {request.interface} is gone")
        if host is None or host.peer != pod.index:
            raise NetworkError(f"interface {host_end(request)}, the host's end of {request.interface}, is gone")
        check_link(host, "", previous)
        if not is_down:
            check_link(pod, request.namespace, previous)
        check_addresses(sides.pod.addresses(pod), pod, previous)
        check_routes(sides, previous)
        if bridge is not None:
            master = sides.host.find(bridge)
            if master is None or master.index != host.master:
                raise NetworkError(f"interface {host.name} is not connected to bridge {bridge}")
            check_link(master, "", previous)


def check_link(link: Link, sandbox: str, previous: Result) -> None:
    """Raise NetworkError if a link is down or has another hardware address."""
    if not link.up:
        raise NetworkError(f"interface {link.name} is down")
    for interface in previous.interfaces:
        if (interface.name, interface.sandbox) != (link.name, sandbox) or not interface.mac:
            continue
        if interface.mac.lower() != link.mac.lower():
            raise NetworkError(f"interface {link.name} has the hardware address {link.mac}, not {interface.mac}")


def check_addresses(present: Collection[IPInterface], pod: Link, previous: Result) -> None:
    """Raise NetworkError if the pod's link lacks an address of the result."""
    for address in previous.addresses:
        at = address.interface
        elsewhere = at is not None and at < len(previous.interfaces) and previous.interfaces[at].name != pod.name
        if not elsewhere and address.address not in present:
            raise NetworkError(f"interface {pod.name} does not have the address {address.address}")


def check_routes(sides: Sides, previous: Result) -> None:
    """Raise NetworkError if the pod lacks a route of the result."""
    present = {table: sides.pod.routes(table) for table in {route.table or TABLE_MAIN for route in previous.routes}}
    for route in previous.routes:
        found = present[route.table or TABLE_MAIN]
        gateways = [one.gateway for one in found if one.destination == route.destination]
        if not gateways or (route.gateway is not None and route.gateway not in gateways):
            via = "" if route.gateway is None else f" via {route.gateway}"
            raise NetworkError(f"the route to {route.destination}{via} is gone")


def read_file(path: str) -> bytes:
    """
    Return the content of a regular file, of an administrator, a program or a plugin; OSError if it cannot be read,
    NetworkError if it is not regular.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NetworkError(f"{path}: expected a regular file")
    return read_bounded(fd, path, _MAX_BYTES)


def write_file(path: str, data: bytes, *, durable: bool = False) -> None:
    """
    Write a file that is never seen without its content, and its directory if missing.

    A `durable` file is on the disk when this returns.
    """
    os.makedirs(os.path.dirname(path), _DIRECTORY_MODE, exist_ok=True)
    new = f"{path}{_NEW}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
    try:
        try:
            while data:
                data = data[os.write(fd, data) :]
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(new, path)
    except OSError:
        _unlink(new)
        raise


def remove_file(path: str) -> None:
    """Remove a file and the remains of a killed writer; no error if there is neither."""
    _unlink(path)
    remove_leftover(path)


def remove_leftover(path: str) -> None:
    """Remove the remains of a writer killed while writing this file."""
    _unlink(f"{path}{_NEW}")


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
