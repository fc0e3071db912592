"""PID 1's side of the sidecars: each process with output has one, and another if that dies before the output ends."""

from __future__ import annotations

import _signal
import os

from minit import syscalls
from minit.errors import LaunchError, describe
from minit.iottymux.spawner import Spawner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from minit.reaper.exit_status import ExitStatus
    from minit.supervisor.journal import Journal
    from minit.supervisor.sources import Sources
    from minit.supervisor.streams import Streams


# Processes of an app, and handlers, whose output somebody else holds open: each has a sidecar and descriptors of PID 1.
_MOST_OF_AN_APP = 16


class Sidecars:
    """
    The output of the pod's processes and who reads it.

    `retry` is called when `renew` has something to do later, `on_end` with the app's name when a process of it has no
    more output. `filter` is the sidecars' filter of system calls, if they have one.

    `spawner` makes the sidecars; None before the first and after its death.
    """

    def __init__(
        self,
        sources: Sources,
        journal: Journal,
        retry: Callable[[], None],
        on_end: Callable[[str], None],
        filter: bytes = b"",
    ) -> None:
        self.spawner: Spawner | None = None
        self._sources = sources
        self._journal = journal
        self._retry = retry
        self._on_end_of_output = on_end
        self._filter = filter
        self._read: list[Streams] = []

    @property
    def all_ended(self) -> bool:
        """Whether all output has been read to its end."""
        return not self._read

    def read(self, app: str) -> bool:
        """Return whether there is or may be output of an app that has not been read."""
        return any(streams.app == app for streams in self._read)

    def reopen_logs(self, app: str | None) -> None:
        """Have the sidecars, of all apps or of one, let go of log files that have been moved."""
        for streams in self._read:
            if streams.sidecar is not None and app in (None, streams.app):
                try:
                    syscalls.pidfd_send_signal(streams.sidecar, _signal.SIGHUP)
                except ProcessLookupError:
                    pass  # it ended; another one opens the log anew

    def unread_bytes(self) -> int:
        """Return how much output waits to be read."""
        return sum(streams.unread_bytes() for streams in self._read)

    def flushes(self) -> int:
        """Return a number that grows while output is still being sent to attached clients."""
        return sum(streams.flushes() for streams in self._read)

    def start_all(self, spawner: Spawner, outputs: Sequence[Streams]) -> None:
        """Start a sidecar for each output, asking for all before waiting for the first."""
        self.spawner = spawner
        for streams in outputs:
            self._request(spawner, streams, renewed=False)
        for streams in outputs:
            self._adopt(streams, spawner.reply())
        self._read += outputs

    def start(self, streams: Streams) -> None:
        """Start a sidecar for one more output; of an app with too many that have no end the oldest is given up."""
        self._read.append(streams)
        for each in [each for each in self._read if each.app == streams.app][:-_MOST_OF_AN_APP]:
            self._journal.info("output.given-up", app=each.app, pid=each.pid)
            self._discard(each)
        self._start(streams, renewed=False)

    def renew(self) -> None:
        """Give all output that nobody reads a sidecar, and give up what is at its end."""
        for streams in list(self._read):
            if streams.sidecar is None and streams.at_end and not streams.has_clients:
                self._give_up(streams)
            elif streams.sidecar is None:
                self._start(streams, renewed=True)

    def discard(self, app: str) -> None:
        """Give up all output of an app that is removed, read or not."""
        for streams in [streams for streams in self._read if streams.app == app]:
            self._discard(streams)

    def on_death(self, pid: int, status: ExitStatus) -> None:
        """Note the end of a child, which may have been the spawner."""
        if self.spawner is not None and pid == self.spawner.pid:
            self._journal.info("spawner.lost", end=status.describe(), reason=self.spawner.last_words())
            self.spawner.close()
            self.spawner = None

    def _start(self, streams: Streams, *, renewed: bool) -> None:
        """Hand output to a new sidecar; what an old one had not written is still in the pipes."""
        try:
            if self.spawner is None:
                self.spawner = Spawner(self._filter)
            self._request(self.spawner, streams, renewed=renewed)
            self._adopt(streams, self.spawner.reply())
        except (LaunchError, OSError) as error:
            # No process to be had now; the app waits in its pipe rather than losing output.
            self._journal.info("sidecar.not-started", app=streams.app, reason=describe(error))
            self._retry()

    def _request(self, spawner: Spawner, streams: Streams, *, renewed: bool) -> None:
        assert streams.pid is not None
        if streams.attachable is None:
            spawner.request(streams.app, streams.pid, streams.ends, streams.log, renewed)
            return
        self._stop_hearing(streams)
        theirs, attachable = streams.attachable.connect()
        try:
            plain_log = streams.attachable.plain_log
            spawner.request(streams.app, streams.pid, streams.ends, streams.log, renewed, attachable, plain_log)
        finally:
            theirs.close()
        assert streams.attachable.supervisor is not None
        self._sources.watch(streams.attachable.supervisor.fileno(), lambda: self._hear(streams))

    def _hear(self, streams: Streams) -> None:
        assert streams.attachable is not None
        if streams.attachable.hear():
            self._note_clients(streams)
        else:
            self._stop_hearing(streams)

    def _stop_hearing(self, streams: Streams) -> None:
        """Act on the last words of a sidecar, and expect no more."""
        attachable = streams.attachable
        if attachable is not None and attachable.supervisor is not None:
            self._sources.unwatch(attachable.supervisor.fileno())
            attachable.hear()
            attachable.supervisor.close()
            attachable.supervisor = None
            self._note_clients(streams)

    def _note_clients(self, streams: Streams) -> None:
        """Tell of clients that came or went, and of what slow ones have lost."""
        counters = streams.counters()
        if counters is None:
            return
        clients, lost_bytes = counters["clients"], counters["dropped_bytes"]
        before, lost_before = streams.noted
        streams.noted = clients, lost_bytes
        if lost_bytes > lost_before:
            self._journal.event("app.output-dropped", app=streams.app, bytes=lost_bytes - lost_before)
        if clients != before:
            self._journal.event(
                "app.attached" if clients > before else "app.detached", app=streams.app, clients=clients
            )

    def _adopt(self, streams: Streams, pidfd: int) -> None:
        streams.sidecar = pidfd
        self._sources.watch(pidfd, lambda: self._on_end(streams))

    def _on_end(self, streams: Streams) -> None:
        assert streams.sidecar is not None
        self._sources.unwatch(streams.sidecar)
        os.close(streams.sidecar)
        streams.sidecar = None
        self._stop_hearing(streams)
        # What a killed one had not sent is in the rings, and its clients may come back for it.
        if streams.at_end and not streams.has_clients:
            self._give_up(streams)
        else:
            self._journal.event("sidecar.lost", app=streams.app)
            # Not at once: one that cannot do its work would be started over and over.
            self._retry()

    def _discard(self, streams: Streams) -> None:
        """Give up output whether or not it was read."""
        if streams.sidecar is not None:
            try:
                syscalls.pidfd_send_signal(streams.sidecar, _signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._sources.unwatch(streams.sidecar)
            os.close(streams.sidecar)
            streams.sidecar = None
        self._stop_hearing(streams)
        self._give_up(streams)

    def _give_up(self, streams: Streams) -> None:
        streams.close()
        self._read.remove(streams)
        self._on_end_of_output(streams.app)
