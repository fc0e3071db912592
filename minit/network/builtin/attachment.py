"""
The common part of ptp and bridge: leasing, the pair of links between pod and host, masquerading, and undoing all of it.

The remains of an attachment outside of the pod have names that follow from container and interface: the lease, the
host's end of the pair, and the nf_tables table. So all of it is found again, even if its maker was killed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from minit.base.errors import MinitError, NetworkError, describe, reason_of
from minit.base.value import replace
from minit.manifest.reader import Node
from minit.network.addresses import IPInterface
from minit.network.builtin.call import Call
from minit.network.builtin.linksettings import ignore_routers
from minit.network.builtin.settings import (
    Protection,
    accepts_routers,
    ipam_type,
    network_name,
    protection,
    valid_attachments,
)
from minit.network.netlink.links import Links, open_namespace
from minit.network.netlink.messages import Link
from minit.network.packetfilter.interfacetables import Sender, delete_table, delete_tables_of, protect, table_name
from minit.network.protocol.request import Request
from minit.network.protocol.result import Address, Dns, Result

_VETH = "veth"
_DHCP = "dhcp"
_NAME_BYTES = 15  # IFNAMSIZ without its end


class Undo:
    """A block whose steps are taken back, the last one first, if it fails."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def __enter__(self) -> Undo:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        while error is not None and self._steps:
            try:
                self._steps.pop()()
            except (NetworkError, OSError):
                # The first reason is what the user needs; gc deletes the attachment once more.
                continue

    def add(self, step: Callable[[], object]) -> None:
        """Remember how to take back what the block is about to do or has done."""
        self._steps.append(step)


class Sides:
    """The links of the host and those of the pod; `namespace` is a descriptor of the pod's network namespace."""

    def __init__(self, request: Request) -> None:
        self.namespace = _open_namespace(request)
        self.host = Links()
        self.pod = Links(self.namespace)

    def __enter__(self) -> Sides:
        return self

    def __exit__(self, *_: object) -> None:
        self.host.close()
        self.pod.close()
        os.close(self.namespace)


@contextmanager
def pod_links(request: Request) -> Iterator[Links | None]:
    """Open the links of the pod's network namespace; None if there is none any more."""
    try:
        namespace = open_namespace(request.namespace)
    except FileNotFoundError:
        yield None
        return
    try:
        with Links(namespace) as links:
            yield links
    finally:
        os.close(namespace)


def host_end(request: Request) -> str:
    """Return the name of the host's end of the pair of links."""
    return named_after(_VETH, f"{request.container_id} {request.interface}")


def named_after(prefix: str, text: str) -> str:
    """Return the name of an interface that follows from a text of any length."""
    return f"{prefix}{hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()}"[:_NAME_BYTES]


def find_host_end(sides: Sides, request: Request) -> Link | None:
    """Return the other end of the pod's link if that is one of the host's, None for another kind of link."""
    pod = sides.pod.find(request.interface)
    host = sides.host.at(pod.peer) if pod is not None and pod.kind == _VETH else None
    # An index of another namespace may be one of the host's, too.
    return host if pod is not None and host is not None and (host.kind, host.peer) == (_VETH, pod.index) else None


def lease(call: Call, undo: Undo) -> Result:
    """Ask the address manager for addresses and routes; an empty result for a network without one."""
    manager = ipam_type(call.config)
    if manager is None:
        return Result()
    leased = _ask_manager(call, "ADD")
    # Not before: of an interface that has a lease already it is refused, and that lease must stay.
    undo.add(lambda: _ask_manager(call, "DEL"))
    return leased


def leases_by_link(config: Node) -> bool:
    """Tell whether the address manager needs the pod's link, and so is asked when it is there, and before it goes."""
    return ipam_type(config) == _DHCP


def check_lease(call: Call) -> None:
    """Raise NetworkError if the address manager does not have the pod's addresses."""
    _ask_manager(call, "CHECK")


def connect(sides: Sides, request: Request, mtu: int | None, mac: str | None, undo: Undo) -> tuple[Link, Link]:
    """Make the pair of links and return the host's end, which is up, and the pod's, which is not."""
    name = host_end(request)
    if sides.pod.find(request.interface) is not None:
        raise NetworkError(f"interface {request.interface} exists already in the pod's network namespace")
    if sides.host.find(name) is not None:
        raise NetworkError(f"interface {name} exists already: {request.interface} of this pod was not removed")
    undo.add(lambda: _delete_host_end(sides.host, request))
    sides.host.add_veth(name, request.interface, sides.namespace, mtu, mac)
    host = sides.host.get(name)
    ignore_routers(name)
    return host, sides.pod.get(request.interface)


def guard(call: Call, wanted: Protection, host: Link, pod: Link, addresses: Sequence[IPInterface], undo: Undo) -> None:
    """Write what the packet filter has about the pod's link, in one transaction."""
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
    """Return what the network says about names, or else what its address manager says."""
    return leased if configured == Dns() else configured


def of_interface(addresses: Iterable[Address], index: int) -> tuple[Address, ...]:
    """Return addresses as part of a result whose interface at `index` has them."""
    return tuple(replace(address, interface=index) for address in addresses)


def delete(call: Call) -> None:
    """
    Remove whatever there is of an attachment, with or without the pod's network namespace.

    Each part is tried even if another fails; NetworkError names all that did.
    """
    # The kernel waits for all its processors over links as well as over tables: both at once are half the time.
    with ExitStack() as freed:
        remove(call, lambda: _delete_tables(call, freed), lambda: _delete_links(call))


def collect(call: Call) -> None:
    """
    Remove what there is outside of pods of attachments to this network that are no more.

    Their links went with their network namespaces. Each part is tried even if another fails.
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

    That comes last: whoever gets them next must not meet links or rules of this pod. By the link it comes first.
    """

    def give_back() -> None:
        _ask_manager(call, "DEL")

    try_all(*((give_back, *steps) if leases_by_link(call.config) else (*steps, give_back)))


def try_all(*steps: Callable[[], object]) -> None:
    """Take each step even if another fails; NetworkError names all that did."""
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


def _delete_links(call: Call) -> None:
    request = call.request
    with Links() as host:
        if _delete_host_end(host, request):
            return
    # The host's end of a pair that a real plugin made has a name nobody knows.
    with pod_links(request) as pod:
        link = None if pod is None else pod.find(request.interface)
        if pod is not None and link is not None and link.kind == _VETH:
            pod.delete(link)


def _delete_host_end(host: Links, request: Request) -> bool:
    """Remove the pair by its end on the host; tell whether it was there."""
    link = host.find(host_end(request))
    if link is None or link.kind != _VETH:
        return False
    host.delete(link)
    return True


def _delete_tables(call: Call, freed: ExitStack) -> None:
    if protection(call.config).is_needed:
        delete_table(table_name(call.request.container_id, call.request.interface), freed)


def _ask_manager(call: Call, command: str) -> Result:
    """Make a request of the address manager; an empty result if the network has none."""
    manager = ipam_type(call.config)
    return Result() if manager is None else call.delegate(command, manager, call.fields, call.previous)


def _open_namespace(request: Request) -> int:
    try:
        return open_namespace(request.namespace)
    except OSError as error:
        # Of an error of setns(2) the path is not known.
        raise NetworkError(f"network namespace {request.namespace}: {reason_of(error.errno or 0)}") from error
