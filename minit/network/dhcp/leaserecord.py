"""
The records of the leases that interfaces of pods have: files, each locked by the process that keeps the lease.

The lock is one of fcntl(2), which tells its holder. It is of a process and not of a descriptor, so no child has it, and
it ends with the process whatever ends that.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Interface

from minit.base import jsontext
from minit.base.errors import ManifestError, NetworkError, describe
from minit.base.value import Value
from minit.linux import syscalls
from minit.linux.loop import wait_readable
from minit.manifest.reader import Node
from minit.network.dhcp.message import ACK, Answer
from minit.network.protocol.request import Request

DIRECTORY = "/run/minit/dhcp"

_DIRECTORY_MODE = 0o755
_FILE_MODE = 0o600
# A record is written at once, and has always the same size: whoever reads it while that happens reads one or the other.
_BYTES = 512
_FLOCK = struct.Struct("@hhqqi")  # struct flock: type, whence, start, length, process
_SECONDS_TO_DIE = 10.0


class KeptLease(Value):
    """The part of a lease that it takes to give it back; `loss` tells why it is none any more."""

    address: IPv4Interface
    server: IPv4Address
    hop: bytes
    loss: str = ""

    def as_answer(self) -> Answer:
        """Return the server's answer that gave it, as far as it is recorded."""
        return Answer(kind=ACK, address=self.address, server=self.server, hop=self.hop)


class LeaseRecord:
    """The record of one interface, which is open; `fd` is its descriptor, `name` names container and interface."""

    def __init__(self, path: str, flags: int = 0) -> None:
        self._path = path
        self.name = os.path.basename(path)
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, _FILE_MODE)

    def __enter__(self) -> LeaseRecord:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def write(self, lease: KeptLease) -> None:
        """Take the place of what was recorded."""
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
        """Be the keeper; OSError if there is one."""
        fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def keeper(self) -> int | None:
        """Return the process that keeps the lease, None if there is none."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self.fd, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else int(pid)

    def end_keeper(self) -> None:
        """Kill the process that keeps the lease, and wait for its end; NetworkError if that cannot be done."""
        while (pid := self.keeper()) is not None:
            try:
                pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            except OSError as error:
                raise NetworkError(f"cannot end process {pid}, which keeps a lease: {describe(error)}") from error
            try:
                # Whoever has the lock still has had the number before, so the descriptor is of that process.
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
    """Return the record of an interface, which is made unless it is there; NetworkError if it cannot be."""
    path = _path(network, request)
    try:
        os.makedirs(os.path.dirname(path), _DIRECTORY_MODE, exist_ok=True)
        return LeaseRecord(path, os.O_CREAT)
    except OSError as error:
        raise NetworkError(f"lease: {describe(error)}") from error


def find_record(network: str, request: Request) -> LeaseRecord | None:
    """Return the record of an interface, None if it has none."""
    try:
        return LeaseRecord(_path(network, request))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NetworkError(f"lease: {describe(error)}") from error


def forget_all_but(network: str, valid: Collection[tuple[str, str]]) -> None:
    """End the leases of a network but those of these containers and interfaces, without a word to any server."""
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
    try:
        syscalls.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has ended just now
    if not wait_readable([pidfd], _SECONDS_TO_DIE):
        raise NetworkError(f"process {pid}, which keeps a lease, cannot be killed")
    try:
        # Of an attachment that fails it is a child of this very process.
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        pass
