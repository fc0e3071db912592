"""The output of one process of an app: the pipes it writes to, and the sidecar that reads them."""

from __future__ import annotations

import fcntl
import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_FIONREAD = 0x541B


class Streams:
    """
    The read ends of a process's output, kept so that a new sidecar can take over from a dead one.

    `ends` are (name, read end), `pid` is the process whose lines they are, `sidecar` the pidfd of their reader. `log`
    is how many bytes a log file of the app may have, and how many files there may be.
    """

    def __init__(self, app: str, log: tuple[int, int]) -> None:
        self.app = app
        self.log = log
        self.pid: int | None = None
        self.ends: list[tuple[str, int]] = []
        self.sidecar: int | None = None

    def open(self, names: Iterable[str], uid: int = 0, gid: int = 0) -> dict[str, int]:
        """Make a pipe for each of these streams and return the write ends, the caller's, by name."""
        writers: dict[str, int] = {}
        try:
            for name in names:
                reader, writers[name] = os.pipe2(os.O_CLOEXEC)
                self.ends.append((name, reader))
                # A process that is not root may open /dev/stdout, which is this pipe, once more.
                os.fchown(writers[name], uid, gid)
        except OSError:
            for fd in writers.values():
                os.close(fd)
            self.close()
            raise
        return writers

    @property
    def at_end(self) -> bool:
        """Whether every pipe is empty and has no writer left."""
        return all(_at_end(fd) for _, fd in self.ends)

    def unread_bytes(self) -> int:
        """Return how much the pipes hold."""
        return sum(_unread_bytes(fd) for _, fd in self.ends)

    def close(self) -> None:
        """Give up the read ends."""
        for _, fd in self.ends:
            os.close(fd)
        self.ends.clear()


def _at_end(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return [event for _, event in poller.poll(0)] == [select.POLLHUP]


def _unread_bytes(fd: int) -> int:
    size = bytearray(4)
    fcntl.ioctl(fd, _FIONREAD, size)
    return int.from_bytes(size, "little")
