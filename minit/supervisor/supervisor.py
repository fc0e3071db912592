"""
What PID 1 does with every event, without waiting for any: apps, their deaths, deadlines, the pod's policy.

One epoll descriptor gathers all sources. During start-up it is polled directly; afterwards trio waits for it. So the
same code runs in both phases, and no event is lost between them.
"""

from __future__ import annotations

import _signal
import errno
import os
import select
import time

from minit import paths
from minit.errors import EXIT_FAILURE, describe
from minit.messages import receive_message, send_message
from minit.plan.app import HANDLER_POST_STOP, HANDLER_PRE_START
from minit.reaper.exit_status import STEP_EXEC, ExitStatus
from minit.reaper.reaper import BATCH, read_zombie, reap
from minit.reaper.record import note_state, record_exit, record_state, write_file
from minit.stdio import complain_at_once
from minit.supervisor import lifecycle
from minit.supervisor.app import spawn_app, state_of
from minit.supervisor.journal import Journal
from minit.supervisor.sidecars import Sidecars
from minit.supervisor.sources import Sources
from minit.syscalls import pidfd_send_signal, read_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from minit.iottymux.spawner import Spawner
    from minit.messages import Socket
    from minit.plan.pod import PodPlan
    from minit.supervisor.app import App
    from minit.supervisor.helpers import AppHelper
    from minit.supervisor.restarts import Restarts
    from minit.terminal import CallerTerminal

# SIGRTMIN+3 is the halt of systemd in a container, which managers of containers send.
HALT_SIGNALS = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGPWR, _signal.SIGRTMIN + 3)
WATCHED_SIGNALS = (_signal.SIGCHLD, _signal.SIGHUP, *HALT_SIGNALS)

# Who may ask for a stop.
BY_SIGNAL = "signal"
BY_LAUNCHER = "launcher"
BY_CONTROL = "control socket"

KILL_WAIT_SECONDS = 10.0
# Making the root of an app that is added; only a volume that hangs takes so long.
BUILD_SECONDS = 60.0
_RETRY_SECONDS = 1.0
# How often a v1 group is looked at while it empties; a v2 group tells.
_RECHECK_SECONDS = 0.1
_GROUP_EVENTS_BYTES = 256
# A fork can fail for a moment, while a neighbour takes all processes, say.
_FORK_ATTEMPTS = 10
_FORK_PAUSE_SECONDS = 0.005
_DRAIN_STALL_SECONDS = 5.0


class Supervisor:
    """
    The apps of a pod and the rules they live by; `exit_code` is fixed when the shutdown begins.

    `open_files` is the RLIMIT_NOFILE of apps that are added. `observers` are called when anything about an app has
    changed.
    """

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
        open_files: tuple[int, int] = (1024, 4096),
    ) -> None:
        self.plan = plan
        self.apps = {app.name: app for app in apps}
        self.journal = journal
        self.control = control
        self.open_files = open_files
        self.observers: list[Callable[[App], None]] = []
        self.exit_code: int | None = None
        self.ready = False
        self._launcher = launcher
        self._terminal = terminal
        self._console = console
        self._signals = signals
        self._sources = Sources()
        self._sidecars = Sidecars(self._sources, journal, self._retry_soon, self._mark_log_end, plan.sidecar_filter)
        self._requests = {BY_SIGNAL: 0, BY_LAUNCHER: 0, BY_CONTROL: 0}
        self._forced = False
        self._unwritten: set[str] = set()
        self._retry_at: float | None = None
        self._fork_at: float | None = None
        self._recheck_at: float | None = None
        self._reap_again = False
        self._actions: dict[str, Callable[[App], None]] = {
            lifecycle.FORK: self._fork,
            lifecycle.RUN_PRE_START: self._run_pre_start,
            lifecycle.EXECUTE: self._execute,
            lifecycle.RECORD: self._record,
            lifecycle.TERMINATE: self._terminate,
            lifecycle.KILL_GROUP: self._kill_group,
            lifecycle.CHECK_GROUP: self._check_group,
            lifecycle.RUN_POST_STOP: self._run_post_stop,
            lifecycle.ARM_GRACE: self._arm_grace,
            lifecycle.REPORT_UNKILLABLE: self._report_unkillable,
            lifecycle.FINISH: self._finish,
            lifecycle.RELEASE: self._release,
        }
        self._sources.watch(signals, self._on_signals)
        self._sources.watch(launcher.fileno(), self._on_launcher)

    @property
    def event_fd(self) -> int:
        """The descriptor that is readable when `turn` has something to do."""
        return self._sources.event_fd

    @property
    def finished(self) -> bool:
        """Whether nothing of any app is left, of a mutable pod only once it is to end."""
        if self.plan.mutable and self.exit_code is None:
            return False
        return all(app.state in lifecycle.RESTING and not app.is_restarting for app in self.apps.values())

    @property
    def starting(self) -> bool:
        """Whether some app is being prepared or executed; one whose pre-start handler runs may take for ever."""
        left_out = lifecycle.PRE_START
        return any(
            each.report is not None and each.state != left_out and not each.waiting for each in self.apps.values()
        )

    def next_deadline(self) -> float | None:
        """Return the monotonic time at which `turn` is due without an event, None if there is none."""
        deadlines = [app.deadline for app in self.apps.values() if app.deadline is not None]
        deadlines += [moment for moment in (self._retry_at, self._fork_at, self._recheck_at) if moment is not None]
        return time.monotonic() if self._reap_again else min(deadlines, default=None)

    def turn(self, timeout_seconds: float = 0.0) -> None:
        """Handle the events at hand and the deadlines that passed, waiting at most so long for the first."""
        deadline = self.next_deadline()
        if deadline is not None:
            timeout_seconds = max(0.0, min(timeout_seconds, deadline - time.monotonic()))
        self._sources.handle(timeout_seconds)
        if self._reap_again:
            self._reap()
        now = time.monotonic()
        for app in [*self.apps.values()]:
            if app.deadline is not None and app.deadline <= now:
                # Before its end is over the deadline is that of what it left behind.
                is_restart = app.restart_at is not None
                app.deadline = None
                if is_restart:
                    self.start_again(app)
                    continue
                killed = app.is_killed
                self._handle(app, lifecycle.KILL_WAIT_OVER if killed else lifecycle.GRACE_OVER)
        if self._retry_at is not None and self._retry_at <= now:
            self._retry_at = None
            self._write_records()
            self._sidecars.renew()
            for app in self.apps.values():
                self._listen_to(app)
        if self._fork_at is not None and self._fork_at <= now:
            self._fork_at = None
            self._run_put_off_handlers()
        if self._recheck_at is not None and self._recheck_at <= now:
            self._recheck_at = None
            self._check_groups()

    def start(self, spawner: Spawner | None) -> None:
        """Give every forked app with output its sidecar and watch it prepare itself; None if there is no output."""
        for app in self.apps.values():
            self._watch(app)
        if spawner is not None:
            self._sidecars.start_all(spawner, [app.streams for app in self.apps.values() if app.streams.need_sidecar])
        if self.plan.mutable:
            # Ready to have apps added, whatever becomes of those it begins with.
            self._mark_ready()

    def start_again(self, app: App) -> None:
        """
        Start an app that has exited once more, in the root it has: with streams, a sidecar and handlers as at first.

        Not one with the pod's console, which is gone with its first process. Nothing if the pod is ending.
        """
        if self.exit_code is None:
            self._handle(app, lifecycle.START)

    def add(self, app: App) -> None:
        """Take in an app whose builder has been forked."""
        self.apps[app.name] = app
        app.deadline = time.monotonic() + BUILD_SECONDS
        self._watch(app)
        for helper in app.helpers:
            self._watch_helper(app, helper)
        self._notify(app)

    def stop_app(self, app: App) -> None:
        """Begin to stop an app, while the pod goes on."""
        app.is_stopped = True
        self._cancel_restart(app)
        self._handle(app, lifecycle.STOP)

    def note_health(self, app: App) -> None:
        """Look again whether an app is ready, of which a check knows something new."""
        self._on_progress(app)

    def end_unhealthy(self, app: App, check: str, reason: str, *, with_pod: bool) -> None:
        """Begin to end an app that runs and does not work: it has failed, and so has the pod if that ends with it."""
        app.is_unhealthy = True
        app.failure = ExitStatus(step=check, path=reason)
        self._handle(app, lifecycle.STOP)
        if with_pod:
            self._begin_shutdown(EXIT_FAILURE)

    def remove(self, app: App) -> None:
        """Begin to remove an app, which is stopped first."""
        app.is_removed = True
        self._cancel_restart(app)
        if app.state in (lifecycle.BUILDING, *lifecycle.RESTING):
            self._handle(app, lifecycle.REMOVE)
        else:
            self.stop_app(app)

    def request_stop(self, source: str = BY_CONTROL, detail: str = "", *, force: bool = False) -> None:
        """
        Begin the shutdown of the pod; with `force`, or the second time, no app gets time to end by itself.

        A manager that signals every process of a pod reaches PID 1 twice, once through the launcher: that is one
        request.
        """
        self._requests[source] += 1
        signalled = max(self._requests[BY_SIGNAL], self._requests[BY_LAUNCHER])
        force = force or signalled + self._requests[BY_CONTROL] > 1
        self.journal.event("pod.stop-requested", reason=f"{source} {detail}".rstrip(), force=force)
        if force:
            self._forced = True
            # First: an app that SIGTERM ends would be recorded as stopped, though it was given no time to stop.
            for app in [*self.apps.values()]:
                self._handle(app, lifecycle.KILL)
        self._begin_shutdown(0)

    def reopen_logs(self, app: str | None = None) -> None:
        """Have log files that a program of the host moved no longer written to: those of all apps, or of one."""
        self._sidecars.reopen_logs(app)

    def drain(self) -> None:
        """Wait until every sidecar has written what its process left, or none makes progress any more."""
        self._sidecars.renew()
        progress, stalled_at = (-1, -1), 0.0
        while not self._sidecars.all_ended:
            pending = self._sidecars.unread_bytes()
            now = time.monotonic()
            if (pending, self._sidecars.flushes()) != progress:
                progress, stalled_at = (pending, self._sidecars.flushes()), now + _DRAIN_STALL_SECONDS
            elif now >= stalled_at:
                self.journal.info("pod.drain-stalled", unread_bytes=pending)
                return
            self.turn(0.25)

    def write_last_records(self) -> None:
        """Try once more to write the statuses that could not be written, and say which are lost if that fails."""
        self._write_records()
        for name in sorted(self._unwritten):
            app = self.apps[name]
            if not app.recorded:
                complain_at_once(f'stage1: app "{name}": status {app.number} could not be written')

    # Sources.

    def admits(self, pid: int, uid: int) -> bool:
        """Return whether a process may ask on the control socket: one that PID 1 cannot see, with pid 0 here."""
        return pid == 0

    def _on_signals(self) -> None:
        self._handle_signals(read_signals(self._signals))

    def _handle_signals(self, numbers: Sequence[int]) -> None:
        halts = [str(number) for number in numbers if number in HALT_SIGNALS]
        # Before the dead are looked at: whoever signals every process of the pod is asking for a stop.
        if halts:
            self.request_stop(BY_SIGNAL, " ".join(halts))
        if _signal.SIGHUP in numbers:
            self.reopen_logs()
        if _signal.SIGCHLD in numbers:
            self._reap()

    def _on_launcher(self) -> None:
        message, _ = receive_message(self._launcher)
        if message is None:
            self._on_launcher_end()
        elif message["stop"] == _signal.SIGHUP:
            self._stop_unasked("the launcher was hung up")
        else:
            self.request_stop(BY_LAUNCHER, f"signal {message['stop']}")

    def _on_launcher_end(self) -> None:
        """Act on the end of the launcher, or of the caller's terminal."""
        self._sources.unwatch(self._launcher.fileno())
        if self._terminal is not None:
            # Killed, the launcher could not do it.
            self._terminal.restore()
        self._stop_unasked("the launcher is gone")
        if self._console is not None:
            # Not before: an app that dies of the hang-up has been stopped, and has not failed.
            os.close(self._console)
            self._console = None

    def _stop_unasked(self, reason: str) -> None:
        # No request that a second one could follow: systemd, for one, sends SIGHUP along with SIGTERM.
        self.journal.event("pod.stop-requested", reason=reason, force=False)
        self._begin_shutdown(0)

    def _on_report(self, app: App) -> None:
        assert app.report is not None
        message, descriptors = receive_message(app.report)
        if message is not None and "prepared" in message:
            if descriptors:
                [app.namespace] = descriptors
            notes = message["prepared"]
            assert isinstance(notes, list)
            for note in notes:
                complain_at_once(f'stage1: warning: app "{app.name}": {note}')
            self._handle(app, lifecycle.READY_TO_EXEC)
            if app.state != lifecycle.PREPARED:
                return
            if self.plan.mutable or app.starts > 1:
                self._go([app])
            elif all(each.state == lifecycle.PREPARED and each.report is not None for each in self.apps.values()):
                self._go([*self.apps.values()])
            return
        if message is not None:
            step, number, path = message["step"], message.get("errno"), message.get("path")
            assert isinstance(step, str) and (number is None or isinstance(number, int))
            assert path is None or isinstance(path, str)
            app.failure = ExitStatus(step=step, errno=number, path=path)
        # End of file: either the exec closed the socket, or the process is about to be reaped.
        self._sources.unwatch(app.report.fileno())
        app.report.close()
        app.report = None
        if app.executed and app.failure is None:
            app.started_ns = time.time_ns()
            if self.plan.mutable:
                self._write_state(app)
        self._notify(app)
        self._on_progress(app)

    def _reap(self) -> None:
        dead = reap()
        self._reap_again = len(dead) == BATCH
        by_pid = {app.pid: app for app in self.apps.values() if app.number is None}
        by_handler = {app.handler.pid: app for app in self.apps.values() if app.handler is not None}
        for pid, status in dead:
            if pid in by_pid:
                self._on_death(by_pid[pid], status)
            elif pid in by_handler:
                self._on_handler_end(by_handler[pid], status)
            else:
                self._sidecars.on_death(pid, status)
        if dead:
            self._check_groups()

    def _on_main_end(self, app: App) -> None:
        pid = app.pid
        self._reap()
        if app.pid == pid and app.pidfd in self._sources:
            # Only its tracer, on the host perhaps, can reap it. Its end counts all the same.
            assert pid is not None
            self._on_death(app, read_zombie(pid))

    def _on_death(self, app: App, status: ExitStatus) -> None:
        assert app.pidfd is not None
        was_born_there = app.namespace is not None and app.group.birthplace is not None
        app.group.note_death(status.signal)
        self._sources.unwatch(app.pidfd)
        while app.report is not None:
            self._on_report(app)
        if app.state in (lifecycle.BUILDING, lifecycle.ABANDONED):
            self._on_built(app, status)
            return
        if was_born_there and app.group.birthplace is None and app.state == lifecycle.PREPARING and not app.failure:
            # Not the app's doing: somebody on the host has killed the group while it was empty.
            app.starts -= 1
            self._spawn_again(app)
            return
        if app.readiness is not None:
            self._on_last_words(app)
        app.status = app.failure or status
        self._handle(app, lifecycle.DIED)

    def _on_built(self, app: App, status: ExitStatus) -> None:
        """Act on the end of the process that made the root of an app."""
        if app.state == lifecycle.BUILDING:
            app.deadline = None
        else:
            app.failure = ExitStatus(step="build the root", path="given up")
        if app.failure is None and (status.code != 0 or app.namespace is None):
            app.failure = ExitStatus(step="build the root", path=status.describe())
        if app.failure is None:
            app.begin_again()
            self._write_state(app)
            self._handle(app, lifecycle.BUILT)
        else:
            self._handle(app, lifecycle.BUILD_FAILED)

    def _on_handler_end(self, app: App, status: ExitStatus) -> None:
        handler, app.handler = app.handler, None
        assert handler is not None
        os.close(handler.pidfd)
        self.journal.event("handler.ended", app=app.name, handler=handler.name, end=status.describe())
        if status.code == 0:
            self._handle(app, lifecycle.HANDLED)
        else:
            self._fail_handler(app, handler.name, status)

    def _fail_handler(self, app: App, name: str, status: ExitStatus) -> None:
        failure = ExitStatus(step=name, path=status.describe())
        if name == HANDLER_POST_STOP:
            # The app has its status; that its handler failed is said beside it.
            complain_at_once(f'stage1: app "{app.name}": {failure.describe()}')
            app.post_stop_due = False
            app.post_stop_failure = status
            if app.status is not None:
                self._unwritten.add(app.name)
                self._write_records()
        elif app.state == lifecycle.PRE_START:
            app.failure = failure
        self._handle(app, lifecycle.HANDLER_FAILED)

    def _on_group_events(self, app: App) -> None:
        assert app.group_events is not None
        os.pread(app.group_events, _GROUP_EVENTS_BYTES, 0)
        self._check_groups()

    def _check_groups(self) -> None:
        for app in [*self.apps.values()]:
            if app.state in (lifecycle.LINGERING, lifecycle.REMNANTS, lifecycle.DELETING):
                self._check_group(app)

    # The lifecycle and its actions.

    def _handle(self, app: App, event: str) -> None:
        before = app.state
        app.state, actions = lifecycle.next_state(app.state, event)
        if app.state != before:
            self.journal.event("app.state", app=app.name, state=app.state, cause=event)
        for action in actions:
            self._actions[action](app)
        self._notify(app)

    def _notify(self, app: App) -> None:
        for observer in self.observers:
            observer(app)
        for helper in app.helpers:
            helper.tell()

    def _watch(self, app: App) -> None:
        assert app.report is not None and app.pidfd is not None
        self._sources.watch(app.report.fileno(), lambda: self._on_report(app))
        self._sources.watch(app.pidfd, lambda: self._on_main_end(app))
        self._listen_to(app)
        if app.readiness is not None and app.readiness.pipe is not None:
            self._sources.watch(app.readiness.pipe, lambda: self._on_notify_pipe(app))

    def _watch_helper(self, app: App, helper: AppHelper) -> None:
        def on_word() -> None:
            if not helper.read():
                self._sources.unwatch(helper.socket)
                self.journal.event("app.helper-died", app=app.name, helper=helper.kind)

        self._sources.watch(helper.socket, on_word)

    def _fork(self, app: App) -> None:
        """Start an app again."""
        self._unwritten.discard(app.name)
        if app.restarts is not None:
            app.restarts.begin()
        self._spawn_again(app)

    def _spawn_again(self, app: App) -> None:
        app.begin_again()
        app.oom_kills = app.group.oom_kills()
        try:
            # The markers of its last end must be gone before it can end once more.
            for path in (paths.status_file(app.name), paths.log_end_marker(app.name)):
                _remove(path)
            spawn_app(app)
        except OSError as error:
            app.status = app.failure = ExitStatus(step="fork", errno=error.errno)
            self._handle(app, lifecycle.FORK_FAILED)
            return
        self.journal.event("app.started-again", app=app.name, starts=app.starts)
        self._watch(app)
        if app.streams.need_sidecar:
            self._sidecars.start(app.streams)

    # What apps say of themselves, and who waits for that.

    def _on_notification(self, app: App) -> None:
        assert app.readiness is not None
        told, was_stopping = app.readiness.refused, app.readiness.is_stopping
        if not app.readiness.read_socket(app.pid if app.number is None else None, app.group):
            self._put_off_messages(app)
        if app.readiness.refused is not None and told is None:
            # Once: what an app sends must not fill the log.
            self.journal.event("app.message-refused", app=app.name, reason=app.readiness.refused)
        if app.readiness.is_stopping and not was_stopping:
            self.journal.event("app.stopping", app=app.name)
        self._on_progress(app)

    def _put_off_messages(self, app: App) -> None:
        """Read no more messages of an app that sends too many until it is time to try things again."""
        assert app.readiness is not None and app.readiness.socket is not None
        if app.readiness.socket.fileno() in self._sources:
            self._sources.unwatch(app.readiness.socket.fileno())
            self._retry_soon()

    def _listen_to(self, app: App) -> None:
        """Have the messages of an app read, if it sends any; the socket stays the same when it is started again."""
        fd = None if app.readiness is None or app.readiness.socket is None else app.readiness.socket.fileno()
        if fd is not None and fd not in self._sources:
            self._sources.watch(fd, lambda: self._on_notification(app))

    def _on_notify_pipe(self, app: App) -> None:
        assert app.readiness is not None and app.readiness.pipe is not None
        if not app.readiness.read_pipe():
            self._sources.unwatch(app.readiness.pipe)
            app.readiness.close_pipe()
        self._on_progress(app)

    def _on_last_words(self, app: App) -> None:
        """Hear what an app said before its end."""
        assert app.readiness is not None
        if app.readiness.socket is not None:
            self._on_notification(app)
        if app.readiness.pipe is not None:
            app.readiness.read_pipe()
            self._sources.unwatch(app.readiness.pipe)
            app.readiness.close_pipe()
        self._on_progress(app)

    def _on_progress(self, app: App) -> None:
        """Start those that wait for what an app has become, and mark the pod as ready when it was the last one."""
        if app.is_ready and not app.told_ready:
            app.told_ready = True
            self.journal.event("app.ready", app=app.name)
        for each in self.apps.values():
            if each.waiting:
                self._go([each])
        if all(each.is_ready for each in self.apps.values()):
            self._mark_ready()

    def _is_held_up(self, app: App) -> bool:
        """Return whether an app has to wait for others; one that would wait for ever has failed."""
        if not app.spec.after or (app.starts > 1 and not self.plan.mutable):
            return False
        from minit.supervisor.order import find_unmet, waits_in_vain  # loaded by the launcher

        # Of a mutable pod one is started when somebody asks for it, who is told that it cannot be.
        reason = (find_unmet if self.plan.mutable else waits_in_vain)(app, self.apps)
        app.waiting = reason is None and find_unmet(app, self.apps) is not None
        if reason is not None and self.exit_code is None:
            app.failure = ExitStatus(step="wait for other apps", path=reason)
            self._handle(app, lifecycle.KILL)
            return True
        return app.waiting

    def _go(self, apps: Sequence[App]) -> None:
        """Start these apps, all of them being prepared, but for those that wait for others."""
        apps = [app for app in apps if not self._is_held_up(app)]
        ready = [app for app in apps if app.spec.pre_start is None]
        for app in ready:
            if not self._is_marked_at_exec(app):
                write_file(paths.started_marker(app.name), b"")
        for app in ready:
            self._handle(app, lifecycle.GO)
        for app in apps:
            if app.spec.pre_start is not None:
                self._handle(app, lifecycle.HANDLE_START)

    def _execute(self, app: App) -> None:
        if app.report is None:
            return  # it failed after preparing itself, and is about to be reaped
        if self._is_marked_at_exec(app):
            try:
                _mark_started(app.name)
            except OSError as error:
                app.failure = ExitStatus(step="mark as started", errno=error.errno, path=paths.started_marker(app.name))
                self._handle(app, lifecycle.KILL)
                return
        app.begun = app.executed = True
        app.executed_at = time.monotonic()
        try:
            app.report.send(b"go")
        except (BrokenPipeError, ConnectionResetError):
            pass  # it died after preparing itself, and is about to be reaped

    def _is_marked_at_exec(self, app: App) -> bool:
        """Return whether a marker that cannot be written is the end of this start, not of the whole pod's."""
        return app.spec.pre_start is not None or self.plan.mutable or app.starts > 1

    def _run_pre_start(self, app: App) -> None:
        app.begun = True
        app.failed_forks = 0
        self._run_handler(app, HANDLER_PRE_START)

    def _run_post_stop(self, app: App) -> None:
        app.deadline = None
        if self.exit_code is not None or app.is_stopped:
            self._arm_grace(app)
        app.failed_forks = 0
        self._run_handler(app, HANDLER_POST_STOP)

    def _run_handler(self, app: App, name: str) -> None:
        # Loaded by the launcher if any app has a handler.
        from minit.supervisor.handler import spawn_handler

        try:
            app.handler = spawn_handler(app, name)
        except OSError as error:
            self._put_off_handler(app, name, error)
            return
        if name == HANDLER_POST_STOP:
            app.post_stop_due = False
        self.journal.event("handler.started", app=app.name, handler=name, pid=app.handler.pid)
        if app.handler.streams.ends:
            self._sidecars.start(app.handler.streams)

    def _put_off_handler(self, app: App, name: str, error: OSError) -> None:
        """Fork the handler a little later; after many attempts it has failed."""
        app.failed_forks += 1
        self.journal.info("handler.not-started", app=app.name, handler=name, reason=describe(error))
        if app.failed_forks < _FORK_ATTEMPTS:
            delay_seconds = min(_FORK_PAUSE_SECONDS * 2**app.failed_forks, _RETRY_SECONDS)
            self._fork_at = time.monotonic() + delay_seconds
        else:
            self._fail_handler(app, name, ExitStatus(step="fork", errno=error.errno))

    def _run_put_off_handlers(self) -> None:
        for app in [*self.apps.values()]:
            if app.handler is None and app.state == lifecycle.PRE_START:
                self._run_handler(app, HANDLER_PRE_START)
            elif app.handler is None and app.state == lifecycle.POST_STOP:
                self._run_handler(app, HANDLER_POST_STOP)

    def _mark_ready(self) -> None:
        if not self.ready and self.exit_code is None:
            os.symlink(paths.READY_TARGET, paths.STAGE1_READY)
            self.ready = True
            self.journal.event("pod.ready")
            self._tell_host({"ready": True})

    def _record(self, app: App) -> None:
        assert app.status is not None
        app.waiting = False
        app.finished_ns = time.time_ns()
        app.was_asked_to_end = app.is_stopped or self.exit_code is not None
        app.is_oom_killed = app.status.signal == _signal.SIGKILL and app.group.oom_kills() > app.oom_kills
        if not app.executed and app.failure is None and app.is_stopped:
            app.status = ExitStatus(step="start", path="stopped before it was executed")
        elif not app.executed and app.failure is None and self.exit_code is not None:
            # The pod ended before its turn came: it has no status, and none is invented.
            app.status = None
            app.number = EXIT_FAILURE
            return
        app.number = app.status.number(self._stop_signal(app, app.status))
        reason = state_of(app)["reason"]
        self.journal.event("app.exited", app=app.name, status=app.number, end=app.status.describe(), reason=reason)
        self._unwritten.add(app.name)
        self._write_records()
        if not app.executed or app.status.step not in (None, STEP_EXEC):
            complain_at_once(f'stage1: app "{app.name}": {app.status.describe()}')
        if app.restarts is not None and self._plan_restart(app, app.restarts):
            return
        if self.plan.mutable:
            self._on_progress(app)
            return
        if app.number != 0:
            self._begin_shutdown(app.number)
        elif all(each.has_ended for each in self.apps.values()):
            self._begin_shutdown(0)
        else:
            self._on_progress(app)

    def _plan_restart(self, app: App, restarts: Restarts) -> bool:
        """Decide whether an app that ended will be started again, and say so."""
        has_run = app.begun or restarts.count > 0
        if app.was_asked_to_end or not has_run or app.status is None:
            return False
        ran_seconds = 0.0 if app.executed_at is None else time.monotonic() - app.executed_at
        restarts.end(failed=app.number != 0, ran_seconds=ran_seconds)
        if restarts.gave_up:
            self.journal.event("app.restarts-given-up", app=app.name, restarts=restarts.count)
            complain_at_once(
                f'stage1: app "{app.name}": {app.status.describe()}, after {restarts.in_a_row} restarts in a row'
            )
        if restarts.delay_seconds is None:
            return False
        self.journal.event(
            "app.restart-planned", app=app.name, restarts=restarts.count, delay_seconds=restarts.delay_seconds
        )
        return True

    def _stop_signal(self, app: App, status: ExitStatus) -> int | None:
        """Return the signal of which dying means that the app was stopped."""
        if self.exit_code is None and not app.is_stopped:
            return None
        # The console's end says the same as the stop signal, and may say it first.
        if app.spec.has_console and status.signal == _signal.SIGHUP:
            return status.signal
        return app.spec.stop_signal

    def _write_records(self) -> None:
        for name in sorted(self._unwritten):
            app = self.apps[name]
            assert app.status is not None and app.number is not None
            try:
                record_state(name, state_of(app))
                if not app.recorded:
                    record_exit(name, app.number)
                    app.recorded = True
            except OSError as error:
                # PID 1 lives on and tries again: the app's end must not be lost to a full disk.
                self.journal.info("status.unwritten", app=name, reason=describe(error))
                self._retry_soon()
            else:
                self._unwritten.remove(name)

    def _write_state(self, app: App) -> None:
        try:
            note_state(app.name, state_of(app))
        except OSError as error:
            # Its end is written, and tried again; until then nobody depends on it.
            self.journal.info("state.unwritten", app=app.name, reason=describe(error))

    def _retry_soon(self) -> None:
        self._retry_at = time.monotonic() + _RETRY_SECONDS

    def _begin_shutdown(self, exit_code: int) -> None:
        if self.exit_code is not None:
            return
        self.exit_code = 0 if self.plan.mutable else exit_code
        self.journal.event("pod.stopping", status=self.exit_code)
        self._tell_host({"stopping": True})
        if self.ready:
            try:
                os.unlink(paths.STAGE1_READY)
            except OSError as error:
                self.journal.info("pod.still-marked-ready", reason=describe(error))
        self.ready = False
        for app in [*self.apps.values()]:
            self._cancel_restart(app)
            app.waiting = False
            self._handle(app, lifecycle.STOP)

    def _cancel_restart(self, app: App) -> None:
        """Have an app that waits to be started again stay as it is."""
        if app.is_restarting and app.restarts is not None:
            app.restarts.cancel()
            if app.state == lifecycle.EXITED:
                app.deadline = None
                self._mark_log_end(app.name)

    def _tell_host(self, message: dict[str, object]) -> None:
        """Have the launcher tell who started the pod, if that wants to know."""
        if self.plan.tells_host:
            try:
                send_message(self._launcher, message)
            except OSError:
                pass  # it is gone

    def _terminate(self, app: App) -> None:
        self._arm_grace(app)
        # What a dead main process left behind may not know the app's own signal.
        app.group.signal(app.spec.stop_signal if app.number is None else _signal.SIGTERM, _signal.SIGCONT)

    def _arm_grace(self, app: App) -> None:
        app.deadline = time.monotonic() + app.spec.stop_grace_seconds

    def _kill_group(self, app: App) -> None:
        app.deadline = time.monotonic() + KILL_WAIT_SECONDS
        app.group.kill()
        # Between its fork and joining a group a process is not in it yet.
        if app.number is None and app.pidfd is not None:
            _kill(app.pidfd)
        if app.handler is not None:
            _kill(app.handler.pidfd)

    def _check_group(self, app: App) -> None:
        if app.handler is not None:
            return  # its end is a reason to look again
        if app.group.processes():
            self._await_group(app)
        elif app.begun and app.post_stop_due and not self._forced and app.state != lifecycle.DELETING:
            self._handle(app, lifecycle.HANDLE_STOP)
        else:
            self._handle(app, lifecycle.GROUP_EMPTY)

    def _await_group(self, app: App) -> None:
        """Have the group looked at when it is empty: the last one in it may be reaped by somebody else."""
        if app.group_events is None:
            app.group_events = app.group.open_events()
            if app.group_events is not None:
                self._sources.watch(app.group_events, lambda: self._on_group_events(app), select.EPOLLPRI)
        if app.group_events is None:
            if app.is_killed:
                app.group.kill()
            self._recheck_at = time.monotonic() + _RECHECK_SECONDS

    def _report_unkillable(self, app: App) -> None:
        processes = ", ".join(f"{pid} ({_wait_channel(pid)})" for pid in app.group.processes())
        complain_at_once(f'stage1: app "{app.name}": giving up on unkillable processes: {processes}')
        if not self.plan.mutable:
            self.exit_code = self.exit_code or EXIT_FAILURE

    def _finish(self, app: App) -> None:
        app.deadline = None
        if app.group_events is not None:
            self._sources.unwatch(app.group_events)
            os.close(app.group_events)
            app.group_events = None
        if app.post_stop_due and app.begun:
            self.journal.event("handler.skipped", app=app.name, handler=HANDLER_POST_STOP)
        if app.restarts is not None and app.restarts.delay_seconds is not None:
            app.deadline = time.monotonic() + app.restarts.delay_seconds
        self._mark_log_end(app.name)
        if app.is_removed:
            self._handle(app, lifecycle.REMOVE)

    def _release(self, app: App) -> None:
        """Forget an app that is gone."""
        if app.pidfd is not None and app.pidfd in self._sources:
            self._sources.unwatch(app.pidfd)
        if app.report is not None:
            self._sources.unwatch(app.report.fileno())
        if app.group_events is not None:
            self._sources.unwatch(app.group_events)
        if app.readiness is not None:
            for fd in app.readiness.descriptors():
                if fd in self._sources:
                    self._sources.unwatch(fd)
        for helper in app.helpers:
            if helper.socket in self._sources:
                self._sources.unwatch(helper.socket)
        app.deadline = None
        del self.apps[app.name]
        self._unwritten.discard(app.name)
        self._sidecars.discard(app.name)
        app.release()
        self.journal.info("app.removed", app=app.name)

    def _mark_log_end(self, name: str) -> None:
        """Tell who follows the app's log that it is complete, once it is."""
        app = self.apps.get(name)
        if app is None or app.state != lifecycle.EXITED or app.is_restarting or self._sidecars.read(name):
            return
        try:
            write_file(paths.log_end_marker(name), b"")
        except OSError as error:
            # They find out when the pod has ended.
            self.journal.info("log.end-unmarked", app=name, reason=describe(error))


def _wait_channel(pid: int) -> str:
    """Return where in the kernel a process waits, proc_pid_wchan(5)."""
    try:
        with open(f"/proc/{pid}/wchan", encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        return describe(error)


def _mark_started(app: str) -> None:
    path = paths.started_marker(app)
    try:
        write_file(path, b"")
    except PermissionError:
        # stage0's own, which may belong to the host's root.
        if not os.path.exists(path):
            raise


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        # stage0 removes such files in the upper directory of the overlay, behind the back of its mount.
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise


def _kill(pidfd: int) -> None:
    try:
        pidfd_send_signal(pidfd, _signal.SIGKILL)
    except ProcessLookupError:
        pass
