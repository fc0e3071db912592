"""
PID 1's side of the sidecars: each process with output has one, and another after a death before the end of the output.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from minit.base.carried import Carried
from minit.base.errors import LaunchError, describe
from minit.iottymux.logfile import finished_log
from minit.iottymux.mux import PREDECESSOR
from minit.iottymux.sidecar import LEAVE
from minit.iottymux.spawner import Spawner, hand_over
from minit.linux import syscalls
from minit.linux.loop import Loop, wait_readable
from minit.linux.messages import Socket
from minit.podfiles import paths
from minit.podfiles.paths import PodEvent
from minit.reaper.exit_status import ExitStatus
from minit.supervisor.journal import Journal
from minit.supervisor.output.streams import Streams

# Processes of an app, and handlers, with output held open by others: each has a sidecar and descriptors of PID 1.
_MOST_OF_AN_APP = 16
# More requests than a socket holds would have PID 1 wait for the spawner, and each has a descriptor.
_MOST_ASKED_FOR = 32
# So many sidecars in a row die without any work before PID 1 gives up, after 13 seconds in all.
_MOST_FAILURES = 8
_FIRST_DELAY_SECONDS = 0.1
_NEVER = float("inf")
# How long an app's output waits for the exec of other apps.
_PATIENCE_SECONDS = 0.1
# The pause between looks at earlier output, and the largest number of vain looks: 4 seconds, less than the drain of a
# pod.
_EARLIER_LOOK_SECONDS = 0.05
_MOST_VAIN_LOOKS = 80
# A process in an uninterruptible sleep does not even die.
_DEATH_SECONDS = 1.0


class Sidecars(Carried):
    """
    The output of the pod's processes and the readers.

    `on_end` is called with the app's name when a process of the app has no more output, `on_loss` with the name and the
    number of lost bytes. `filter` is the sidecars' filter of system calls, empty for none.

    `spawner` makes the sidecars; None before the first and after its death.
    """

    spawner: Spawner | None
    _read: list[Streams]

    def __init__(
        self,
        loop: Loop,
        journal: Journal,
        on_end: Callable[[str], None],
        on_loss: Callable[[str, int], None],
        filter: bytes,
    ) -> None:
        self.spawner = None
        self._loop = loop
        self._journal = journal
        self._on_end_of_output = on_end
        self._on_loss = on_loss
        self.filter = filter
        self._read = []

    @property
    def all_ended(self) -> bool:
        """Tell whether all output has been read to the end."""
        return not self._read

    @property
    def renew_at(self) -> float | None:
        """The monotonic time at which `renew` has something to do; None without."""
        waiting = (streams.renew_at for streams in self._read if streams.sidecar is None and not streams.abandoned)
        return min(waiting, default=None)

    def read(self, app: str) -> bool:
        """Return whether an app has or may have unread output."""
        return any(streams.app == app for streams in self._read)

    def resume(self) -> None:
        """Watch all readers, and give output without a reader another."""
        for streams in self._read:
            if streams.sidecar is not None:
                self._watch_sidecar(streams, streams.sidecar)
            if streams.attachable is not None and streams.attachable.supervisor is not None:
                self._watch_link(streams, streams.attachable.supervisor)
            self._watch_abandoned(streams)
        self._tell_leaving()

    def reopen_logs(self, app: str | None) -> None:
        """Have the sidecars, of all apps or of one, let go of moved log files."""
        for streams in self._read:
            if streams.sidecar is not None and app in (None, streams.app):
                # After its end another one opens the log anew.
                syscalls.send_signals(streams.sidecar, signal.SIGHUP)

    def exchange(self, filter: bytes) -> None:
        """
        Have sidecars of this program, with this filter, take over from those of another version.

        Each sidecar leaves when nothing is half done, and hands its clients over. The next spawner is of this program.
        """
        self.filter = filter
        spawner, self.spawner = self.spawner, None
        if spawner is not None:
            spawner.close()
        for streams in self._read:
            streams.is_leaving = streams.sidecar is not None
        self._tell_leaving()

    def _tell_leaving(self) -> None:
        for streams in self._read:
            if streams.is_leaving and streams.sidecar is not None:
                syscalls.send_signals(streams.sidecar, LEAVE)

    def unread_bytes(self) -> int:
        """Return how much output waits to be read."""
        return sum(streams.unread_bytes() for streams in self._read)

    def flushes(self) -> int:
        """Return a growing number while output is still being sent to attached clients."""
        return sum(streams.flushes() for streams in self._read)

    def expect(self, streams: Streams) -> None:
        """Take in output, with the first sidecar to come by `start_all`."""
        streams.renew_at = _NEVER
        self._read.append(streams)

    def start_soon(self, streams: Streams) -> None:
        """Have output, now expected, not wait much longer for a first sidecar."""
        if streams.renew_at == _NEVER:
            streams.renew_at = time.monotonic() + _PATIENCE_SECONDS

    def start_all(self) -> None:
        """Start the expected sidecars, asking for many before waiting for the first."""
        waiting: list[tuple[Streams, Socket]] = []
        for streams in [streams for streams in self._read if not (streams.started_at or streams.failures)]:
            if len(waiting) == _MOST_ASKED_FOR:
                self._take(*waiting.pop(0))
            if not self._has_to_wait(streams) and (link := self._ask(streams)) is not None:
                waiting.append((streams, link))
        for streams, link in waiting:
            self._take(streams, link)

    def start(self, streams: Streams) -> None:
        """Start a sidecar for one more output; of an app with too many open outputs the oldest is given up."""
        self._read.append(streams)
        for each in [each for each in self._read if each.app == streams.app][:-_MOST_OF_AN_APP]:
            self._journal.info("output.given-up", app=each.app, pid=each.pid)
            self._lose(each)
        self._start(streams)

    def admit(self, streams: Streams) -> None:
        """Start a sidecar for output that an error has left without, before the first."""
        if streams not in self._read:
            self.start(streams)

    def renew(self, *, at_once: bool = False) -> None:
        """Give all output without a reader a sidecar when due, or `at_once`, and give up ended output."""
        for streams in list(self._read):
            self._renew(streams, at_once=at_once)

    def _renew(self, streams: Streams, *, at_once: bool = False) -> None:
        if streams.sidecar is not None or streams.abandoned:
            return
        if streams.at_end and not streams.has_clients:
            self._give_up(streams)
        elif at_once or streams.renew_at <= time.monotonic():
            self._start(streams)

    def present(self) -> list[Streams]:
        """Return the output that is not read to the end."""
        return [*self._read]

    def look_after(self, streams: Streams) -> None:
        """Do for one output what is due, whether or not the loop tells."""
        if streams.sidecar is not None and wait_readable([streams.sidecar], 0):
            self._on_end(streams)
        for fd in wait_readable(streams.abandoned, 0):
            self._drop(streams, fd)
        if streams in self._read:
            self._renew(streams)

    def lose_rest(self) -> None:
        """Give up all remaining output, as the pod ends, and count the loss."""
        for streams in list(self._read):
            self._lose(streams)

    def discard(self, app: str) -> None:
        """Give up all output of a removed app, read or not."""
        for streams in [streams for streams in self._read if streams.app == app]:
            self._discard(streams)

    def on_death(self, pid: int, status: ExitStatus) -> None:
        """Note the end of a child, which may have been the spawner."""
        if self.spawner is not None and pid == self.spawner.pid:
            self._journal.info("spawner.lost", end=status.describe(), reason=self.spawner.last_words())
            spawner, self.spawner = self.spawner, None
            spawner.close()

    def _start(self, streams: Streams) -> None:
        """Hand output to a new sidecar; the output not written by an old sidecar is still in the pipes."""
        if not self._has_to_wait(streams) and (link := self._ask(streams)) is not None:
            self._take(streams, link)

    def _has_to_wait(self, streams: Streams) -> bool:
        """
        Tell whether earlier, ended output of the app is to be read first, and look again later in that case.

        The log would not be in order. But output without a reader holds up nobody, or the app could not go on.
        """
        of_app = [each for each in self._read if each.app == streams.app]
        # Rather out of order than given up for being too many.
        if not streams.is_logged or len(of_app) > _MOST_OF_AN_APP // 2:
            return False
        left_bytes = sum(each.left_bytes() for each in of_app[: of_app.index(streams)])
        before, looks = streams.earlier or (left_bytes, 0)
        streams.earlier = left_bytes, 0 if left_bytes < before else looks + 1
        if not left_bytes or streams.earlier[1] > _MOST_VAIN_LOOKS:
            return False
        streams.renew_at = time.monotonic() + _EARLIER_LOOK_SECONDS
        return True

    def _ask(self, streams: Streams) -> Socket | None:
        """Ask for a sidecar, and return the link for `_take`; None if the request is put off."""
        try:
            if self.spawner is None:
                self.spawner = Spawner(self.filter)
            return self.spawner.request(streams.app)
        except (LaunchError, OSError) as error:
            self._fail(streams, error)
            return None

    def _take(self, streams: Streams, link: Socket) -> None:
        """
        Hand output to the sidecar at the other end of the link, if any; a sidecar without streams ends with the link.
        """
        assert self.spawner is not None
        try:
            self._adopt(streams, self.spawner.reply(link), link)
        except (LaunchError, OSError) as error:
            link.close()
            self._fail(streams, error)

    def _fail(self, streams: Streams, error: Exception) -> None:
        # No process to be had now, perhaps, or an app keeps as many descriptors in flight as there may be.
        self._journal.info("sidecar.not-started", app=streams.app, reason=describe(error))
        self._put_off(streams, lived_seconds=0.0)

    def _hear(self, streams: Streams) -> None:
        attachable = streams.attachable
        assert attachable is not None and attachable.supervisor is not None
        link = attachable.supervisor.fileno()
        if attachable.hear(is_leaving=streams.is_leaving):
            self._note_clients(streams)
        elif attachable.predecessor is None:
            self._stop_hearing(streams)
        else:
            self._loop.unwatch(link)
            self._forget_sidecar(streams)
            self._succeed(streams)

    def _succeed(self, streams: Streams) -> None:
        """Start the next sidecar after one that has left."""
        streams.is_leaving = False
        # In case of an error.
        streams.renew_at = time.monotonic()
        self._start(streams)

    def _stop_hearing(self, streams: Streams) -> None:
        """Act on the last words of a sidecar, and expect no more."""
        attachable = streams.attachable
        if attachable is not None and attachable.supervisor is not None:
            self._loop.unwatch(attachable.supervisor.fileno())
            attachable.hear(is_leaving=streams.is_leaving)
            attachable.close_fields("supervisor")
            self._note_clients(streams)

    def _note_clients(self, streams: Streams) -> None:
        """Tell of clients that came or went, and of the losses of slow clients."""
        counters = streams.counters()
        if counters is None:
            return
        clients, lost_bytes = counters["clients"], counters["dropped_bytes"]
        before, lost_before = streams.noted
        streams.noted = clients, lost_bytes
        if lost_bytes > lost_before:
            self._journal.event(PodEvent.APP_OUTPUT_DROPPED, app=streams.app, bytes=lost_bytes - lost_before)
        if clients != before:
            self._journal.event(
                PodEvent.APP_ATTACHED if clients > before else PodEvent.APP_DETACHED, app=streams.app, clients=clients
            )

    def _adopt(self, streams: Streams, pidfd: int, link: Socket) -> None:
        """
        Hand output to a sidecar, and watch for the end. The sidecar before has ended: nobody else reads the output.
        """
        assert streams.pid is not None and streams.sidecar is None
        attachable = streams.attachable
        held = [] if attachable is None else [*attachable.held.items()]
        if attachable is not None and attachable.predecessor is not None:
            held.append((PREDECESSOR, attachable.predecessor.fileno()))
        logged, plain_log = ((), None) if attachable is None else (attachable.logged, attachable.plain_log)
        before = streams.started_at
        try:
            # First: an error must leave no unknown reader.
            streams.sidecar, streams.started_at = pidfd, time.monotonic()
            self._watch_sidecar(streams, pidfd)
            if attachable is not None:
                attachable.supervisor = link
                self._watch_link(streams, link)
            hand_over(link, streams.pid, streams.ends, streams.log, before > 0, held, logged, plain_log)
        except BaseException:
            streams.sidecar, streams.started_at = None, before
            self._loop.unwatch(pidfd)
            self._loop.unwatch(link.fileno())
            if attachable is not None:
                attachable.supervisor = None
            os.close(pidfd)
            # A traceback would keep the link, and with the link a sidecar without streams.
            link.close()
            raise
        if attachable is None:
            link.close()
        else:
            attachable.close_fields("predecessor")

    def _watch_sidecar(self, streams: Streams, pidfd: int) -> None:
        self._loop.watch(pidfd, lambda _: self._on_end(streams))

    def _watch_link(self, streams: Streams, link: Socket) -> None:
        self._loop.watch(link.fileno(), lambda _: self._hear(streams))

    def _watch_abandoned(self, streams: Streams) -> None:
        for fd in streams.abandoned:
            self._loop.watch(fd, lambda _, fd=fd: self._drop(streams, fd))  # type: ignore[misc]

    def _forget_sidecar(self, streams: Streams) -> None:
        assert streams.sidecar is not None
        self._loop.unwatch(streams.sidecar)
        streams.close_fields("sidecar")

    def _on_end(self, streams: Streams) -> None:
        self._forget_sidecar(streams)
        self._stop_hearing(streams)
        # Unsent output of a killed sidecar is in the rings, and the clients may come back.
        if streams.at_end and not streams.has_clients:
            self._give_up(streams)
        elif streams.is_leaving:
            self._succeed(streams)
        else:
            self._journal.event(PodEvent.SIDECAR_LOST, app=streams.app)
            self._put_off(streams, lived_seconds=time.monotonic() - streams.started_at)

    def _put_off(self, streams: Streams, *, lived_seconds: float) -> None:
        """Have another sidecar started later, or none if too many of them could do nothing."""
        streams.note_failure(lived_seconds)
        if streams.failures < _MOST_FAILURES:
            streams.renew_at = time.monotonic() + _FIRST_DELAY_SECONDS * 2 ** (streams.failures - 1)
            return
        self._stop_hearing(streams)
        self._journal.event(PodEvent.SIDECAR_GIVEN_UP, app=streams.app, sidecars=streams.failures)
        self._finish_log(streams)
        streams.abandon()
        self._on_loss(streams.app, streams.lost_bytes)
        self._watch_abandoned(streams)
        if not streams.abandoned:
            self._give_up(streams)

    def _drop(self, streams: Streams, fd: int) -> None:
        """Read output for nobody, for the app to go on."""
        before = streams.lost_bytes
        if streams.drop(fd):
            self._on_loss(streams.app, streams.lost_bytes - before)
            return
        self._loop.unwatch(fd)
        streams.abandoned.remove(fd)
        os.close(fd)
        if not streams.abandoned:
            self._give_up(streams)

    def _lose(self, streams: Streams) -> None:
        """Give up output, and count the loss."""
        if streams.sidecar is not None:
            syscalls.send_signals(streams.sidecar, signal.SIGKILL)
            # Work of the sidecar before the death is not lost.
            wait_readable([streams.sidecar], _DEATH_SECONDS)
        self._finish_log(streams)
        unkept_bytes = streams.unkept_bytes()
        streams.lost_bytes += unkept_bytes
        if unkept_bytes:
            self._on_loss(streams.app, unkept_bytes)
        self._discard(streams)

    def _finish_log(self, streams: Streams) -> None:
        """Leave whole lines only, of which a killed sidecar may have noted none: the rest counts as lost."""
        try:
            size_bytes, files, path = streams.log
            place = None if path is None else (paths.STAGE1_KUBERNETES_LOG, path)
            with finished_log(streams.app, paths.STAGE1_LOG, size_bytes, files, place) as log:
                streams.find_logged(log)
        except OSError as error:
            self._journal.info("log.unfinished", app=streams.app, reason=describe(error))

    def _discard(self, streams: Streams) -> None:
        """Give up output whether read or not."""
        if streams.sidecar is not None:
            syscalls.send_signals(streams.sidecar, signal.SIGKILL)
            self._forget_sidecar(streams)
        self._stop_hearing(streams)
        for fd in streams.abandoned:
            self._loop.unwatch(fd)
        self._give_up(streams)

    def _give_up(self, streams: Streams) -> None:
        if streams.lost_bytes:
            self._journal.event(PodEvent.APP_OUTPUT_LOST, app=streams.app, bytes=streams.lost_bytes)
        streams.close()
        self._read.remove(streams)
        for each in self._read:
            if each.app == streams.app and each.earlier is not None and not (each.started_at or each.failures):
                each.renew_at = time.monotonic()
        self._on_end_of_output(streams.app)
