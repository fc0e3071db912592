"""The policy of a pod about its apps: the order of starts, readiness, stops, and the end of the whole pod."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from minit.base.carried import Carried
from minit.base.errors import EXIT_FAILURE, describe
from minit.linux.messages import Socket, send_message
from minit.plan.podplan import PodTraits
from minit.podfiles import paths
from minit.podfiles.paths import PodEvent
from minit.reaper.exit_status import ExitStatus
from minit.reaper.record import write_file
from minit.supervisor.apps.apprun import READY
from minit.supervisor.apps.lifecycle import RESTING, Event, State
from minit.supervisor.apps.podapp import App
from minit.supervisor.journal import Journal

# The sources of a request to stop.
BY_SIGNAL = "signal"
BY_LAUNCHER = "launcher"
BY_CONTROL = "control socket"


class PodPolicy(Carried):
    """
    The apps of a pod, by name, and whether the pod is ready or ending. `exit_code` is set when the pod begins to end;
    `cause` then names the app that failed, unless a line has done so. The end is `forced` when no app gets time to end
    by itself. `order` is the order of starts.

    `handle` feeds the life-cycle table. The host is told by `launcher`, if there is one. `ends_at`, of the monotonic
    clock, is the end of the longest allowed time, None without one.
    """

    exit_code: int | None
    cause: str | None
    ready: bool
    forced: bool
    ends_at: float | None
    requests: dict[str, int]

    def __init__(
        self,
        traits: PodTraits,
        apps: Sequence[App],
        launcher: Socket | None,
        journal: Journal,
        handle: Callable[[App, Event], None],
    ) -> None:
        self.apps = {app.name: app for app in apps}
        self.exit_code = None
        self.cause = None
        self.ready = False
        self.forced = False
        self.ends_at = None
        self._traits = traits
        self._launcher = launcher
        self._journal = journal
        self._handle = handle
        self.order = StartOrder(traits, self.apps, handle)
        self.requests = {BY_SIGNAL: 0, BY_LAUNCHER: 0, BY_CONTROL: 0}

    @property
    def finished(self) -> bool:
        """Tell whether nothing of any app is left, once the pod is to end if apps may be started by request."""
        if self.exit_code is None and (self._traits.mutable or any(app.run.is_stopped for app in self.apps.values())):
            return False
        return all(app.state in RESTING and not app.is_restarting for app in self.apps.values())

    @property
    def is_asked_twice(self) -> bool:
        """
        Tell whether somebody has asked for a stop twice.

        A manager that signals every process of a pod reaches PID 1 twice, once through the launcher: both are one
        request.
        """
        signalled = max(self.requests[BY_SIGNAL], self.requests[BY_LAUNCHER])
        return signalled + self.requests[BY_CONTROL] > 1

    # Starts.

    def on_progress(self, app: App) -> None:
        """Start apps that waited for this one, and mark the pod as ready once all apps are."""
        # In this order: after an execution a spec is not read for nothing.
        if app.run.reached < READY and app.is_ready:
            app.run.reached = READY
            self._journal.event(PodEvent.APP_READY, app=app.name)
        self.order.go_on()
        if not self.ready and all(each.is_ready for each in self.apps.values()):
            self.mark_ready()

    def mark_ready(self) -> None:
        """Say that the pod is ready, unless the pod has been ready or is ending."""
        if not self.ready and self.exit_code is None:
            try:
                os.symlink(paths.READY_TARGET, paths.STAGE1_READY)
            except FileExistsError:
                # After an error behind the mark it is there.
                if not os.path.islink(paths.STAGE1_READY):
                    raise
            self.ready = True
            self._journal.event(PodEvent.POD_READY)
            self._tell_host({"ready": True})

    def start_again(self, app: App) -> None:
        """
        Start an exited app once more, in the same root: with streams, a sidecar and handlers as at first.

        Not an app with the pod's console, which is gone with the first process. Nothing if the pod is ending.
        """
        if self.exit_code is None:
            self._handle(app, Event.START)

    # Ends.

    def stop_app(self, app: App, grace_seconds: float | None = None) -> None:
        """
        Begin to stop an app, while the pod goes on, with its own grace period or another one; 0 is at once.

        The grace period of an app already being stopped can become shorter.
        """
        was_stopped, app.run.is_stopped = app.run.is_stopped, True
        self.cancel_restart(app)
        if grace_seconds is not None:
            ends_at, run = time.monotonic() + grace_seconds, app.run
            if app.state in (State.PRE_STOP, State.STOPPING, State.LINGERING) and run.deadline is not None:
                run.deadline = min(run.deadline, ends_at)
            if run.grace_ends_at is not None:
                run.grace_ends_at = min(run.grace_ends_at, ends_at)
            # Children of the main process that live longer have the same time.
            run.grace_seconds = min(run.grace_seconds, grace_seconds) if was_stopped else grace_seconds
        if grace_seconds == 0:
            self._handle(app, Event.KILL)
        else:
            self._stop(app)

    def end_unhealthy(self, app: App, check: str, reason: str, *, with_pod: bool) -> None:
        """Begin to end an app that runs and does not work: the app has failed, and so has the pod `with_pod`."""
        app.run.is_unhealthy = True
        failure = ExitStatus(step=check, path=reason)
        self.end_failed(app, failure)
        if with_pod:
            self.fail_with(app, failure.describe(), EXIT_FAILURE)

    def end_failed(self, app: App, failure: ExitStatus) -> None:
        """Begin to end an app that runs, for the reason `failure`."""
        self._stop(app)
        # Not before: an app with a failure is not stopped in order.
        app.run.failure = failure

    def remove(self, app: App) -> None:
        """Begin to remove an app, after a stop."""
        app.is_removed = True
        self.cancel_restart(app)
        if app.state in (State.BUILDING, *RESTING):
            self._handle(app, Event.REMOVE)
        else:
            self.stop_app(app)

    def request_stop(self, source: str, detail: str = "", *, force: bool = False, is_counted: bool = False) -> None:
        """
        Begin the shutdown because somebody asks for it; a second request forces it, of those counted in `requests`.

        """
        if not is_counted:
            self.requests[source] += 1
        force = force or self.is_asked_twice
        self._journal.event(PodEvent.POD_STOP_REQUESTED, reason=f"{source} {detail}".rstrip(), force=force)
        if force:
            self.forced = True
            # First: an app ended by SIGTERM would be recorded as stopped, though without any time to stop.
            self._kill_apps()
        self.begin_shutdown(0)

    def end_late(self) -> None:
        """Begin the shutdown because the pod has run for the longest allowed time."""
        seconds = self._traits.deadline_seconds
        if self.exit_code is None:
            self._journal.event(PodEvent.POD_DEADLINE_EXCEEDED, seconds=seconds)
            self.cause = f"the pod ran for longer than {seconds:g} s: it was stopped"
        self.begin_shutdown(EXIT_FAILURE)

    def stop_unasked(self, reason: str) -> None:
        """Begin the shutdown since nobody is left for whom the pod runs."""
        # No request with a possible second one: systemd, for one, sends SIGHUP along with SIGTERM.
        self._journal.event(PodEvent.POD_STOP_REQUESTED, reason=reason, force=False)
        self.begin_shutdown(0)

    def fail(self) -> None:
        """Have the pod end, with a failure unless an exit code is set."""
        self.begin_shutdown(EXIT_FAILURE)
        self.exit_code = self.exit_code or EXIT_FAILURE

    def begin_shutdown(self, exit_code: int) -> None:
        """Begin to stop all apps, unless that has begun; a mutable pod ends with 0."""
        if self.exit_code is not None:
            return
        self.exit_code = 0 if self._traits.mutable else exit_code
        self._journal.event(PodEvent.POD_STOPPING, status=self.exit_code)
        self._tell_host({"stopping": True})
        self._stop_apps()

    def resume(self) -> None:
        """Go on with starts and with a stop that an error has interrupted."""
        if self.exit_code is None and any(self.requests.values()):
            self.begin_shutdown(0)
        elif self.exit_code is not None:
            self._stop_apps()
        if self.forced:
            self._kill_apps()
        for app in [*self.apps.values()]:
            if app.state == State.PREPARED:
                self.order.on_prepared(app)
            self.on_progress(app)

    def _stop_apps(self) -> None:
        try:
            os.unlink(paths.STAGE1_READY)
        except FileNotFoundError:
            pass  # the pod was never ready
        except OSError as error:
            self._journal.info("pod.still-marked-ready", reason=describe(error))
        self.ready = False
        self.order.give_up()
        for app in [*self.apps.values()]:
            self.cancel_restart(app)
            self._stop(app)

    def _kill_apps(self) -> None:
        for app in [*self.apps.values()]:
            self._handle(app, Event.KILL)

    def _stop(self, app: App) -> None:
        """Begin to stop an app, with its pre-stop hook if the app runs and has time left."""
        runs = app.state in (State.POST_START, State.RUNNING) and app.run.has_executed
        hooked = runs and app.spec.life.pre_stop is not None and app.run.grace_seconds > 0
        self._handle(app, Event.HANDLE_STOPPING if hooked else Event.STOP)

    def fail_with(self, app: App, words: str | None, number: int) -> None:
        """Begin the shutdown because an app failed, as `words` say."""
        if self.exit_code is None and words is not None and not self._traits.mutable:
            others = ": the pod was stopped" if len(self.apps) > 1 else ""
            self.cause = f'app "{app.name}" {words}{others}'
        self.begin_shutdown(number)

    def cancel_restart(self, app: App) -> None:
        """Have an app that waits for a restart stay exited."""
        if app.is_restarting and app.restarts is not None:
            app.restarts.cancel()
            if app.state == State.EXITED:
                app.run.deadline = None
                self._handle(app, Event.STAY)

    def is_asked_to_end(self, app: App) -> bool:
        """Tell whether an app is to end, alone or with the pod."""
        return app.run.is_stopped or self.exit_code is not None

    def _tell_host(self, message: dict[str, object]) -> None:
        """Have the launcher tell who started the pod, if the starter wants to know."""
        if self._traits.tells_host and self._launcher is not None:
            try:
                send_message(self._launcher, message)
            except OSError:
                pass  # it is gone


class StartOrder(Carried):
    """The order in which the apps of a pod start; `handle` feeds the life-cycle table."""

    _is_given_up: bool
    _has_begun: bool
    # Apps already prepared, which wait for others to be ready.
    _waiting: set[str]

    def __init__(
        self,
        traits: PodTraits,
        apps: Mapping[str, App],
        handle: Callable[[App, Event], None],
    ) -> None:
        self._traits = traits
        self._apps = apps
        self._handle = handle
        self._is_given_up = False
        self._has_begun = False
        self._waiting = set()

    @property
    def starting(self) -> bool:
        """
        Tell whether some app is being prepared or executed; an app in its pre-start handler does not count and may take
        for ever.
        """
        left_out = State.PRE_START
        return any(
            each.run.report is not None and each.state != left_out and each.name not in self._waiting
            for each in self._apps.values()
        )

    def on_prepared(self, app: App) -> None:
        """Start a prepared app, at the pod's start not before all are prepared."""
        if self._traits.mutable or self._has_begun or app.starts > 1:
            self._go([app])
        elif all(each.state == State.PREPARED and each.run.report is not None for each in self._apps.values()):
            self._has_begun = True
            self._go([*self._apps.values()])

    def go_on(self) -> None:
        """Start apps whose wait for another app is over."""
        for each in self._apps.values():
            if each.name in self._waiting:
                self._go([each])

    def forget(self, app: App) -> None:
        """Have an ended app wait for nothing."""
        self._waiting.discard(app.name)

    def give_up(self) -> None:
        """Have no app wait any more, as the pod is ending."""
        self._is_given_up = True
        self._waiting.clear()

    def is_marked_at_exec(self, app: App) -> bool:
        """Return whether an unwritable marker ends the start of one app, not of the whole pod."""
        return app.spec.life.pre_start is not None or self._traits.mutable or app.starts > 1

    def _go(self, apps: Sequence[App]) -> None:
        """Start prepared apps, but for apps that wait for others."""
        apps = [app for app in apps if not self._is_held_up(app)]
        ready = [app for app in apps if app.spec.life.pre_start is None]
        for app in ready:
            if not self.is_marked_at_exec(app):
                write_file(paths.started_marker(app.name), b"")
        for app in ready:
            self._handle(app, Event.GO)
        for app in apps:
            if app.spec.life.pre_start is not None:
                self._handle(app, Event.HANDLE_START)

    def _is_held_up(self, app: App) -> bool:
        """Return whether an app has to wait for others; an app with a wait for ever has failed."""
        if not app.spec.life.after or (app.starts > 1 and not self._traits.mutable):
            return False
        # An app of a mutable pod starts on request, and the answer says why it cannot.
        reason = (_find_unmet if self._traits.mutable else _waits_in_vain)(app, self._apps)
        is_waiting = reason is None and _find_unmet(app, self._apps) is not None
        (self._waiting.add if is_waiting else self._waiting.discard)(app.name)
        if reason is not None and not self._is_given_up:
            app.run.failure = ExitStatus(step="wait for other apps", path=reason)
            self._handle(app, Event.KILL)
            return True
        return is_waiting


def _find_unmet(app: App, apps: Mapping[str, App]) -> str | None:
    """Return the next thing that an app waits for, None if the app may start."""
    for each in app.spec.life.after:
        other = apps.get(each.app)
        if not _is_met(other, completed=each.completed):
            missing = "has not completed" if each.completed else "is not ready"
            return f'"{each.app}" {"is not in this pod" if other is None else missing}'
    return None


def _waits_in_vain(app: App, apps: Mapping[str, App]) -> str | None:
    """Return why nothing will ever start the app, None if something still may."""
    for each in app.spec.life.after:
        other = apps.get(each.app)
        if other is None or other.run.end is None or other.is_restarting:
            continue
        if not _is_met(other, completed=each.completed):
            outcome = f"ended with {other.run.end.number}" if each.completed else "ended before it was ready"
            return f'"{each.app}" {outcome}'
    return None


def _is_met(other: App | None, *, completed: bool) -> bool:
    if other is None:
        return False
    if not completed:
        return other.is_ready
    return other.run.end is not None and other.run.end.number == 0 and not other.is_restarting
