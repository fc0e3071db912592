"""
The lease of a pod's interface: the attaching process gets the lease, and forks a process that keeps it.

The keeper is a copy of the attaching process, with the client that has the lease. The keeper is in the pod's network
namespace, and lives until the interface is detached: no other process has to live for the lease. Its record, a file,
leads to the keeper, which locks it by fcntl(2). That lock tells its holder, belongs to a process and not to a
descriptor, so that no child has it, and ends with the process, however the process ends.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import time
from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Interface

from pyroute2.netlink.rtnl import RTMGRP_IPV4_IFADDR, RTMGRP_LINK

from minit.base import jsontext
from minit.base.errors import ManifestError, MinitError, NetworkError, describe
from minit.base.harmless import harmless
from minit.base.value import Value
from minit.linux import syscalls
from minit.linux.forks import LEASE_KEEPER, fork
from minit.linux.loop import wait_readable
from minit.manifest.capabilities import capability_mask
from minit.manifest.reader import Node
from minit.network.dhcp.client import DhcpClient
from minit.network.dhcp.message import ACK, INFINITE_SECONDS, Answer, Identity
from minit.network.namespace import run_in_namespace
from minit.network.netlink.links import Links
from minit.network.netlink.messages import Link
from minit.network.netlink.transport import KernelEvents
from minit.network.protocol import Request

TIMEOUT_SECONDS = 30.0

# Packets sent by a link that has just come up are lost until the kernel has noticed; some links never say so.
_LONGEST_START_SECONDS = 1.0
_KEEPER_CAPABILITIES = capability_mask("CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_NET_BIND_SERVICE")
SYSTEM_LOG = "/dev/log"
_DAEMON_ERROR = 3 << 3 | 3  # facility and severity of syslog(3)

DIRECTORY = "/run/minit/dhcp"

_DIRECTORY_MODE = 0o755
_FILE_MODE = 0o600
# A record is written at once, and always has the same size: a reader meanwhile reads the old or the new record.
_BYTES = 512
_FLOCK = struct.Struct("@hhqqi")  # struct flock: type, whence, start, length, process
_SECONDS_TO_DIE = 10.0


class PodLease:
    """The lease of the interface `link`, whose server is told `identity`; DEL finds `record`."""

    def __init__(self, link: Link, identity: Identity, record: LeaseRecord) -> None:
        self._link = link
        self._record = record
        self._client = DhcpClient(link.name, identity, self._change, self._complain)
        self._problem = "no DHCP server answers"
        self._lease: Answer | None = None
        self._is_renewed = False
        self._loss: str | None = None

    def obtain(self, namespace: int, cancelled: int | None) -> Answer:
        """
        Get the lease, in the network namespace of a descriptor; NetworkError if there is none in time.

        When the descriptor `cancelled` becomes readable, the wait ends early.
        """
        end = time.monotonic() + TIMEOUT_SECONDS
        self._wait_until_running(namespace, cancelled)
        while True:
            if time.monotonic() >= end:
                raise NetworkError(
                    f"interface {self._link.name}: no lease after {TIMEOUT_SECONDS:g} seconds: {self._problem}"
                )
            try:
                run_in_namespace(namespace, self._client.turn)
            except OSError as error:
                raise NetworkError(f"interface {self._link.name}: DHCP: {describe(error)}") from error
            if self._lease is not None:
                return self._lease
            # Before the request, so that an undoing process can give the lease back.
            if self._client.offer is not None:
                self._note(self._client.offer)
            self._wait(self._client.fileno(), cancelled, min(end, self._client.deadline))

    def keep(self, namespace: int, path: str) -> None:
        """
        Start the process that keeps the lease; NetworkError if the process does not live.

        `path` is the public path of the descriptor's network namespace: once it leads elsewhere, nobody uses the lease.
        """
        reader, writer = os.pipe2(os.O_CLOEXEC)
        kept = {"ready": writer, "record": self._record.fd, "namespace": namespace}
        try:
            fork(LEASE_KEEPER, lambda: self._be_keeper(namespace, path, writer), kept)
            os.close(writer)
            writer = -1
            if not os.read(reader, 1):
                raise NetworkError(f"interface {self._link.name}: the process that keeps the lease died")
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)

    def _wait_until_running(self, namespace: int, cancelled: int | None) -> None:
        end = time.monotonic() + _LONGEST_START_SECONDS
        with run_in_namespace(namespace, KernelEvents) as events, Links(namespace) as pod:
            while not pod.get(self._link.name).running and time.monotonic() < end:
                self._wait(events.fileno(), cancelled, end)
                events.drop()

    def _be_keeper(self, namespace: int, path: str, ready: int) -> None:
        # The process must hold neither the pod's directory nor any mount there.
        os.chdir("/")
        self._record.lock()
        syscalls.setns(namespace, syscalls.CLONE_NEWNET)
        own = os.fstat(namespace)
        os.close(namespace)
        syscalls.set_no_new_privileges()
        syscalls.set_capabilities(_KEEPER_CAPABILITIES, _KEEPER_CAPABILITIES, 0)
        with Links() as links, KernelEvents(RTMGRP_LINK | RTMGRP_IPV4_IFADDR) as events:
            # Nobody reads the byte after a cancelled attachment: the undoing process may have looked for the lock
            # before.
            os.write(ready, b"!")
            os.close(ready)
            while self._is_wanted(links, path, own):
                self._limit(links)
                sources = (events.fileno(), self._client.fileno())
                wait_readable([fd for fd in sources if fd is not None], self._client.deadline - time.monotonic())
                events.drop()
                try:
                    self._client.turn()
                except OSError:
                    pass  # the interface is down: it is tried again
                if self._loss is not None:
                    self._give_up(links)
                    return

    def _is_wanted(self, links: Links, path: str, own: os.stat_result) -> bool:
        """Tell whether the interface exists, and its network namespace is still reachable by path."""
        link = links.find(self._link.name)
        if link is None or link.index != self._link.index:
            return False
        try:
            return os.path.samestat(os.stat(path), own)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # in the /proc of a process that this one may not look at

    def _limit(self, links: Links) -> None:
        """
        Have the address end with its lease, whatever happens to this process: the plugin adds the address without an
        end.
        """
        assert self._lease is not None
        if self._lease.lease_seconds == INFINITE_SECONDS:
            return
        address = self._lease.address
        present = links.addresses(self._link)
        is_limited = address in links.addresses(self._link, leased=True)
        if address in present and (self._is_renewed or not is_limited):
            links.lease_address(self._link, address, max(1, int(self._client.expires_at - time.monotonic())))
            self._is_renewed = False

    def _change(self, lease: Answer | None) -> None:
        if lease is None:
            is_over = time.monotonic() >= self._client.expires_at
            self._loss = "no DHCP server has renewed it" if is_over else "a DHCP server refused to renew it"
        elif self._lease is not None and lease.address != self._lease.address:
            # The address is in the pod's records, in rules, and known to neighbours: it cannot change.
            self._loss = f"the DHCP server {lease.server} gives {lease.address.ip} instead"
        else:
            self._lease, self._is_renewed = lease, True
            self._note(lease)

    def _give_up(self, links: Links) -> None:
        assert self._lease is not None and self._loss is not None
        try:
            links.delete_address(self._link, self._lease.address)
        except (MinitError, OSError):
            pass  # the kernel does it in time
        loss = f"the lease of {self._lease.address.ip} is lost: {self._loss}"
        self._note(self._lease, loss)
        _tell_system(f"minit: {self._record.name}: {loss}")

    def _note(self, lease: Answer, loss: str = "") -> None:
        self._record.write(KeptLease(address=lease.address, server=lease.server, hop=lease.hop, loss=loss))

    def _complain(self, line: str) -> None:
        self._problem = line

    def _wait(self, source: int | None, cancelled: int | None, until: float) -> None:
        sources = [fd for fd in (source, cancelled) if fd is not None]
        if cancelled in wait_readable(sources, max(0.0, until - time.monotonic())):
            raise NetworkError(f"interface {self._link.name}: no lease: the pod is not wanted any more")


def _tell_system(line: str) -> None:
    """Write to the log of the system, syslog(3), as there is nobody else to tell."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as log:
        try:
            log.sendto(f"<{_DAEMON_ERROR}>{harmless(line)}".encode(), SYSTEM_LOG)
        except OSError:
            pass  # there is none, or it is full


class KeptLease(Value):
    """The part of a lease needed to give it back; `loss` is the reason of its loss."""

    address: IPv4Interface
    server: IPv4Address
    hop: bytes
    loss: str = ""

    def as_answer(self) -> Answer:
        """Return the server's answer behind the lease, as far as recorded."""
        return Answer(kind=ACK, address=self.address, server=self.server, hop=self.hop)


class LeaseRecord:
    """The open record of an interface; `fd` is its descriptor, `name` names container and interface."""

    def __init__(self, path: str, flags: int = 0) -> None:
        self._path = path
        self.name = os.path.basename(path)
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, _FILE_MODE)

    def __enter__(self) -> LeaseRecord:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def write(self, lease: KeptLease) -> None:
        """Replace the recorded lease."""
        fields = {"address": str(lease.address), "server": str(lease.server), "hop": lease.hop.hex()}
        os.pwrite(self.fd, jsontext.dump({**fields, "loss": lease.loss}).ljust(_BYTES), 0)

    def read(self) -> KeptLease | None:
        """Return the lease, None if there was none yet."""
        text = os.pread(self.fd, _BYTES, 0)
        try:
            node = Node(jsontext.parse(text, self._path), None, self._path)
            return KeptLease(
                address=IPv4Interface(node["address"].string()),
                server=IPv4Address(node["server"].string()),
                hop=bytes.fromhex(node["hop"].string()),
                loss=node["loss"].string(),
            )
        except (ManifestError, ValueError):
            return None

    def lock(self) -> None:
        """Be the keeper; OSError if there is a keeper."""
        fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def keeper(self) -> int | None:
        """Return the process that keeps the lease, None if there is none."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self.fd, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else int(pid)

    def end_keeper(self) -> None:
        """Kill the process that keeps the lease, and wait for its end; NetworkError on a failure."""
        while (pid := self.keeper()) is not None:
            try:
                pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            except OSError as error:
                raise NetworkError(f"cannot end process {pid}, which keeps a lease: {describe(error)}") from error
            try:
                # The holder of the lock also had the process id before, so the descriptor is that process's.
                if self.keeper() == pid:
                    _kill(pid, pidfd)
            finally:
                os.close(pidfd)

    def remove(self) -> None:
        """Forget the lease."""
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass


def make_record(network: str, request: Request) -> LeaseRecord:
    """Return the record of an interface, and make it if missing; NetworkError on a failure."""
    path = _path(network, request)
    try:
        os.makedirs(os.path.dirname(path), _DIRECTORY_MODE, exist_ok=True)
        return LeaseRecord(path, os.O_CREAT)
    except OSError as error:
        raise NetworkError(f"lease: {describe(error)}") from error


def find_record(network: str, request: Request) -> LeaseRecord | None:
    """Return the record of an interface, None if there is none."""
    try:
        return LeaseRecord(_path(network, request))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NetworkError(f"lease: {describe(error)}") from error


def forget_all_but(network: str, valid: Collection[tuple[str, str]]) -> None:
    """End the leases of a network but those of these containers and interfaces, without telling any server."""
    kept = {_file_name(*attachment) for attachment in valid}
    directory = f"{DIRECTORY}/{network}"
    try:
        names = set(os.listdir(directory)) - kept
    except FileNotFoundError:
        return
    for name in sorted(names):
        with LeaseRecord(f"{directory}/{name}") as record:
            record.end_keeper()
            record.remove()


def _path(network: str, request: Request) -> str:
    return f"{DIRECTORY}/{network}/{_file_name(request.container_id, request.interface)}"


def _file_name(container_id: str, interface: str) -> str:
    return f"{container_id}:{interface}"


def _kill(pid: int, pidfd: int) -> None:
    syscalls.send_signals(pidfd, signal.SIGKILL)
    if not wait_readable([pidfd], _SECONDS_TO_DIE):
        raise NetworkError(f"process {pid}, which keeps a lease, cannot be killed")
    try:
        # After a failed attachment the keeper is a child of this very process.
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        pass
