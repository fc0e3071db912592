"""The output of one process of an app: the pipes it writes to, and the sidecar that reads them."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable

from minit.iottymux.linebuffer import buffered_bytes, make_buffer, passed_bytes, unlogged_bytes, unread_bytes
from minit.linux.loop import wait_events
from minit.plan.appplan import AppSpec
from minit.supervisor.output.attachable import Attachable

_DROPPED_AT_ONCE_BYTES = 64 * 1024
_LONG_LIFE_SECONDS = 10.0


class Streams:
    """
    The read ends of a process's output, kept so that a new sidecar can take over from a dead one.

    `ends` are (name, read end, buffer), `pid` is the process whose lines they are, `sidecar` the pidfd of their reader,
    `attachable` what clients can attach to, None if nothing is. `noted` are the numbers of clients and of bytes that
    they lost which were told last. `log` is how many bytes a log file of the app may have,
    how many files there may be, and the path of the log in the host's directory, None if it is in the pod.

    `failures` counts the sidecars that died soon, one after the other, without having done anything. The present one
    was started at `started_at` of the monotonic clock, or the next one is due at `renew_at`. When there will be no
    more, `abandoned` are the outputs. `lost_bytes` is how much nobody has read. `earlier` is how much output of the
    app that comes first was left when that was looked at, and how often it was the same; None if it never was.
    """

    def __init__(self, app: str, log: tuple[int, int, str | None]) -> None:
        self.app = app
        self.log = log
        self.pid: int | None = None
        self.ends: list[tuple[str, int, int]] = []
        self.attachable: Attachable | None = None
        self.sidecar: int | None = None
        self.noted = (0, 0)
        self.failures = 0
        self.started_at = self.renew_at = 0.0
        self.earlier: tuple[int, int] | None = None
        self.abandoned: list[int] = []
        self.lost_bytes = 0
        self._last_counters: dict[str, int] | None = None
        self._progress = 0

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
        attachable = Attachable(self.app)
        ends = attachable.open(spec)
        self.attachable = attachable
        return ends

    @property
    def need_sidecar(self) -> bool:
        """Tell whether there is anything to read or to attach to."""
        return bool(self.ends or self.abandoned) or self.attachable is not None

    @property
    def at_end(self) -> bool:
        """Tell whether every pipe is empty and has no writer left, and all of it is passed on."""
        logged = all(_at_end(fd) and not buffered_bytes(buffer) for _, fd, buffer in self.ends)
        return logged and not self.abandoned and (self.attachable is None or self.attachable.at_end)

    @property
    def is_logged(self) -> bool:
        """Tell whether anything of it goes into the log."""
        attachable = self.attachable
        return bool(self.ends) or (attachable is not None and bool(attachable.logged or attachable.plain_log))

    def left_bytes(self) -> int:
        """Return how much has to be passed on of what nobody can add anything to; 0 if somebody can."""
        others = [] if self.attachable is None else self.attachable.outputs
        sources = [*(reader for _, reader, _ in self.ends), *self.abandoned, *others]
        has_ended = all(wait_events({fd: 0}, 0) == {fd: select.POLLHUP} for fd in sources)
        return max(self.unread_bytes(), self.unkept_bytes()) if has_ended else 0

    @property
    def has_clients(self) -> bool:
        """Tell whether a sidecar that is gone has left clients behind, and not ended well."""
        return self.attachable is not None and self.attachable.counters()["clients"] > 0

    def unread_bytes(self) -> int:
        """Return how much has not been passed on."""
        logged = sum(unread_bytes(fd) + buffered_bytes(buffer) for _, fd, buffer in self.ends)
        return logged + self._unread_bytes()

    def unkept_bytes(self) -> int:
        """Return how much will be nowhere if nobody goes on, neither in a log nor with a client."""
        unlogged = 0 if self.attachable is None else self.attachable.unlogged_bytes()
        logged = sum(unread_bytes(fd) + unlogged_bytes(buffer) for _, fd, buffer in self.ends)
        return logged + unlogged + self._unread_bytes()

    def _unread_bytes(self) -> int:
        of_abandoned = sum(unread_bytes(fd) for fd in self.abandoned)
        return of_abandoned + (0 if self.attachable is None else self.attachable.unread_bytes())

    def note_failure(self, lived_seconds: float) -> None:
        """Count a sidecar that has died, or could not be started; one that lived or did anything begins a new row."""
        before, self._progress = self._progress, self._passed()
        is_useless = lived_seconds < _LONG_LIFE_SECONDS and self._progress == before
        self.failures = self.failures + 1 if is_useless else 1

    def _passed(self) -> int:
        taken = 0 if self.attachable is None else self.attachable.counters()["bytes_out"] + self.attachable.flushes()
        return taken + sum(passed_bytes(buffer) for _, _, buffer in self.ends)

    def abandon(self) -> None:
        """Give up everything but the ends of what the app writes to, which would wait for ever otherwise."""
        self.lost_bytes = sum(unlogged_bytes(buffer) for _, _, buffer in self.ends)
        if self.attachable is not None:
            self.lost_bytes += self.attachable.taken_bytes() + self.attachable.unlogged_bytes()
        outputs = [os.dup(reader) for _, reader, _ in self.ends]
        outputs += [] if self.attachable is None else [os.dup(fd) for fd in self.attachable.outputs]
        self.close()
        for fd in outputs:
            os.set_blocking(fd, False)
        self.abandoned = outputs

    def drop(self, fd: int) -> bool:
        """Read some of an abandoned output for nobody; False once it is at its end."""
        try:
            size_bytes = len(os.read(fd, _DROPPED_AT_ONCE_BYTES))
        except BlockingIOError:
            return True
        except OSError:
            size_bytes = 0  # EIO: nobody has the terminal open any more
        self.lost_bytes += size_bytes
        return size_bytes > 0

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
        for fd in self.abandoned:
            os.close(fd)
        self.abandoned.clear()
        if self.attachable is not None:
            self._last_counters = self.attachable.counters()
            self.attachable.close()
            self.attachable = None


def _at_end(fd: int) -> bool:
    return wait_events({fd: select.POLLIN}, 0) == {fd: select.POLLHUP}
