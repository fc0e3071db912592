"""
The addresses of servers that are named: the C library asks, in a process that can be killed.

It may wait for long and cannot be told to stop, and it reads what anybody on the network sends.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence

from minit.base.errors import describe
from minit.base.jsontext import dump, parse
from minit.base.value import Value
from minit.linux import syscalls
from minit.linux.forks import NAME_LOOKUP, fork

_LONGEST_SECONDS = 20.0
_READ_BYTES = 1 << 16
_MOST_ADDRESSES = 8  # of a name
_NO_SUCH_NAME = (socket.EAI_NONAME, socket.EAI_NODATA)


class Found(Value):
    """The addresses of a name; with a `failure` there is no such name, and without both nobody could tell."""

    name: str
    addresses: tuple[str, ...] = ()
    failure: str | None = None


class NameLookup:
    """A lookup of several names; `turn` when `fileno` can be read, and at `deadline` (monotonic), until it is over."""

    def __init__(self, names: Sequence[str]) -> None:
        """OSError if no process can be made."""
        self.deadline = time.monotonic() + _LONGEST_SECONDS
        self._told = b""
        self._pipe, writer = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            pid = fork(NAME_LOOKUP, lambda: _look_up(names, writer), {"pipe": writer})
            self._process = os.pidfd_open(pid)
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(writer)

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._pipe

    def turn(self) -> bool:
        """Take what is known by now; returns whether it is over, since there is no more or it has taken too long."""
        while time.monotonic() < self.deadline:
            try:
                data = os.read(self._pipe, _READ_BYTES)
            except BlockingIOError:
                return False
            if not data:
                return True
            self._told += data
        return True

    def close(self) -> Iterator[Found]:
        """End it, and return what it has found."""
        syscalls.pidfd_send_signal(self._process, signal.SIGKILL)
        os.waitid(os.P_PIDFD, self._process, os.WEXITED)
        os.close(self._process)
        os.close(self._pipe)
        # What stands behind the last end of a line was not written to its end.
        for line in self._told.split(b"\n")[:-1]:
            found = parse(line, "lookup of names")
            assert isinstance(found, dict)  # it is of our own process
            yield Found(name=found["name"], addresses=tuple(found["addresses"]), failure=found["failure"])


def _look_up(names: Sequence[str], pipe: int) -> None:
    """Write what is found of each name as soon as it is known."""
    for name in names:
        addresses, failure = [], None
        try:
            # As bytes: the interpreter of an image has no codec for international names.
            found = socket.getaddrinfo(name.encode("ascii"), None, type=socket.SOCK_DGRAM)
            addresses = list(dict.fromkeys(address[0] for *_, address in found))[:_MOST_ADDRESSES]
        except socket.gaierror as error:
            failure = describe(error) if error.errno in _NO_SUCH_NAME else None
        os.write(pipe, dump({"name": name, "addresses": addresses, "failure": failure}) + b"\n")
