"""
What PID 1 does with every event, without waiting for any: signals, the reports and deaths of apps, deadlines.

Each is fed to the lifecycle table, whose actions are carried out here, or by what has a state of its own: the pod's
policy (`podpolicy`), control groups (`processes`), event handlers (`handlers`), files about apps (`apprecords`), output
(`sidecars`).

One loop gathers all sources of events. During start-up it is polled directly; afterwards trio waits for it. So the
same code runs in both phases, and no event is lost between them.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence

from minit import paths
from minit.attributes import Attributes
from minit.errors import EXIT_FAILURE
from minit.iottymux.spawner import Spawner
from minit.jsontext import dump
from minit.loop import Loop
from minit.messages import Socket, receive_message
from minit.plan.app import HANDLER_POST_STOP, HANDLER_PRE_START
from minit.plan.guards import LIMITS
from minit.plan.pod import PodPlan
from minit.process import hold_limits, read_attributes, read_limits
from minit.reaper.exit_status import STEP_EXEC, ExitStatus
from minit.reaper.reaper import BATCH, read_zombie, reap
from minit.stdio import complain_at_once
from minit.supervisor.apps import lifecycle
from minit.supervisor.apps.apphelper import AppHelper
from minit.supervisor.apps.apprecords import Records, mark_started
from minit.supervisor.apps.apprun import BEGUN, EXECUTED
from minit.supervisor.apps.handlers import Handlers
from minit.supervisor.apps.notifylistener import Listener
from minit.supervisor.apps.notifysocket import Readiness
from minit.supervisor.apps.podapp import App
from minit.supervisor.apps.podpolicy import BY_CONTROL, BY_LAUNCHER, BY_SIGNAL, Pod
from minit.supervisor.apps.processes import Groups, arm_grace, describe_processes
from minit.supervisor.apps.spawnapp import spawn_app
from minit.supervisor.journal import Journal
from minit.supervisor.output.sidecars import Sidecars
from minit.syscalls import read_signals
from minit.terminal import CallerTerminal

# SIGRTMIN+3 is the halt of systemd in a container, which managers of containers send.
HALT_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGPWR, signal.SIGRTMIN + 3)
WATCHED_SIGNALS = (signal.SIGCHLD, signal.SIGHUP, *HALT_SIGNALS)

# Making the root of an app that is added; only a volume that hangs takes so long.
BUILD_SECONDS = 60.0
_RETRY_SECONDS = 1.0
# As most systems have it.
_OPEN_FILES = (1024, 4096)
_DRAIN_STALL_SECONDS = 5.0


class Supervisor:
    """
    The loop of PID 1 around the apps of a pod.

    `attributes` are those of apps that are added, PID 1's if nobody has a record. `observers` are called when anything
    about an app has changed.
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
        attributes: Attributes | None = None,
        terminal: CallerTerminal | None = None,
        console: int | None = None,
    ) -> None:
        self.plan = plan
        self.journal = journal
        self.control = control
        self.attributes = attributes or read_attributes(_OPEN_FILES)
        # From before an app could change them, and whether any can.
        self._limits = read_limits()
        self._is_exposed = any(LIMITS not in app.spec.guards for app in apps)
        self.observers: list[Callable[[App], None]] = []
        self._launcher = launcher
        self._terminal = terminal
        self._console = console
        self._signals = signals
        self._loop = Loop(begin=self._hold_limits)
        self._sidecars = Sidecars(
            self._loop, journal, self._on_end_of_output, self._on_lost_output, plan.sidecar_filter
        )
        self._groups = Groups(self._loop, self._check_groups)
        self._records = Records(journal, self._retry_soon)
        self._handlers = Handlers(journal, self._records, self._sidecars, self._handle)
        self._listeners: dict[str, Listener] = {}
        self._pod = Pod(plan, apps, launcher, journal, self._handle, self._mark_log_end)
        self.apps = self._pod.apps
        self._retry_at: float | None = None
        self._reap_again = False
        # Of the monotonic clock.
        self._announced: float | None = None
        self._actions: dict[str, Callable[[App], None]] = {
            lifecycle.FORK: self._fork,
            lifecycle.RUN_PRE_START: self._run_pre_start,
            lifecycle.EXECUTE: self._execute,
            lifecycle.RECORD: self._record,
            lifecycle.TERMINATE: self._groups.terminate,
            lifecycle.KILL_GROUP: self._groups.kill,
            lifecycle.CLEAR_GROUP: self._groups.clear,
            lifecycle.FAIL_START: self._fail_start,
            lifecycle.CHECK_GROUP: self._check_group,
            lifecycle.RUN_POST_STOP: self._run_post_stop,
            lifecycle.ARM_GRACE: arm_grace,
            lifecycle.REPORT_UNKILLABLE: self._report_unkillable,
            lifecycle.FINISH: self._finish,
            lifecycle.RELEASE: self._release,
        }
        self._loop.watch(signals, lambda _: self._on_signals())
        self._loop.watch(launcher.fileno(), lambda _: self._on_launcher())

    @property
    def event_fd(self) -> int:
        """The descriptor that is readable when `turn` has something to do."""
        return self._loop.fileno()

    @property
    def finished(self) -> bool:
        """Whether nothing of any app is left, once the pod is to end if apps may be started by request."""
        return self._pod.finished

    @property
    def starting(self) -> bool:
        """Whether some app is being prepared or executed; one whose pre-start handler runs may take for ever."""
        return self._pod.starting

    @property
    def exit_code(self) -> int | None:
        """The pod's exit code, None before it begins to end."""
        return self._pod.exit_code

    @property
    def ready(self) -> bool:
        """Whether the pod is ready."""
        return self._pod.ready

    def next_deadline(self) -> float | None:
        """Return the monotonic time at which `turn` is due without an event, None if there is none."""
        deadlines = [app.run.deadline for app in self.apps.values() if app.run.deadline is not None]
        others = self._retry_at, self._handlers.retry_at, self._groups.recheck_at, self._sidecars.renew_at
        deadlines += [moment for moment in others if moment is not None]
        return time.monotonic() if self._reap_again else min(deadlines, default=None)

    def turn(self, timeout_seconds: float = 0.0) -> None:
        """Handle the events at hand and the deadlines that passed, waiting at most so long for the first."""
        deadline = self.next_deadline()
        if deadline is not None:
            timeout_seconds = max(0.0, min(timeout_seconds, deadline - time.monotonic()))
        self._loop.turn(timeout_seconds)
        if self._reap_again:
            self._reap()
        now = time.monotonic()
        for app in [*self.apps.values()]:
            if app.run.deadline is not None and app.run.deadline <= now:
                # Before its end is over the deadline is that of what it left behind.
                is_restart = app.restart_at is not None
                app.run.deadline = None
                if is_restart:
                    self.start_again(app)
                    continue
                killed = app.is_killed
                self._handle(app, lifecycle.KILL_WAIT_OVER if killed else lifecycle.GRACE_OVER)
        if self._retry_at is not None and self._retry_at <= now:
            self._retry_at = None
            self._records.write_ends()
            for listener in self._listeners.values():
                listener.resume()
        if self._sidecars.renew_at is not None and self._sidecars.renew_at <= now:
            self._sidecars.renew()
        if self._handlers.retry_at is not None and self._handlers.retry_at <= now:
            self._handlers.run_put_off(self.apps.values())
        if self._groups.recheck_at is not None and self._groups.recheck_at <= now:
            self._groups.recheck_at = None
            self._check_groups()
        self._announce_end()

    def start(self, spawner: Spawner | None) -> None:
        """
        Watch every forked app prepare itself, and have its output wait for a sidecar.

        The spawner is None if there is no output.
        """
        self._sidecars.spawner = spawner
        for app in self.apps.values():
            self._watch(app)
            if app.run.streams.need_sidecar:
                self._sidecars.expect(app.run.streams)
        if self.plan.mutable:
            # Ready to have apps added, whatever becomes of those it begins with.
            self._pod.mark_ready()

    def start_sidecars(self) -> None:
        """Give the apps that the pod began with their sidecars, if they have none yet."""
        self._sidecars.start_all()

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
        self._is_exposed |= LIMITS not in app.spec.guards
        app.run.deadline = time.monotonic() + BUILD_SECONDS
        self._watch(app)
        for helper in app.helpers:
            self._watch_helper(app, helper)
        self._notify(app)

    def stop_app(self, app: App) -> None:
        """Begin to stop an app, while the pod goes on."""
        app.run.is_stopped = True
        self._pod.cancel_restart(app)
        self._handle(app, lifecycle.STOP)

    def note_health(self, app: App) -> None:
        """Look again whether an app is ready, of which a check knows something new."""
        self._pod.on_progress(app)

    def end_unhealthy(self, app: App, check: str, reason: str, *, with_pod: bool) -> None:
        """Begin to end an app that runs and does not work: it has failed, and so has the pod if that ends with it."""
        app.run.is_unhealthy = True
        app.run.failure = ExitStatus(step=check, path=reason)
        self._handle(app, lifecycle.STOP)
        if with_pod:
            self._pod.begin_shutdown(EXIT_FAILURE)

    def remove(self, app: App) -> None:
        """Begin to remove an app, which is stopped first."""
        app.is_removed = True
        self._pod.cancel_restart(app)
        if app.state in (lifecycle.BUILDING, *lifecycle.RESTING):
            self._handle(app, lifecycle.REMOVE)
        else:
            self.stop_app(app)

    def request_stop(self, source: str = BY_CONTROL, detail: str = "", *, force: bool = False) -> None:
        """Begin the shutdown of the pod; with `force`, or the second time, no app gets time to end by itself."""
        self._announced = None
        self._pod.request_stop(source, detail, force=force)
        # Before anybody is answered: who hears that the pod will stop can rely on it.
        self._announce_end()

    def reopen_logs(self, app: str | None = None) -> None:
        """Have log files that a program of the host moved no longer written to: those of all apps, or of one."""
        self._sidecars.reopen_logs(app)

    def hold_limits(self) -> bool:
        """
        Undo what an app that is root has done to the limits of PID 1, which could write or open nothing then.

        Returns whether there was something that could be undone: a hard limit takes CAP_SYS_RESOURCE.
        """
        has_changed = hold_limits(self._limits)
        if has_changed:
            self.journal.info("limits.restored")
        return has_changed

    def _hold_limits(self) -> None:
        if self._is_exposed:
            self.hold_limits()

    def drain(self) -> None:
        """
        Wait until every sidecar has written what its process left, or none makes progress any more.

        A pod of which output is lost has failed, unless its apps may lose some.
        """
        self._wait_for_sidecars()
        self._sidecars.lose_rest()
        for app in self.apps.values():
            if app.lost_bytes:
                complain_at_once(f'stage1: app "{app.name}": {app.lost_bytes} bytes of output were lost')
                if app.spec.lost_output_fails:
                    self._pod.exit_code = self._pod.exit_code or EXIT_FAILURE

    def _wait_for_sidecars(self) -> None:
        self._sidecars.renew(at_once=True)
        progress, stalled_at = (-1, -1), 0.0
        while not self._sidecars.all_ended:
            pending = self._sidecars.unread_bytes()
            now = time.monotonic()
            if (pending, self._sidecars.flushes()) != progress:
                progress, stalled_at = (pending, self._sidecars.flushes()), now + _DRAIN_STALL_SECONDS
                self._tell_launcher(_DRAIN_STALL_SECONDS)
            elif now >= stalled_at:
                self.journal.info("pod.drain-stalled", unread_bytes=pending)
                return
            self.turn(0.25)

    def write_last_records(self) -> None:
        """Try once more to write the statuses that could not be written, and say which are lost if that fails."""
        self._records.write_last_ends()

    # Sources.

    def admits(self, pid: int, uid: int) -> bool:
        """Return whether a process may ask on the control socket: one that PID 1 cannot see, with pid 0 here."""
        return pid == 0

    def carries_out(self, op: str) -> bool:
        """Return whether single apps may be worked with by such a request."""
        return self.plan.mutable

    def _on_signals(self) -> None:
        self._handle_signals(read_signals(self._signals))

    def _handle_signals(self, numbers: Sequence[int]) -> None:
        halts = [str(number) for number in numbers if number in HALT_SIGNALS]
        # Before the dead are looked at: whoever signals every process of the pod is asking for a stop.
        if halts:
            self.request_stop(BY_SIGNAL, " ".join(halts))
        if signal.SIGHUP in numbers:
            self.reopen_logs()
        if signal.SIGCHLD in numbers:
            self._reap()

    def _on_launcher(self) -> None:
        message, _ = receive_message(self._launcher)
        self._announced = None
        if message is None:
            self._on_launcher_end()
        elif message["stop"] == signal.SIGHUP:
            self._pod.stop_unasked("the launcher was hung up")
        else:
            self.request_stop(BY_LAUNCHER, f"signal {message['stop']}")

    def _on_launcher_end(self) -> None:
        """Act on the end of the launcher, or of the caller's terminal."""
        self._loop.unwatch(self._launcher.fileno())
        if self._terminal is not None:
            # Killed, the launcher could not do it.
            self._terminal.restore()
        self._pod.stop_unasked("the launcher is gone")
        if self._console is not None:
            # Not before: an app that dies of the hang-up has been stopped, and has not failed.
            os.close(self._console)
            self._console = None

    def _announce_end(self) -> None:
        """Tell the launcher, which kills a PID 1 that hangs, until when an app may make a pod wait that is to end."""
        if self.exit_code is None:
            return
        due = max((app.run.deadline for app in self.apps.values() if app.run.deadline is not None), default=0.0)
        if due != self._announced:
            self._announced = due
            self._tell_launcher(max(0.0, due - time.monotonic()))

    def _tell_launcher(self, seconds: float) -> None:
        try:
            # A launcher that is stopped must not hold up the pod.
            self._launcher.send(dump({"seconds": seconds}), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError:
            pass  # nor one that is gone

    def _on_report(self, app: App) -> None:
        assert app.run.report is not None
        message, descriptors = receive_message(app.run.report)
        if message is not None and "prepared" in message:
            if descriptors:
                [app.namespace] = descriptors
            notes = message["prepared"]
            assert isinstance(notes, list)
            for note in notes:
                complain_at_once(f'stage1: warning: app "{app.name}": {note}')
            self._handle(app, lifecycle.READY_TO_EXEC)
            if app.state == lifecycle.PREPARED:
                self._pod.on_prepared(app)
            return
        if message is not None:
            step, number, path = message["step"], message.get("errno"), message.get("path")
            assert isinstance(step, str) and (number is None or isinstance(number, int))
            assert path is None or isinstance(path, str)
            app.run.failure = ExitStatus(step=step, errno=number, path=path)
        # End of file: either the exec closed the socket, or the process is about to be reaped.
        self._loop.unwatch(app.run.report.fileno())
        app.run.report.close()
        app.run.report = None
        if app.run.has_executed:
            app.run.started_ns = time.time_ns()
            if self.plan.mutable:
                self._records.note_state(app)
        self._notify(app)
        if not self.starting:
            # Before, they would take processors from apps that are being started; a pod that is ready has them.
            self.start_sidecars()
        self._pod.on_progress(app)

    def _reap(self) -> None:
        by_pid = {app.run.pid: app for app in self.apps.values() if app.run.end is None and app.run.pid is not None}
        by_handler = {app.run.handler.pid: app for app in self.apps.values() if app.run.handler is not None}
        spawner = self._sidecars.spawner
        dead, count = reap({*by_pid, *by_handler, *(() if spawner is None else (spawner.pid,))})
        self._reap_again = count == BATCH
        for pid, status in dead:
            if pid in by_pid:
                self._on_death(by_pid[pid], status)
            elif pid in by_handler:
                self._handlers.on_end(by_handler[pid], status)
            else:
                self._sidecars.on_death(pid, status)
        if count:
            self._check_groups()

    def _on_main_end(self, app: App) -> None:
        pid = app.run.pid
        self._reap()
        if app.run.pid == pid and app.run.pidfd in self._loop:
            # Only its tracer, on the host perhaps, can reap it. Its end counts all the same.
            assert pid is not None
            self._on_death(app, read_zombie(pid))

    def _on_death(self, app: App, status: ExitStatus) -> None:
        assert app.run.pidfd is not None
        was_born_there = app.namespace is not None and app.group.birthplace is not None
        app.group.note_death(status.signal)
        self._loop.unwatch(app.run.pidfd)
        while app.run.report is not None:
            self._on_report(app)
        if app.state in (lifecycle.BUILDING, lifecycle.ABANDONED):
            self._on_built(app, status)
            return
        if was_born_there and app.group.birthplace is None and app.state == lifecycle.PREPARING and not app.run.failure:
            # Not the app's doing: somebody on the host has killed the group while it was empty.
            app.starts -= 1
            self._spawn_again(app)
            return
        if app.name in self._listeners:
            self._listeners[app.name].hear_last_words()
        app.run.reaped = status
        self._handle(app, lifecycle.DIED)

    def _on_built(self, app: App, status: ExitStatus) -> None:
        """Act on the end of the process that made the root of an app."""
        if app.state == lifecycle.BUILDING:
            app.run.deadline = None
        else:
            app.run.failure = ExitStatus(step="build the root", path="given up")
        if app.run.failure is None and (status.code != 0 or app.namespace is None):
            app.run.failure = ExitStatus(step="build the root", path=status.describe())
        if app.run.failure is None:
            app.begin_again()
            self._records.note_state(app)
            self._handle(app, lifecycle.BUILT)
        else:
            self._handle(app, lifecycle.BUILD_FAILED)

    def _check_groups(self) -> None:
        for app in [*self.apps.values()]:
            if app.state in (lifecycle.CLEARING, lifecycle.LINGERING, lifecycle.REMNANTS, lifecycle.DELETING):
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
        assert app.run.report is not None and app.run.pidfd is not None
        self._loop.watch(app.run.report.fileno(), lambda _: self._on_report(app))
        self._loop.watch(app.run.pidfd, lambda _: self._on_main_end(app))
        if app.readiness is not None:
            self._listen_to(app, app.readiness)

    def _listen_to(self, app: App, readiness: Readiness) -> None:
        """Hear what the present process of an app says of itself."""
        if app.name not in self._listeners:
            self._listeners[app.name] = Listener(
                app, readiness, self._loop, self.journal, self._retry_soon, self._pod.on_progress
            )
        self._listeners[app.name].listen()

    def _watch_helper(self, app: App, helper: AppHelper) -> None:
        def on_word(_: int) -> None:
            if not helper.read():
                self._loop.unwatch(helper.socket)
                self.journal.event("app.helper-died", app=app.name, helper=helper.kind)

        self._loop.watch(helper.socket, on_word)

    def _fork(self, app: App) -> None:
        """Start an app again."""
        self._records.forget_end(app)
        if app.restarts is not None:
            app.restarts.begin()
        self._spawn_again(app)

    def _spawn_again(self, app: App) -> None:
        app.begin_again()
        app.run.oom_kills = app.group.oom_kills()
        try:
            # The markers of its last end must be gone before it can end once more.
            self._records.remove_end(app)
            spawn_app(app)
        except OSError as error:
            app.run.failure = ExitStatus(step="fork", errno=error.errno)
            self._handle(app, lifecycle.FORK_FAILED)
            return
        self.journal.event("app.started-again", app=app.name, starts=app.starts)
        self._watch(app)
        if app.run.streams.need_sidecar:
            self._sidecars.start(app.run.streams)

    def _execute(self, app: App) -> None:
        if app.run.report is None:
            return  # it failed after preparing itself, and is about to be reaped
        if self._pod.is_marked_at_exec(app):
            try:
                mark_started(app)
            except OSError as error:
                app.run.failure = ExitStatus(
                    step="mark as started", errno=error.errno, path=paths.started_marker(app.name)
                )
                self._handle(app, lifecycle.KILL)
                return
        app.run.reached = EXECUTED
        app.run.executed_at = time.monotonic()
        self._sidecars.start_soon(app.run.streams)
        try:
            app.run.report.send(b"go")
        except (BrokenPipeError, ConnectionResetError):
            pass  # it died after preparing itself, and is about to be reaped

    def _run_pre_start(self, app: App) -> None:
        app.run.reached = BEGUN
        self._handlers.run(app)

    def _run_post_stop(self, app: App) -> None:
        app.run.deadline = None
        if self.exit_code is not None or app.run.is_stopped:
            arm_grace(app)
        self._handlers.run(app)

    def _record(self, app: App) -> None:
        run, status = app.run, app.run.status
        assert status is not None
        is_oom_killed = status.signal == signal.SIGKILL and app.group.oom_kills() > run.oom_kills
        run.end = end = self._pod.judge(app, status, is_oom_killed=is_oom_killed)
        if end.status is None:
            return
        text = end.status.describe()
        self.journal.event("app.exited", app=app.name, status=end.number, end=text, reason=end.reason)
        self._records.write_end(app)
        if run.reached < EXECUTED or end.status.step not in (None, STEP_EXEC):
            complain_at_once(f'stage1: app "{app.name}": {text}')
        self._pod.on_end(app)

    def _retry_soon(self) -> None:
        self._retry_at = time.monotonic() + _RETRY_SECONDS

    def _check_group(self, app: App) -> None:
        if app.run.handler is not None:
            return  # its end is a reason to look again
        if app.state == lifecycle.CLEARING:
            if self._groups.is_clear(app):
                app.run.deadline = None
                self._handle(app, lifecycle.GROUP_CLEAR)
            return
        if not self._groups.is_empty(app):
            return  # so is that
        if app.run.post_stop_due and not self._pod.forced and app.state != lifecycle.DELETING:
            self._handle(app, lifecycle.HANDLE_STOP)
        else:
            self._handle(app, lifecycle.GROUP_EMPTY)

    def _fail_start(self, app: App) -> None:
        left = describe_processes(app, but=app.run.pid)
        app.run.failure = ExitStatus(step=HANDLER_PRE_START, path=f"unkillable processes that it left: {left}")

    def _report_unkillable(self, app: App) -> None:
        complain_at_once(f'stage1: app "{app.name}": giving up on unkillable processes: {describe_processes(app)}')
        if not (self.plan.mutable or app.run.is_stopped):
            self._pod.exit_code = self._pod.exit_code or EXIT_FAILURE

    def _finish(self, app: App) -> None:
        app.run.deadline = None
        self._groups.forget(app)
        if app.run.post_stop_due:
            self.journal.event("handler.skipped", app=app.name, handler=HANDLER_POST_STOP)
        if app.restarts is not None and app.restarts.delay_seconds is not None:
            app.run.deadline = time.monotonic() + app.restarts.delay_seconds
        self._mark_log_end(app.name)
        if app.is_removed:
            self._handle(app, lifecycle.REMOVE)

    def _release(self, app: App) -> None:
        """Forget an app that is gone."""
        if app.run.pidfd is not None:
            self._loop.unwatch(app.run.pidfd)
        if app.run.report is not None:
            self._loop.unwatch(app.run.report.fileno())
        self._groups.forget(app)
        if app.name in self._listeners:
            self._listeners.pop(app.name).stop()
        for helper in app.helpers:
            self._loop.unwatch(helper.socket)
        app.run.deadline = None
        del self.apps[app.name]
        self._records.forget_end(app)
        self._sidecars.discard(app.name)
        app.release()
        self.journal.info("app.removed", app=app.name)

    def _on_lost_output(self, name: str, size_bytes: int) -> None:
        app = self.apps.get(name)
        if app is None:
            return
        is_first = app.lost_bytes is None
        app.lost_bytes = (app.lost_bytes or 0) + size_bytes
        if is_first and not self._pod.finished:
            complain_at_once(f'stage1: app "{name}": output is lost, as nobody can read it any more')
            self._note_lost_output(app)

    def _on_end_of_output(self, name: str) -> None:
        app = self.apps.get(name)
        if app is not None and app.lost_bytes:
            self._note_lost_output(app)
        self._mark_log_end(name)

    def _note_lost_output(self, app: App) -> None:
        if app.run.end is None or app.run.end.status is None:
            self._records.note_state(app)
        else:
            self._records.write_end(app)

    def _mark_log_end(self, name: str) -> None:
        """Tell who follows the app's log that it is complete, once it is."""
        app = self.apps.get(name)
        if app is None or app.state != lifecycle.EXITED or app.is_restarting or self._sidecars.read(name):
            return
        self._records.mark_log_end(app)
