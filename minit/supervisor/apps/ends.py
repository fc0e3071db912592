"""Ends of apps: the death of a process, the emptying of its group, the record of both, and the release of an app."""

from __future__ import annotations

import signal
import time

from minit.linux.loop import Loop
from minit.linux.stdio import complain_at_once
from minit.plan.appplan import HANDLER_POST_STOP
from minit.plan.podplan import PodPlan
from minit.podfiles.paths import PodEvent
from minit.reaper.exit_status import STEP_EXEC, ExitStatus
from minit.supervisor.apps.apprecords import Records
from minit.supervisor.apps.apprun import EXECUTED
from minit.supervisor.apps.handlers import Handlers
from minit.supervisor.apps.lifecycle import Action, Event, State
from minit.supervisor.apps.lives import Lives
from minit.supervisor.apps.notifylistener import Listeners
from minit.supervisor.apps.outputs import Outputs
from minit.supervisor.apps.podapp import App
from minit.supervisor.apps.podpolicy import PodPolicy
from minit.supervisor.apps.processes import Processes, arm_grace, describe_processes
from minit.supervisor.apps.starts import Starts
from minit.supervisor.journal import Journal


class Ends:
    """The ends of a pod's apps."""

    def __init__(
        self,
        plan: PodPlan,
        pod: PodPolicy,
        lives: Lives,
        loop: Loop,
        journal: Journal,
        *,
        handlers: Handlers,
        listeners: Listeners,
        records: Records,
        outputs: Outputs,
        starts: Starts,
    ) -> None:
        self._plan = plan
        self._pod = pod
        self._lives = lives
        self._loop = loop
        self._journal = journal
        self._handlers = handlers
        self._listeners = listeners
        self._records = records
        self._outputs = outputs
        self._starts = starts
        self._processes = Processes(loop, self.check_groups)
        lives.actions |= {
            Action.RECORD: self._record,
            Action.RUN_PRE_STOP: self._run_pre_stop,
            Action.END_HOOK: handlers.end_late,
            Action.TERMINATE: self._processes.terminate,
            Action.KILL_GROUP: self._processes.kill,
            Action.CLEAR_GROUP: self._processes.clear,
            Action.CHECK_GROUP: self._check_group,
            Action.RUN_POST_STOP: self._run_post_stop,
            Action.ARM_GRACE: arm_grace,
            Action.REPORT_UNKILLABLE: self._report_unkillable,
            Action.FINISH: self._finish,
            Action.RELEASE: self._release,
        }

    def on_death(self, app: App, status: ExitStatus) -> None:
        """Act on the end of the process of an app."""
        run = app.run
        assert run.pidfd is not None
        was_born_there = app.namespace is not None and app.group.birthplace is not None
        app.group.note_death(status.signal)
        self._loop.unwatch(run.pidfd)
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
        self._listeners.hear_last_words(app)
        self._lives.handle(app, Event.DIED)

    def check_groups(self) -> None:
        """Look whether any group that has to become empty is so."""
        for app in [*self._pod.apps.values()]:
            if app.state in (State.CLEARING, State.LINGERING, State.REMNANTS, State.DELETING):
                self._check_group(app)

    def _check_group(self, app: App) -> None:
        if app.run.handler is not None:
            return  # its end is a reason to look again
        if app.state == State.CLEARING:
            if self._processes.is_clear(app):
                app.run.deadline = None
                self._lives.handle(app, Event.GROUP_CLEAR)
            return
        if not self._processes.is_empty(app):
            return  # so is that
        if app.run.post_stop_due and not self._pod.forced and app.state != State.DELETING:
            self._lives.handle(app, Event.HANDLE_STOP)
        else:
            self._lives.handle(app, Event.GROUP_EMPTY)

    def _record(self, app: App) -> None:
        run, status = app.run, app.run.status
        assert status is not None
        oom_kills = app.oom_kills
        run.end = end = self._pod.judge(app, status, had_oom_kill=oom_kills > 0)
        if end.status is None:
            return
        if run.last is not None and end is run.last.end:
            run.started_ns, app.starts = run.last.started_ns, app.starts - 1
            self._journal.event(PodEvent.APP_RESTART_CANCELLED, app=app.name)
            self._records.write_end(app)
            self._pod.on_end(app)
            return
        text = end.status.describe()
        self._journal.event(PodEvent.APP_EXITED, app=app.name, status=end.number, end=text, reason=end.reason)
        self._records.write_end(app)
        if run.reached < EXECUTED or end.status.step not in (None, STEP_EXEC):
            complain_at_once(f'stage1: app "{app.name}": {text}')
        if oom_kills > 0 and end.number:
            words = app.describe_oom_kills(is_main=end.status.signal == signal.SIGKILL)
            complain_at_once(f'stage1: app "{app.name}": {words}')
        # Those of its post-stop handler count from here on.
        run.oom_kills += oom_kills
        self._pod.on_end(app)

    def _run_pre_stop(self, app: App) -> None:
        arm_grace(app)
        app.run.grace_ends_at = app.run.deadline
        self._handlers.run(app)

    def _run_post_stop(self, app: App) -> None:
        app.run.deadline = None
        if self._pod.exit_code is not None or app.run.is_stopped:
            arm_grace(app)
        self._handlers.run(app)

    def _report_unkillable(self, app: App) -> None:
        complain_at_once(f'stage1: app "{app.name}": giving up on unkillable processes: {describe_processes(app)}')
        if not (self._plan.mutable or app.run.is_stopped):
            self._pod.fail()

    def _finish(self, app: App) -> None:
        app.run.deadline = None
        self._processes.forget(app)
        if app.run.post_stop_due:
            self._journal.event(PodEvent.HANDLER_SKIPPED, app=app.name, handler=HANDLER_POST_STOP)
        if app.restarts is not None and app.restarts.delay_seconds is not None:
            app.run.deadline = time.monotonic() + app.restarts.delay_seconds
        self._outputs.mark_log_end(app.name)
        if app.is_removed:
            self._lives.handle(app, Event.REMOVE)

    def _release(self, app: App) -> None:
        """Forget an app that is gone."""
        if app.run.pidfd is not None:
            self._loop.unwatch(app.run.pidfd)
        if app.run.report is not None:
            self._loop.unwatch(app.run.report.fileno())
        self._processes.forget(app)
        self._listeners.stop(app)
        for helper in app.helpers:
            self._loop.unwatch(helper.socket)
        app.run.deadline = None
        del self._pod.apps[app.name]
        self._records.forget_end(app)
        self._outputs.sidecars.discard(app.name)
        app.release()
        self._journal.info("app.removed", app=app.name)
