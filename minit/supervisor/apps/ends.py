"""Ends of apps: the death of a process, the emptying of its group, the record of both, and the release of an app."""

from __future__ import annotations

import signal
import time

from minit.base.errors import EXIT_FAILURE
from minit.linux.stdio import complain_at_once
from minit.plan.process import HANDLER_POST_STOP
from minit.podfiles.paths import PodEvent
from minit.reaper.exit_status import STEP_EXEC, ExitStatus
from minit.supervisor.apps.apprun import BEGUN, EXECUTED, End
from minit.supervisor.apps.backoff import Restarts
from minit.supervisor.apps.context import Context
from minit.supervisor.apps.handlers import Handlers
from minit.supervisor.apps.lifecycle import Event, State
from minit.supervisor.apps.podapp import App
from minit.supervisor.apps.podpolicy import PodPolicy
from minit.supervisor.apps.processes import Processes, arm_grace, describe_processes
from minit.supervisor.apps.starts import Starts


class Ends:
    """The ends of a pod's apps."""

    def __init__(self, context: Context, handlers: Handlers, starts: Starts) -> None:
        self._context = context
        self._pod = context.pod
        self._journal = context.journal
        self._handlers = handlers
        self._starts = starts
        self.processes = Processes(context.loop, self.check_groups)

    def on_death(self, app: App, status: ExitStatus) -> None:
        """Act on the end of the process of an app."""
        run = app.run
        assert run.pidfd is not None
        was_born_there = app.namespace is not None and app.group.birthplace is not None
        app.group.note_death(status.signal)
        self._context.loop.unwatch(run.pidfd)
        run.reaped = status
        while run.report is not None:
            self._starts.hear(app)
        if app.state in (State.BUILDING, State.ABANDONED):
            self._starts.on_built(app, status)
            return
        if was_born_there and app.group.birthplace is None and app.state == State.PREPARING and not run.failure:
            # Not the app's doing: somebody on the host has killed the group while it was empty.
            app.starts -= 1
            self._starts.spawn_again(app)
            return
        self._context.listeners.hear_last_words(app)
        self._context.handle(app, Event.DIED)

    def check_groups(self) -> None:
        """Look whether any group that has to become empty is so."""
        for app in [*self._context.apps.values()]:
            if app.state in (State.CLEARING, State.LINGERING, State.REMNANTS, State.DELETING):
                self.check_group(app)

    def check_group(self, app: App) -> None:
        """Look whether the group of an app that has to become empty, or clear, is so."""
        if app.run.handler is not None:
            return  # its end is a reason to look again
        if app.state == State.CLEARING:
            if self.processes.is_clear(app):
                app.run.deadline = None
                self._context.handle(app, Event.GROUP_CLEAR)
            return
        if not self.processes.is_empty(app):
            return  # so is that
        if app.run.post_stop_due and not self._pod.forced and app.state != State.DELETING:
            self._context.handle(app, Event.HANDLE_STOP)
        else:
            self._context.handle(app, Event.GROUP_EMPTY)

    def record(self, app: App) -> None:
        """Judge the end of an app, record the end, and have the pod act on the end."""
        run, status = app.run, app.run.status
        assert status is not None
        oom_kills = app.oom_kills
        is_judged = run.end is not None
        if run.end is None:
            self._pod.order.forget(app)
        run.end = end = run.end or judge(self._pod, app, status, had_oom_kill=oom_kills > 0)
        if end.status is None:
            return
        if run.last is not None and end == run.last.end:
            if not is_judged:
                run.started_ns, app.starts = run.last.started_ns, app.starts - 1
            self._journal.event(PodEvent.APP_RESTART_CANCELLED, app=app.name)
            self._context.records.write_end(app)
            self._follow(app)
            return
        text = end.status.describe()
        self._journal.event(PodEvent.APP_EXITED, app=app.name, status=end.number, end=text, reason=end.reason)
        self._context.records.write_end(app)
        if run.reached < EXECUTED or end.status.step not in (None, STEP_EXEC):
            complain_at_once(f'stage1: app "{app.name}": {text}')
        if oom_kills > 0 and end.number:
            words = app.describe_oom_kills(is_main=end.status.signal == signal.SIGKILL)
            complain_at_once(f'stage1: app "{app.name}": {words}')
        # Those of its post-stop handler count from here on.
        run.oom_kills += oom_kills
        self._follow(app)

    def _follow(self, app: App) -> None:
        """Have an app that ended restarted, or the pod end with it, or the others go on."""
        end = app.run.end
        assert end is not None
        if app.restarts is not None and self._plan_restart(app, end, app.restarts):
            return
        if self._context.traits.mutable or app.run.is_stopped:
            self._pod.on_progress(app)
        elif end.number:
            self._pod.fail_with(app, end.describe(), end.number)
        elif all(each.has_ended and not each.run.is_stopped for each in self._awaited()):
            self._pod.begin_shutdown(0)
        else:
            self._pod.on_progress(app)

    def _awaited(self) -> list[App]:
        """Return the apps for whose sake the pod goes on: all, unless some are sidecars of others."""
        apps = [*self._context.apps.values()]
        return [app for app in apps if not app.spec.life.is_sidecar] or apps

    def _plan_restart(self, app: App, end: End, restarts: Restarts) -> bool:
        """Decide whether an app that ended will be started again, and say so."""
        has_run = app.run.reached >= BEGUN or restarts.count > 0
        if self._pod.is_asked_to_end(app) or not has_run or end.status is None:
            return False
        ran_seconds = 0.0 if app.run.executed_at is None else time.monotonic() - app.run.executed_at
        restarts.end(failed=end.number != 0, ran_seconds=ran_seconds)
        if restarts.gave_up:
            self._journal.event(PodEvent.APP_RESTARTS_GIVEN_UP, app=app.name, restarts=restarts.count)
            complain_at_once(
                f'stage1: app "{app.name}": {end.status.describe()}, after {restarts.in_a_row} restarts in a row'
            )
        if restarts.delay_seconds is None:
            return False
        self._journal.event(
            PodEvent.APP_RESTART_PLANNED, app=app.name, restarts=restarts.count, delay_seconds=restarts.delay_seconds
        )
        return True

    def run_pre_stop(self, app: App) -> None:
        """Run the pre-stop hook within the grace period of the app."""
        arm_grace(app)
        app.run.grace_ends_at = app.run.deadline
        self._handlers.run(app)

    def run_post_stop(self, app: App) -> None:
        """Run the post-stop handler, with a deadline if the app or the pod is being stopped."""
        app.run.deadline = None
        if self._pod.exit_code is not None or app.run.is_stopped:
            arm_grace(app)
        self._handlers.run(app)

    def report_unkillable(self, app: App) -> None:
        """Say which processes of an app cannot be killed; the pod has failed with them, unless apps come and go."""
        complain_at_once(f'stage1: app "{app.name}": giving up on unkillable processes: {describe_processes(app)}')
        if not (self._context.traits.mutable or app.run.is_stopped):
            self._pod.fail()

    def finish(self, app: App) -> None:
        """End a run of which nothing is left."""
        app.run.deadline = None
        self.processes.forget(app)
        app.group.end()
        if app.run.post_stop_due:
            self._journal.event(PodEvent.HANDLER_SKIPPED, app=app.name, handler=HANDLER_POST_STOP)
        if app.restarts is not None and app.restarts.delay_seconds is not None:
            app.run.deadline = time.monotonic() + app.restarts.delay_seconds
        self._context.outputs.mark_log_end(app)
        if app.is_removed:
            self._context.handle(app, Event.REMOVE)

    def release(self, app: App) -> None:
        """Forget an app that is gone."""
        if app.run.pidfd is not None:
            self._context.loop.unwatch(app.run.pidfd)
        if app.run.report is not None:
            self._context.loop.unwatch(app.run.report.fileno())
        self.processes.forget(app)
        self._context.listeners.stop(app)
        for helper in app.helpers:
            self._context.loop.unwatch(helper.link.fileno())
        app.run.deadline = None
        self._context.records.forget_end(app)
        self._context.sidecars.discard(app.name)
        del self._context.apps[app.name]
        app.release()
        self._journal.info("app.removed", app=app.name)


def judge(pod: PodPolicy, app: App, status: ExitStatus, *, had_oom_kill: bool) -> End:
    """
    Return what the end of a start means: a number, and a status unless its turn to be executed had not come.

    A restart that is given up before its turn is none: the end before it counts. `had_oom_kill` tells that a process of
    the app was killed for lack of memory, be it not the main one.
    """
    run, now = app.run, time.time_ns()
    if not run.is_executed and run.failure is None and run.last is not None and pod.is_asked_to_end(app):
        return run.last.end
    if not run.is_executed and run.failure is None and run.is_stopped:
        status = ExitStatus(step="start", path="stopped before it was executed")
    elif not run.is_executed and run.failure is None and pod.exit_code is not None:
        # None is invented.
        return End(number=EXIT_FAILURE, ns=now)
    number = status.number(_stop_signal(app, status) if pod.is_asked_to_end(app) else None)
    if run.is_unhealthy:
        reason = "unhealthy"
    elif status.step is not None:
        reason = "exec failed" if status.step == STEP_EXEC else "start failed"
    elif had_oom_kill and number:
        # Whatever the main process makes of the end of a child: that is the cause.
        reason = "oom-killed"
    elif pod.is_asked_to_end(app):
        reason = "stopped"
    else:
        reason = "exited" if status.signal is None else "signalled"
    return End(number=number, ns=now, status=status, reason=reason)


def _stop_signal(app: App, status: ExitStatus) -> int:
    """Return the signal of which dying means that the app was stopped."""
    # The console's end says the same as the stop signal, and may say it first.
    if app.spec.streams.has_console and status.signal == signal.SIGHUP:
        return status.signal
    return app.spec.life.stop_signal
