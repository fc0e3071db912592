"""The policy of a pod about its apps: readiness, stops and restarts, and the end of all after the end of one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from minit.base.errors import EXIT_FAILURE, describe
from minit.linux.messages import Socket, send_message
from minit.plan.podplan import PodPlan
from minit.podfiles import paths
from minit.podfiles.paths import PodEvent
from minit.reaper.exit_status import ExitStatus
from minit.supervisor.apps.apprun import READY
from minit.supervisor.apps.lifecycle import RESTING, Event, State
from minit.supervisor.apps.podapp import App
from minit.supervisor.apps.startorder import StartOrder
from minit.supervisor.journal import Journal

# Those that may ask for a stop.
BY_SIGNAL = "signal"
BY_LAUNCHER = "launcher"
BY_CONTROL = "control socket"


class PodPolicy:
    """
    The apps of a pod, by name, and whether it is ready or ending; `exit_code` is set when it begins to end, `cause`
    says then which app failed, unless a line has said that, and it is `forced` to when no app gets time to end by
    itself. `order` is that of the starts.

    `handle` feeds the life-cycle table. The host is told by `launcher`.
    """

    def __init__(
        self,
        plan: PodPlan,
        apps: Sequence[App],
        launcher: Socket,
        journal: Journal,
        handle: Callable[[App, Event], None],
    ) -> None:
        self.apps = {app.name: app for app in apps}
        self.exit_code: int | None = None
        self.cause: str | None = None
        self.ready = False
        self.forced = False
        self._plan = plan
        self._launcher = launcher
        self._journal = journal
        self._handle = handle
        self.order = StartOrder(plan, self.apps, handle, lambda: self.exit_code is not None)
        self._requests = {BY_SIGNAL: 0, BY_LAUNCHER: 0, BY_CONTROL: 0}

    @property
    def finished(self) -> bool:
        """Tell whether nothing of any app is left, once the pod is to end if apps may be started by request."""
        if self.exit_code is None and (self._plan.mutable or any(app.run.is_stopped for app in self.apps.values())):
            return False
        return all(app.state in RESTING and not app.is_restarting for app in self.apps.values())

    # Starts.

    def on_progress(self, app: App) -> None:
        """Start those that wait for what an app has become, and mark the pod as ready when it was the last one."""
        if app.is_ready and app.run.reached < READY:
            app.run.reached = READY
            self._journal.event(PodEvent.APP_READY, app=app.name)
        self.order.go_on()
        if all(each.is_ready for each in self.apps.values()):
            self.mark_ready()

    def mark_ready(self) -> None:
        """Say that the pod is ready, unless that has been said or is over."""
        if not self.ready and self.exit_code is None:
            os.symlink(paths.READY_TARGET, paths.STAGE1_READY)
            self.ready = True
            self._journal.event(PodEvent.POD_READY)
            self._tell_host({"ready": True})

    def start_again(self, app: App) -> None:
        """
        Start an app that has exited once more, in the root it has: with streams, a sidecar and handlers as at first.

        Not one with the pod's console, which is gone with its first process. Nothing if the pod is ending.
        """
        if self.exit_code is None:
            self._handle(app, Event.START)

    # Ends.

    def stop_app(self, app: App, grace_seconds: float | None = None) -> None:
        """
        Begin to stop an app, while the pod goes on, with its own grace period or another one; 0 is at once.

        Of one that is being stopped already the grace period can become shorter.
        """
        was_stopped, app.run.is_stopped = app.run.is_stopped, True
        self.cancel_restart(app)
        if grace_seconds is not None:
            ends_at, run = time.monotonic() + grace_seconds, app.run
            if app.state in (State.PRE_STOP, State.STOPPING, State.LINGERING) and run.deadline is not None:
                run.deadline = min(run.deadline, ends_at)
            if run.grace_ends_at is not None:
                run.grace_ends_at = min(run.grace_ends_at, ends_at)
            # Children that outlive the main process have that time, too.
            run.grace_seconds = min(run.grace_seconds, grace_seconds) if was_stopped else grace_seconds
        if grace_seconds == 0:
            self._handle(app, Event.KILL)
        else:
            self._stop(app)

    def end_unhealthy(self, app: App, check: str, reason: str, *, with_pod: bool) -> None:
        """Begin to end an app that runs and does not work: it has failed, and so has the pod if that ends with it."""
        app.run.is_unhealthy = True
        failure = ExitStatus(step=check, path=reason)
        self.end_failed(app, failure)
        if with_pod:
            self.fail_with(app, failure.describe(), EXIT_FAILURE)

    def end_failed(self, app: App, failure: ExitStatus) -> None:
        """Begin to end an app that runs, for this reason."""
        self._stop(app)
        # Not before: one that has failed already is not stopped in order.
        app.run.failure = failure

    def remove(self, app: App) -> None:
        """Begin to remove an app, which is stopped first."""
        app.is_removed = True
        self.cancel_restart(app)
        if app.state in (State.BUILDING, *RESTING):
            self._handle(app, Event.REMOVE)
        else:
            self.stop_app(app)

    def request_stop(self, source: str, detail: str = "", *, force: bool = False) -> None:
        """
        Begin the shutdown because somebody asks for it; a second request forces it.

        A manager that signals every process of a pod reaches PID 1 twice, once through the launcher: that is one
        request.
        """
        self._requests[source] += 1
        signalled = max(self._requests[BY_SIGNAL], self._requests[BY_LAUNCHER])
        force = force or signalled + self._requests[BY_CONTROL] > 1
        self._journal.event(PodEvent.POD_STOP_REQUESTED, reason=f"{source} {detail}".rstrip(), force=force)
        if force:
            self.forced = True
            # First: an app that SIGTERM ends would be recorded as stopped, though it was given no time to stop.
            for app in [*self.apps.values()]:
                self._handle(app, Event.KILL)
        self.begin_shutdown(0)

    def end_late(self) -> None:
        """Begin the shutdown because the pod has run for as long as it may."""
        seconds = self._plan.deadline_seconds
        if self.exit_code is None:
            self._journal.event(PodEvent.POD_DEADLINE_EXCEEDED, seconds=seconds)
            self.cause = f"the pod ran for longer than {seconds:g} s: it was stopped"
        self.begin_shutdown(EXIT_FAILURE)

    def stop_unasked(self, reason: str) -> None:
        """Begin the shutdown for want of those that the pod runs for."""
        # No request that a second one could follow: systemd, for one, sends SIGHUP along with SIGTERM.
        self._journal.event(PodEvent.POD_STOP_REQUESTED, reason=reason, force=False)
        self.begin_shutdown(0)

    def fail(self) -> None:
        """Have the pod end, with a failure unless it has another one to end with."""
        self.begin_shutdown(EXIT_FAILURE)
        self.exit_code = self.exit_code or EXIT_FAILURE

    def begin_shutdown(self, exit_code: int) -> None:
        """Begin to stop all apps, if that has not begun; a mutable pod ends with 0."""
        if self.exit_code is not None:
            return
        self.exit_code = 0 if self._plan.mutable else exit_code
        self._journal.event(PodEvent.POD_STOPPING, status=self.exit_code)
        self._tell_host({"stopping": True})
        if self.ready:
            try:
                os.unlink(paths.STAGE1_READY)
            except OSError as error:
                self._journal.info("pod.still-marked-ready", reason=describe(error))
        self.ready = False
        self.order.give_up()
        for app in [*self.apps.values()]:
            self.cancel_restart(app)
            self._stop(app)

    def _stop(self, app: App) -> None:
        """Begin to stop an app, with its pre-stop hook if it runs and has time for that."""
        runs = app.state in (State.POST_START, State.RUNNING) and app.run.has_executed
        hooked = runs and app.spec.life.pre_stop is not None and app.run.grace_seconds > 0
        self._handle(app, Event.HANDLE_STOPPING if hooked else Event.STOP)

    def fail_with(self, app: App, words: str | None, number: int) -> None:
        """Begin the shutdown because an app failed, as `words` say."""
        if self.exit_code is None and words is not None and not self._plan.mutable:
            others = ": the pod was stopped" if len(self.apps) > 1 else ""
            self.cause = f'app "{app.name}" {words}{others}'
        self.begin_shutdown(number)

    def cancel_restart(self, app: App) -> None:
        """Have an app that waits to be started again stay as it is."""
        if app.is_restarting and app.restarts is not None:
            app.restarts.cancel()
            if app.state == State.EXITED:
                app.run.deadline = None
                self._handle(app, Event.STAY)

    def is_asked_to_end(self, app: App) -> bool:
        """Tell whether an app is to end, alone or with the pod."""
        return app.run.is_stopped or self.exit_code is not None

    def _tell_host(self, message: dict[str, object]) -> None:
        """Have the launcher tell who started the pod, if that wants to know."""
        if self._plan.tells_host:
            try:
                send_message(self._launcher, message)
            except OSError:
                pass  # it is gone
