"""The output of one process of an app: the pipes it writes to, and the sidecar that reads them."""

from __future__ import annotations

import os
import select

from minit.iottymux.linebuffer import buffered_bytes, make_buffer, unread_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from minit.plan.app import AppSpec
    from minit.supervisor.attachable import Attachable


class Streams:
    """
    The read ends of a process's output, kept so that a new sidecar can take over from a dead one.

    `ends` are (name, read end, buffer), `pid` is the process whose lines they are, `sidecar` the pidfd of their reader,
    `attachable` what clients can attach to, None if nothing is. `noted` are the numbers of clients and of bytes that
    they lost which were told last. `log` is how many bytes a log file of the app may have,
    and how many files there may be.
    """

    def __init__(self, app: str, log: tuple[int, int]) -> None:
        self.app = app
        self.log = log
        self.pid: int | None = None
        self.ends: list[tuple[str, int, int]] = []
        self.attachable: Attachable | None = None
        self.sidecar: int | None = None
        self.noted = (0, 0)
        self._last_counters: dict[str, int] | None = None

    def open(self, names: Iterable[str], uid: int = 0, gid: int = 0) -> dict[str, int]:
        """Make a pipe for each of these streams and return the write ends, the caller's, by name."""
        writers: dict[str, int] = {}
        try:
            for name in names:
                reader, writers[name] = os.pipe2(os.O_CLOEXEC)
                try:
                    self.ends.append((name, reader, make_buffer()))
                except OSError:
                    os.close(reader)
                    raise
                # A process that is not root may open /dev/stdout, which is this pipe, once more.
                os.fchown(writers[name], uid, gid)
        except OSError:
            for fd in writers.values():
                os.close(fd)
            self.close()
            raise
        return writers

    def open_attachable(self, spec: AppSpec) -> dict[str, int]:
        """Make what clients can attach to and return the app's ends, the caller's, by name."""
        from minit.supervisor.attachable import Attachable  # loaded by the launcher

        attachable = Attachable(self.app)
        ends = attachable.open(spec)
        self.attachable = attachable
        return ends

    @property
    def need_sidecar(self) -> bool:
        """Whether there is anything to read or to attach to."""
        return bool(self.ends) or self.attachable is not None

    @property
    def at_end(self) -> bool:
        """Whether every pipe is empty and has no writer left, and all of it is passed on."""
        logged = all(_at_end(fd) and not buffered_bytes(buffer) for _, fd, buffer in self.ends)
        return logged and (self.attachable is None or self.attachable.at_end)

    @property
    def has_clients(self) -> bool:
        """Whether a sidecar that is gone has left clients behind, and not ended well."""
        return self.attachable is not None and self.attachable.counters()["clients"] > 0

    def unread_bytes(self) -> int:
        """Return how much has not been passed on."""
        logged = sum(unread_bytes(fd) + buffered_bytes(buffer) for _, fd, buffer in self.ends)
        return logged + (0 if self.attachable is None else self.attachable.unread_bytes())

    def counters(self) -> dict[str, int] | None:
        """Return what was counted about clients, None for a process without attachable streams."""
        return self._last_counters if self.attachable is None else self.attachable.counters()

    def flushes(self) -> int:
        """Return a number that grows while output is still being sent to clients."""
        return 0 if self.attachable is None else self.attachable.flushes()

    def supersede(self) -> None:
        """Leave to the streams of the app's next process what has a name: the sockets that clients attach by."""
        if self.attachable is not None:
            self.attachable.supersede()

    def close(self) -> None:
        """Give up everything."""
        for _, reader, buffer in self.ends:
            os.close(reader)
            os.close(buffer)
        self.ends.clear()
        if self.attachable is not None:
            self._last_counters = self.attachable.counters()
            self.attachable.close()
            self.attachable = None


def _at_end(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return [event for _, event in poller.poll(0)] == [select.POLLHUP]
