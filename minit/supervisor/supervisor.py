"""
What PID 1 does with every event, without waiting for any: apps, their deaths, deadlines, the pod's policy.

One epoll descriptor gathers all sources. During start-up it is polled directly; afterwards trio waits for it. So the
same code runs in both phases, and no event is lost between them.
"""

from __future__ import annotations

import _signal
import fcntl
import os
import select
import time

from minit import paths
from minit.errors import EXIT_FAILURE, LaunchError, describe
from minit.iottymux.spawner import Spawner
from minit.messages import receive_message
from minit.reaper.exit_status import ExitStatus
from minit.reaper.reaper import BATCH, reap
from minit.reaper.record import record_exit, write_file
from minit.stdio import complain
from minit.supervisor import lifecycle
from minit.supervisor.journal import Journal
from minit.syscalls import pidfd_send_signal, read_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from minit.messages import Socket
    from minit.plan.pod import PodPlan
    from minit.supervisor.app import App
    from minit.terminal import CallerTerminal

# SIGRTMIN+3 is the halt of systemd in a container, which managers of containers send.
HALT_SIGNALS = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGPWR, _signal.SIGRTMIN + 3)
WATCHED_SIGNALS = (_signal.SIGCHLD, *HALT_SIGNALS)

KILL_WAIT_SECONDS = 10.0
_RETRY_SECONDS = 1.0
_DRAIN_STALL_SECONDS = 5.0
_EVENTS_PER_TURN = 64
_FIONREAD = 0x541B


class Supervisor:
    """The apps of an immutable pod and the rules they live by; `exit_code` is fixed when the shutdown begins."""

    def __init__(
        self,
        plan: PodPlan,
        apps: Sequence[App],
        *,
        launcher: Socket,
        control: Socket,
        signals: int,
        journal: Journal,
        terminal: CallerTerminal | None = None,
        console: int | None = None,
    ) -> None:
        self.plan = plan
        self.apps = {app.name: app for app in apps}
        self.journal = journal
        self.control = control
        self.exit_code: int | None = None
        self.ready = False
        self._launcher = launcher
        self._terminal = terminal
        self._console = console
        self._signals = signals
        self._spawner: Spawner | None = None
        self._epoll = select.epoll()
        self._sources: dict[int, Callable[[], None]] = {}
        self._unrecorded: dict[str, ExitStatus] = {}
        self._retry_at: float | None = None
        self._reap_again = False
        self._actions: dict[str, Callable[[App], None]] = {
            lifecycle.RECORD: self._record,
            lifecycle.TERMINATE: self._terminate,
            lifecycle.KILL_GROUP: self._kill_group,
            lifecycle.CHECK_GROUP: self._check_group,
            lifecycle.REPORT_UNKILLABLE: self._report_unkillable,
            lifecycle.FINISH: self._finish,
        }
        self._watch(signals, self._on_signals)
        self._watch(launcher.fileno(), self._on_launcher)

    @property
    def event_fd(self) -> int:
        """The descriptor that is readable when `turn` has something to do."""
        return self._epoll.fileno()

    @property
    def finished(self) -> bool:
        """Whether nothing of any app is left."""
        return all(app.state == lifecycle.EXITED for app in self.apps.values())

    @property
    def starting(self) -> bool:
        """Whether some app has neither been executed nor ended."""
        return any(app.report is not None for app in self.apps.values())

    def next_deadline(self) -> float | None:
        """Return the monotonic time at which `turn` is due without an event, None if there is none."""
        deadlines = [app.deadline for app in self.apps.values() if app.deadline is not None]
        if self._retry_at is not None:
            deadlines.append(self._retry_at)
        return time.monotonic() if self._reap_again else min(deadlines, default=None)

    def turn(self, timeout_seconds: float = 0.0) -> None:
        """Handle the events at hand and the deadlines that passed, waiting at most so long for the first."""
        deadline = self.next_deadline()
        if deadline is not None:
            timeout_seconds = max(0.0, min(timeout_seconds, deadline - time.monotonic()))
        for fd, _ in self._epoll.poll(timeout_seconds, _EVENTS_PER_TURN):
            callback = self._sources.get(fd)
            if callback is not None:
                callback()
        if self._reap_again:
            self._reap()
        now = time.monotonic()
        for app in self.apps.values():
            if app.deadline is not None and app.deadline <= now:
                app.deadline = None
                killed = app.state in (lifecycle.KILLED, lifecycle.REMNANTS)
                self._handle(app, lifecycle.KILL_WAIT_OVER if killed else lifecycle.GRACE_OVER)
        if self._retry_at is not None and self._retry_at <= now:
            self._retry_at = None
            self._write_records()
            self._renew_sidecars()

    def start(self, spawner: Spawner | None) -> None:
        """Give every forked app with output its sidecar and watch it prepare itself; None if there is no output."""
        self._spawner = spawner
        served = []
        for app in self.apps.values():
            assert app.pid is not None and app.report is not None
            if spawner is not None and app.outputs:
                spawner.request(app.name, app.pid, app.outputs)
                served.append(app)
            self._watch(app.report.fileno(), lambda app=app: self._on_report(app))  # type: ignore[misc]
        for app in served:
            assert spawner is not None
            self._adopt_sidecar(app, spawner.reply())

    def request_stop(self, reason: str, force: bool = False) -> None:
        """Begin the shutdown of the pod; with `force` no app gets time to end by itself."""
        self.journal.info("pod.stop-requested", reason=reason, force=force)
        if force:
            # First: an app that SIGTERM ends would be recorded as stopped, though it was given no time to stop.
            for app in self.apps.values():
                self._handle(app, lifecycle.KILL)
        self._begin_shutdown(0)

    def drain(self) -> None:
        """Wait until every sidecar has written what its app left, or none makes progress any more."""
        self._renew_sidecars()
        progress, stalled_at = -1, 0.0
        while any(app.sidecar is not None for app in self.apps.values()):
            pending = sum(_unread_bytes(fd) for app in self.apps.values() for _, fd in app.outputs)
            now = time.monotonic()
            if pending != progress:
                progress, stalled_at = pending, now + _DRAIN_STALL_SECONDS
            elif now >= stalled_at:
                self.journal.info("pod.drain-stalled", unread_bytes=pending)
                return
            self.turn(0.25)

    def write_last_records(self) -> None:
        """Try once more to write the statuses that could not be written, and say which are lost if that fails."""
        self._write_records()
        for name in self._unrecorded:
            number = self.apps[name].number
            complain(f'stage1: app "{name}": status {number} could not be written')

    # Sources.

    def _watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._sources[fd] = callback
        self._epoll.register(fd, select.EPOLLIN)

    def _unwatch(self, fd: int) -> None:
        del self._sources[fd]
        self._epoll.unregister(fd)

    def _on_signals(self) -> None:
        numbers = read_signals(self._signals)
        if _signal.SIGCHLD in numbers:
            self._reap()
        for number in numbers:
            if number in HALT_SIGNALS:
                self.request_stop(f"signal {number}")

    def _on_launcher(self) -> None:
        # The launcher never sends anything: readable means that it is gone, or that the caller's terminal is.
        self._unwatch(self._launcher.fileno())
        if self._terminal is not None:
            # Killed, the launcher could not do it.
            self._terminal.restore()
        self.request_stop("the launcher is gone")
        if self._console is not None:
            # Not before: an app that dies of the hang-up has been stopped, and has not failed.
            os.close(self._console)
            self._console = None

    def _on_report(self, app: App) -> None:
        assert app.report is not None
        message, descriptors = receive_message(app.report)
        if message is not None and "prepared" in message:
            [app.namespace] = descriptors
            self._handle(app, lifecycle.READY_TO_EXEC)
            if all(other.state == lifecycle.PREPARED for other in self.apps.values()):
                self._execute_all()
            return
        if message is not None:
            step, number, path = message["step"], message.get("errno"), message.get("path")
            assert isinstance(step, str) and (number is None or isinstance(number, int))
            assert path is None or isinstance(path, str)
            app.failure = ExitStatus(step=step, errno=number, path=path)
        # End of file: either the exec closed the socket, or the process is about to be reaped.
        self._unwatch(app.report.fileno())
        app.report.close()
        app.report = None
        if not self.starting and all(each.executed and each.failure is None for each in self.apps.values()):
            self._mark_ready()

    def _on_sidecar_end(self, app: App) -> None:
        assert app.sidecar is not None
        self._unwatch(app.sidecar)
        os.close(app.sidecar)
        app.sidecar = None
        if not all(_at_end(fd) for _, fd in app.outputs):
            self.journal.info("sidecar.lost", app=app.name)
            # Not at once: one that cannot do its work would be started over and over.
            self._retry_soon()

    def _renew_sidecars(self) -> None:
        """Give each app whose output nobody reads a sidecar."""
        for app in self.apps.values():
            if app.sidecar is None and not all(_at_end(fd) for _, fd in app.outputs):
                self._renew_sidecar(app)

    def _renew_sidecar(self, app: App) -> None:
        """Hand the app's output to a new sidecar; what the old one had not written is still in the pipes."""
        assert app.pid is not None
        try:
            if self._spawner is None:
                self._spawner = Spawner()
            self._spawner.request(app.name, app.pid, app.outputs, renewed=True)
            self._adopt_sidecar(app, self._spawner.reply())
        except (LaunchError, OSError) as error:
            # No process to be had now; the app waits in its pipe rather than losing output.
            self.journal.info("sidecar.not-renewed", app=app.name, reason=describe(error))
            self._retry_soon()

    def _adopt_sidecar(self, app: App, pidfd: int) -> None:
        app.sidecar = pidfd
        self._watch(pidfd, lambda: self._on_sidecar_end(app))

    def _reap(self) -> None:
        dead = reap()
        self._reap_again = len(dead) == BATCH
        by_pid = {app.pid: app for app in self.apps.values() if app.number is None}
        for pid, status in dead:
            if pid in by_pid:
                self._on_death(by_pid[pid], status)
            elif self._spawner is not None and pid == self._spawner.pid:
                self.journal.info("spawner.lost", end=status.describe(), reason=self._spawner.last_words())
                self._spawner.close()
                self._spawner = None
        if dead:
            for app in self.apps.values():
                if app.state in (lifecycle.LINGERING, lifecycle.REMNANTS):
                    self._check_group(app)

    def _on_death(self, app: App, status: ExitStatus) -> None:
        if app.report is not None:
            self._on_report(app)
        self._unrecorded[app.name] = app.failure or status
        self._handle(app, lifecycle.DIED)

    # The lifecycle and its actions.

    def _handle(self, app: App, event: str) -> None:
        before = app.state
        app.state, actions = lifecycle.next_state(app.state, event)
        if app.state != before:
            self.journal.debug("app.state", app=app.name, state=app.state, cause=event)
        for action in actions:
            self._actions[action](app)

    def _execute_all(self) -> None:
        for app in self.apps.values():
            write_file(paths.started_marker(app.name), b"")
        for app in self.apps.values():
            assert app.report is not None
            app.executed = True
            self._handle(app, lifecycle.GO)
            try:
                app.report.send(b"go")
            except (BrokenPipeError, ConnectionResetError):
                pass  # it died after preparing itself, and is about to be reaped

    def _mark_ready(self) -> None:
        if not self.ready and self.exit_code is None:
            os.symlink(paths.READY_TARGET, paths.STAGE1_READY)
            self.ready = True
            self.journal.info("pod.ready")

    def _record(self, app: App) -> None:
        status = self._unrecorded[app.name]
        if not app.executed and app.failure is None and self.exit_code is not None:
            # The pod ended before its turn came: it has no status, and none is invented.
            del self._unrecorded[app.name]
            app.number = EXIT_FAILURE
            return
        app.number = status.number(self._stop_signal(app, status))
        self.journal.info("app.exited", app=app.name, status=app.number, end=status.describe())
        self._write_records()
        if not app.executed:
            complain(f'stage1: app "{app.name}": {status.describe()}')
        if app.number != 0:
            self._begin_shutdown(app.number)
        elif all(each.number is not None for each in self.apps.values()):
            self._begin_shutdown(0)

    def _stop_signal(self, app: App, status: ExitStatus) -> int | None:
        """Return the signal of which dying means that the app was stopped."""
        if self.exit_code is None:
            return None
        # The console's end says the same as SIGTERM, and may say it first.
        if app.spec.has_console and status.signal == _signal.SIGHUP:
            return status.signal
        return int(_signal.SIGTERM)

    def _write_records(self) -> None:
        for name, status in list(self._unrecorded.items()):
            number = self.apps[name].number
            if number is None:
                continue
            try:
                record_exit(name, status, number)
            except OSError as error:
                # PID 1 lives on and tries again: the app's end must not be lost to a full disk.
                self.journal.info("status.unwritten", app=name, reason=describe(error))
                self._retry_soon()
            else:
                del self._unrecorded[name]

    def _retry_soon(self) -> None:
        self._retry_at = time.monotonic() + _RETRY_SECONDS

    def _begin_shutdown(self, exit_code: int) -> None:
        if self.exit_code is not None:
            return
        self.exit_code = exit_code
        if self.ready:
            try:
                os.unlink(paths.STAGE1_READY)
            except OSError as error:
                self.journal.info("pod.still-marked-ready", reason=describe(error))
        self.ready = False
        for app in self.apps.values():
            self._handle(app, lifecycle.STOP)

    def _terminate(self, app: App) -> None:
        app.deadline = time.monotonic() + self.plan.stop_grace_seconds
        app.group.signal(_signal.SIGTERM, _signal.SIGCONT)

    def _kill_group(self, app: App) -> None:
        app.deadline = time.monotonic() + KILL_WAIT_SECONDS
        app.group.kill()
        if app.number is None and app.pidfd is not None:
            # Between fork and joining a v1 group the process is not in it yet.
            try:
                pidfd_send_signal(app.pidfd, _signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _check_group(self, app: App) -> None:
        if not app.group.processes():
            self._handle(app, lifecycle.GROUP_EMPTY)

    def _report_unkillable(self, app: App) -> None:
        pids = " ".join(map(str, app.group.processes()))
        complain(f'stage1: app "{app.name}": giving up on unkillable processes {pids}')
        self.exit_code = self.exit_code or EXIT_FAILURE

    def _finish(self, app: App) -> None:
        app.deadline = None


def _at_end(fd: int) -> bool:
    """Return whether a pipe is empty and has no writer left."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return [event for _, event in poller.poll(0)] == [select.POLLHUP]


def _unread_bytes(fd: int) -> int:
    size = bytearray(4)
    fcntl.ioctl(fd, _FIONREAD, size)
    return int.from_bytes(size, "little")
