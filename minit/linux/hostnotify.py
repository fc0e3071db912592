"""
Telling the supervisor that started a pod, or the pods of one `play`, about readiness and the stop.

By sd_notify(3), to the socket of NOTIFY_SOCKET; or about readiness by a line feed to the descriptor of MINIT_NOTIFY_FD,
as s6 and dinit expect.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

from minit.base.carried import Carried, Descriptor
from minit.base.errors import describe

READY = b"READY=1"
STOPPING = b"STOPPING=1"
SOCKET_VARIABLE = "NOTIFY_SOCKET"
DESCRIPTOR_VARIABLE = "MINIT_NOTIFY_FD"
_FIRST = 3
_LONGEST = 9


class Host(Carried):
    """The supervisor that started the pod. `descriptor` is open until readiness is told; `warn` gets warnings."""

    _address: str | None
    descriptor: Descriptor | None

    def __init__(self, address: str | None, descriptor: int | None, warn: Callable[[str], None]) -> None:
        self._address = address
        self.warn = warn
        self.descriptor = descriptor

    def tell(self, message: bytes) -> None:
        """Send READY or STOPPING; without a listener there is only a warning."""
        if self._address is not None:
            self._notify(self._address, message)
        if self.descriptor is not None and message == READY:
            try:
                os.write(self.descriptor, b"\n")
            except OSError as error:
                self.warn(f"warning: {DESCRIPTOR_VARIABLE}={self.descriptor}: {describe(error)}")
            os.close(self.descriptor)
            self.descriptor = None

    def _notify(self, address: str, message: bytes) -> None:
        name = address.encode(errors="surrogateescape")
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            try:
                flags = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT
                sock.sendto(message, flags, b"\0" + name[1:] if address.startswith("@") else name)
            finally:
                sock.close()
        except OSError as error:
            self.warn(f"warning: {SOCKET_VARIABLE}={address}: {describe(error)}")


def is_expected(environment: Mapping[str, str]) -> bool:
    """Return whether somebody wants to be told."""
    return SOCKET_VARIABLE in environment or DESCRIPTOR_VARIABLE in environment


def find_descriptor(environment: Mapping[str, str]) -> int | None:
    """Return the open descriptor in the variable, None without one."""
    text = environment.get(DESCRIPTOR_VARIABLE, "")
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST) or int(text) < _FIRST:
        return None
    try:
        os.fstat(int(text))
    except OSError:
        return None
    return int(text)


def take_host(environment: Mapping[str, str], warn: Callable[[str], None]) -> Host:
    """Return the supervisor to tell, by these variables; unusable values are warnings."""
    address, descriptor = environment.get(SOCKET_VARIABLE), find_descriptor(environment)
    if address is not None and not _is_usable(address):
        warn(f"warning: ignoring {SOCKET_VARIABLE}={address}: no socket of this machine")
        address = None
    if descriptor is None and (text := environment.get(DESCRIPTOR_VARIABLE)) is not None:
        warn(f"warning: ignoring {DESCRIPTOR_VARIABLE}={text}: no open descriptor from {_FIRST} on")
    return Host(address, descriptor, warn)


def _is_usable(address: str) -> bool:
    """Return whether an address belongs to this machine: a path, or abstract."""
    return address.startswith(("/", "@")) and len(address) > 1
