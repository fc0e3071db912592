"""Telling the host's service manager that the pod is ready, and that it stops: sd_notify(3), for the whole pod."""

from __future__ import annotations

import socket

from minit.errors import describe
from minit.stdio import complain

READY = b"READY=1"
STOPPING = b"STOPPING=1"


def is_usable(address: str) -> bool:
    """Return whether an address in NOTIFY_SOCKET is one of this machine: a path, or abstract."""
    return address.startswith(("/", "@")) and len(address) > 1


def notify_host(address: str, message: bytes) -> None:
    """Send a message to the host's manager; one that does not listen is told so on standard error, and no more."""
    name = address.encode(errors="surrogateescape")
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            flags = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT
            sock.sendto(message, flags, b"\0" + name[1:] if address.startswith("@") else name)
        finally:
            sock.close()
    except OSError as error:
        complain(f"stage1: warning: NOTIFY_SOCKET={address}: {describe(error)}")
