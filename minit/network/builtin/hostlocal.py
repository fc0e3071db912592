"""
Leases of addresses in the files of the reference plugin host-local, so that both can share a directory.

Below the directory of a network each leased address is a file of that name with the container's id and the interface.
`last_reserved_ip.0` has the address that was leased last, and `lock` is locked by flock(2) around everything.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from typing import TypeVar

from minit.errors import NetworkError, describe
from minit.network.ipv4 import Subnet, format_address, parse_address
from minit.network.request import Request
from minit.value import Value

T = TypeVar("T")

DEFAULT_DIRECTORY = "/var/lib/cni/networks"

_LOCK = "lock"
_LAST = "last_reserved_ip.0"
_NEW = ".new"
_LINE_END = "\r\n"
_MAX_BYTES = 4096  # a lease has about 50
_DIRECTORY_MODE = 0o755
_FILE_MODE = 0o600


class Pool(Value):
    """The addresses of a network: those from `first` to `last` are leased, except its gateway's."""

    network: str
    directory: str
    subnet: Subnet
    first: int
    last: int
    gateway: int

    def __str__(self) -> str:
        return f"{format_address(self.first)}-{format_address(self.last)}"

    def has(self, address: int) -> bool:
        """Tell whether an address may be leased."""
        useless = (self.subnet.address, self.subnet.broadcast, self.gateway)
        return self.first <= address <= self.last and address not in useless


def reserve(pool: Pool, request: Request, wanted: int | None = None) -> int:
    """
    Lease the address `wanted`, or else the one after the last that was leased and is free.

    The lease is on the disk before this returns. NetworkError if the address is taken or cannot be had, if none is
    left, or if the container has one for this interface already.
    """
    directory = lease_directory(pool.directory, pool.network)
    try:
        os.makedirs(directory, _DIRECTORY_MODE, exist_ok=True)
    except OSError as error:
        raise NetworkError(f"leases: {describe(error)}") from error
    address = _locked(directory, lambda fd: _reserve(fd, pool, request, wanted))
    if address is None:
        raise NetworkError(f"leases: {directory} was removed meanwhile")
    return address


def release(directory: str, request: Request) -> None:
    """Give back all leases that the container has for this interface, if there are any."""
    _locked(directory, lambda fd: _release(fd, request))


def holds_lease(directory: str, request: Request) -> bool:
    """Tell whether the container has a lease for this interface."""
    return bool(_locked(directory, lambda fd: _leases_of(fd, request)))


def lease_directory(directory: str, network: str) -> str:
    """Return where the leases of a network are."""
    return f"{directory.rstrip('/')}/{network}"


def _locked(directory: str, function: Callable[[int], T]) -> T | None:
    """Return what `function` makes of a descriptor of the directory while it is locked; None if there is none."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NetworkError(f"leases: {describe(error)}") from error
    try:
        lock = os.open(_LOCK, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE, dir_fd=fd)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return function(fd)
        finally:
            os.close(lock)
    except OSError as error:
        raise NetworkError(f"leases in {directory}: {describe(error)}") from error
    finally:
        os.close(fd)


def _reserve(directory: int, pool: Pool, request: Request, wanted: int | None) -> int:
    _remove_leftover(directory)
    held = _leases_of(directory, request)
    if held:
        raise NetworkError(f'{request.interface} has the address {held[0]} in network "{pool.network}" already')
    address = _next_free(directory, pool) if wanted is None else _check_wanted(directory, pool, wanted)
    # The lease comes last: once it is there nothing can fail any more.
    _write(directory, _LAST, format_address(address))
    _write(directory, format_address(address), f"{request.container_id}{_LINE_END}{request.interface}")
    return address


def _check_wanted(directory: int, pool: Pool, wanted: int) -> int:
    text = format_address(wanted)
    if wanted == pool.gateway:
        raise NetworkError(f'requested address {text} is the gateway of network "{pool.network}"')
    if not pool.has(wanted):
        raise NetworkError(f'requested address {text} is not one of network "{pool.network}": {pool}')
    holder = _read(directory, text).split()
    if holder:
        raise NetworkError(
            f'requested IP address "{text}" is not available in network: {pool.network}: it is leased to {holder[0]}'
        )
    return wanted


def _next_free(directory: int, pool: Pool) -> int:
    taken = set(os.listdir(directory))
    for address in _round(pool, _last_reserved(directory)):
        text = format_address(address)
        # Under the lock an empty file is what a plugin that was killed has left.
        if pool.has(address) and (text not in taken or not _read(directory, text)):
            return address
    raise NetworkError(f'no IP addresses available in network "{pool.network}": {pool}')


def _round(pool: Pool, last: int | None) -> Iterator[int]:
    """Yield each address of the pool once, beginning behind the last one leased."""
    start = pool.first if last is None or not pool.first <= last < pool.last else last + 1
    yield from range(start, pool.last + 1)
    yield from range(pool.first, start)


def _last_reserved(directory: int) -> int | None:
    try:
        return parse_address(_read(directory, _LAST))
    except ValueError:
        return None


def _release(directory: int, request: Request) -> None:
    _remove_leftover(directory)
    for name in _leases_of(directory, request):
        os.unlink(name, dir_fd=directory)


def _remove_leftover(directory: int) -> None:
    """Remove what a writer was killed over, which nobody else can be writing under the lock."""
    try:
        os.unlink(_NEW, dir_fd=directory)
    except FileNotFoundError:
        pass


def _leases_of(directory: int, request: Request) -> list[str]:
    """Return the files of a container's interface; those of old plugins name only the container."""
    names = [name for name in os.listdir(directory) if name not in (_LOCK, _NEW) and not name.startswith("last_")]
    contents = {name: _read(directory, name) for name in names}
    for content in (f"{request.container_id}{_LINE_END}{request.interface}", request.container_id):
        found = sorted(name for name in contents if contents[name] == content)
        if found:
            return found
    return []


def _read(directory: int, name: str) -> str:
    """Return the content of a file, nothing if it is none of a plugin's."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    except FileNotFoundError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return os.read(fd, _MAX_BYTES).decode(errors="replace").strip()
    finally:
        os.close(fd)


def _write(directory: int, name: str, text: str) -> None:
    """Write a file that is never seen without its content, not even after a kill."""
    fd = os.open(_NEW, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE, dir_fd=directory)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
    os.rename(_NEW, name, src_dir_fd=directory, dst_dir_fd=directory)
