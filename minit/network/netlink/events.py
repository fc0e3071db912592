"""The kernel's events about links and addresses, rtnetlink(7), which only say that it is time to look."""

from __future__ import annotations

import socket

from pyroute2.netlink.rtnl import RTMGRP_LINK

_RECEIVE_BYTES = 1 << 16


class KernelEvents:
    """The events of `groups`, RTMGRP_…, of the network namespace that the process is in when this is made."""

    def __init__(self, groups: int = RTMGRP_LINK) -> None:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, 0)
        self._socket.bind((0, groups))

    def __enter__(self) -> KernelEvents:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor that can be read when something has happened."""
        return self._socket.fileno()

    def drop(self) -> None:
        """Forget what has happened by now."""
        try:
            while self._socket.recv(_RECEIVE_BYTES):
                pass
        except OSError:
            pass  # nothing left, or more than the socket holds: what there is now is looked at
