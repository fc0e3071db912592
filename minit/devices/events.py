"""The kernel's events about devices, which need no udevd (the kernel's lib/kobject_uevent.c)."""

from __future__ import annotations

import errno
import socket

_NETLINK_KOBJECT_UEVENT = 15
_FROM_KERNEL = 1
# More than that is lost, which does not matter to who looks afterwards.
_BUFFER_BYTES = 64 * 1024


class DeviceEvents:
    """Events from now on, which tell that something has changed; what there is now is found by looking."""

    def __init__(self) -> None:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, _NETLINK_KOBJECT_UEVENT)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._socket.bind((0, _FROM_KERNEL))

    def fileno(self) -> int:
        """Return a descriptor that can be read while there are events."""
        return self._socket.fileno()

    def drain(self) -> None:
        """Take all events that have come."""
        while True:
            try:
                self._socket.recv(1)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
