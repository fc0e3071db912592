"""
The answers to requests of the control socket: `minit.podfiles.controlmessages` has the requests.

An answer about a single app of a mutable pod, or of a machine booted by minit, may have to wait for the app. Such an
answer is a `Pending`, which looks again at every change of the app; nobody else waits, and the absence of the client
does not matter to the app.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import minit
from minit.base.carried import Carried
from minit.base.errors import MinitError, describe
from minit.base.jsontext import parse
from minit.linux import syscalls
from minit.linux.messages import memory_file
from minit.plan.entering import encode_profile, profile_of
from minit.plan.life.health import KINDS, NONE, STOP_POD
from minit.podfiles.controlmessages import (
    ADDING_VERSION,
    PAUSED,
    AddApp,
    Answer,
    AppRequest,
    AskEvents,
    AskState,
    EnterApp,
    Events,
    FindHelpers,
    FindNamespace,
    HealthResult,
    Identity,
    LiveApp,
    LivePod,
    Note,
    NoteHealth,
    PauseApp,
    Ping,
    Reexecute,
    Refusal,
    ReopenLogs,
    Request,
    ResumeApp,
    SignalApp,
    StartApp,
    StopApp,
    StopPod,
)
from minit.podfiles.paths import PodEvent
from minit.supervisor.apps.lifecycle import RESTING, STARTING, State, api_state
from minit.supervisor.apps.podapp import App
from minit.supervisor.control.adding import take_in
from minit.supervisor.supervisor import Supervisor

# A pre-start handler may hang; the client has to hear of the failure.
START_SECONDS = 90.0
# The waiting answers of one pod, all together.
_MAXIMUM_PENDING = 1024
# Without any PID 1 could not even see whether an app has ended. Clients of the control socket take some as well.
_LEAST_DESCRIPTORS = 96

# With what is around them they fit into a message.
_EVENTS_BYTES = 48 * 1024
_MAX_HEALTH_TEXT = 200

Reply = tuple[Answer, list[int]]


class Pending(Carried):
    """
    An answer that waits for `app`; the answer is there once `wake` is called, with a refusal if there is an `error`.

    `ends_at` is the end of the wait, of the monotonic clock, None for no end.
    """

    app: App
    is_answered: bool
    error: str | None
    ends_at: float | None

    # Not carried: an error leaves the mark for who deals with the error.
    is_at_work = False

    def __init__(self, supervisor: Supervisor, app: App) -> None:
        self.app = app
        self.is_answered = False
        self.error = None
        self.ends_at = None
        self.attach(supervisor)

    def attach(self, supervisor: Supervisor) -> None:
        """Wait by the loop of a supervisor."""
        self.wake: Callable[[], None] = lambda: None
        self._supervisor = supervisor

    @property
    def reply(self) -> Answer | None:
        """The answer, None while it is to come."""
        if not self.is_answered:
            return None
        return Answer() if self.error is None else Refusal(error=self.error)

    def try_to_answer(self) -> None:
        """Answer if possible now; an error leaves the answer marked."""
        self.is_at_work = True
        self.look()
        self.is_at_work = False

    def look(self) -> None:
        """Answer if possible now."""
        raise NotImplementedError

    def expire(self) -> None:
        """Answer, the deadline being over."""

    def answer(self, error: str | None = None) -> None:
        """Set the reply, the first time."""
        if not self.is_answered:
            self.is_answered, self.error = True, error
            if error is not None:
                self._supervisor.journal.info("request.failed", app=self.app.name, reason=error)
            self.wake()


class Adding(Pending):
    """Waits for the root of an app."""

    def look(self) -> None:
        """Answer once the root is there, or cannot be."""
        if self.app.state == State.REMOVED:
            failure = self.app.run.failure
            self.answer("it was given up" if failure is None else failure.describe())
        elif self.app.state not in (State.BUILDING, State.ABANDONED):
            self.answer()


class Starting(Pending):
    """Has an app started once nothing of the last start is left, and waits for the exec."""

    start: int | None
    """The number of the start in the request, once begun."""

    def __init__(self, supervisor: Supervisor, app: App) -> None:
        super().__init__(supervisor, app)
        self.start = None
        self.ends_at = time.monotonic() + START_SECONDS

    def look(self) -> None:
        """Start a resting app; answer once the app is executed, or has ended before."""
        app = self.app
        if self.reply is not None:
            return
        if app.is_removed:
            self.answer("it is being removed")
        elif self.start is None and self._supervisor.pod.exit_code is not None:
            self.answer("the pod is ending")
        elif self.start is None:
            self._begin()
        elif app.starts > self.start or app.run.has_executed:
            self.answer()
        elif app.state == State.EXITED:
            end = app.run.end
            failure = app.run.failure or (None if end is None else end.status)
            self.answer("it was stopped" if failure is None else failure.describe())

    def _begin(self) -> None:
        app = self.app
        if app.state in RESTING:
            self.start = app.starts + 1
            self._supervisor.pod.start_again(app)
        elif app.state in (*STARTING, State.POST_START, State.RUNNING):
            self.start = app.starts
            self.look()

    def give_up(self) -> None:
        """Answer that the app was stopped, unless the start has begun."""
        if self.start is None:
            self.answer("it was stopped")

    def expire(self) -> None:
        """Answer that the start takes too long, and have the app stopped."""
        what = "its pre-start handler still runs" if self.app.state == State.PRE_START else "it is not executed yet"
        self.answer(f"{what} after {START_SECONDS:g} s")
        if self.app.state in STARTING:
            self._supervisor.pod.stop_app(self.app)


class Stopping(Pending):
    """Waits until nothing of an app is left."""

    def look(self) -> None:
        """Answer once nothing of the app runs."""
        if self.app.state in (*RESTING, State.REMOVED):
            self.answer()


class Removing(Pending):
    """Waits until an app is stopped and gone."""

    def look(self) -> None:
        """Answer once the app is gone."""
        if self.app.state == State.REMOVED:
            self.answer()


class AppRequests:
    """The requests about apps of one pod, and the waiting answers."""

    def __init__(self, supervisor: Supervisor, pending: Sequence[Pending] = ()) -> None:
        self._supervisor = supervisor
        self._pending = [*pending]
        for each in pending:
            each.attach(supervisor)
            each.try_to_answer()
        supervisor.observers.append(self._on_change)

    def answer(self, request: AppRequest, descriptors: list[int]) -> Pending | Answer:
        """Carry out a request; `descriptors` is emptied of those taken over."""
        name = request.app
        if not self._supervisor.outside.carries_out(request):
            return self._refuse(name, "immutable pod")
        if len(self._pending) >= _MAXIMUM_PENDING:
            return self._refuse(name, "too many requests wait for apps of this pod")
        if isinstance(request, AddApp):
            return self._add(request, descriptors)
        app = self._supervisor.apps.get(name)
        if isinstance(request, StartApp):
            return self._refuse(name, f'no app "{name}" in this pod') if app is None else self._start(app)
        if app is None:
            # The wanted state is there already.
            return Answer()
        return self._stop(app, request.grace_seconds) if isinstance(request, StopApp) else self._remove(app)

    def forget(self, pending: Pending) -> None:
        """Let go of an answer without a waiting client."""
        if pending in self._pending:
            self._pending.remove(pending)

    def _add(self, request: AddApp, descriptors: list[int]) -> Pending | Answer:
        name = request.app
        if request.version != ADDING_VERSION:
            return self._refuse(name, f"version {request.version} of app/add: expected {ADDING_VERSION}")
        if self._supervisor.pod.exit_code is not None:
            return self._refuse(name, "the pod is ending")
        if name in self._supervisor.apps:
            return self._refuse(name, f'app "{name}" is in this pod already')
        if not _has_descriptors():
            return self._refuse(name, _too_few_descriptors())
        taken = descriptors.copy()
        descriptors.clear()
        try:
            app = take_in(request, taken, self._supervisor.attributes)
        except (MinitError, OSError) as error:
            return self._refuse(name, describe(error))
        self._supervisor.add(app)
        self._supervisor.journal.info("app.added", app=name)
        return self._wait(Adding(self._supervisor, app))

    def _start(self, app: App) -> Pending | Answer:
        if app.state in RESTING and not _has_descriptors():
            return self._refuse(app.name, _too_few_descriptors())
        return self._wait(Starting(self._supervisor, app))

    def _stop(self, app: App, grace_seconds: float | None) -> Pending | Answer:
        if grace_seconds is not None and grace_seconds < 0:
            return self._refuse(app.name, '"grace_seconds": expected a time')
        for pending in [*self._pending]:
            if isinstance(pending, Starting) and pending.app is app:
                pending.give_up()
        if app.state == State.BUILDING:
            # The app is not running, and the addition goes on.
            return Answer()
        self._supervisor.pod.stop_app(app, grace_seconds)
        return self._wait(Stopping(self._supervisor, app))

    def _remove(self, app: App) -> Pending:
        pending = self._wait(Removing(self._supervisor, app))
        if not app.is_removed:
            self._supervisor.pod.remove(app)
        return pending

    def _wait(self, pending: Pending) -> Pending:
        self._pending.append(pending)
        pending.look()
        return pending

    def _on_change(self, app: App) -> None:
        for pending in [pending for pending in self._pending if pending.app is app]:
            if pending.reply is None:
                pending.try_to_answer()

    def _refuse(self, app: str, reason: str) -> Refusal:
        self._supervisor.journal.info("request.refused", app=app, reason=reason)
        return Refusal(error=reason)


def _has_descriptors() -> bool:
    """Return whether enough descriptors are left for another app, and for all work on the others."""
    spare = []
    try:
        for _ in range(_LEAST_DESCRIPTORS):
            spare.append(os.dup(0))
    except OSError:
        return False
    finally:
        for fd in spare:
            os.close(fd)
    return True


def _too_few_descriptors() -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"too few descriptors are left for another app: the limit of open files (ulimit -n) of the pod is {limit}"


def answer(supervisor: Supervisor, request: Request) -> Reply:
    """Carry out a request and return the answer with its descriptors, which stay the supervisor's."""
    return _OPERATIONS[type(request)](supervisor, request)


def _ping(supervisor: Supervisor, request: Ping) -> Reply:
    return Identity(uuid=supervisor.traits.uuid, pid=os.getpid()), []


def _stop(supervisor: Supervisor, request: StopPod) -> Reply:
    supervisor.request_stop(force=request.force)
    return Answer(), []


def _reexecute(supervisor: Supervisor, request: Reexecute) -> Reply:
    # By the loop, after the answer.
    supervisor.is_to_execute = True
    return Answer(), []


def _reopen_logs(supervisor: Supervisor, request: ReopenLogs) -> Reply:
    if request.app is not None and request.app not in supervisor.apps:
        return _refuse_unknown(request.app)
    supervisor.sidecars.reopen_logs(request.app)
    return Answer(), []


def _find_helpers(supervisor: Supervisor, request: FindHelpers) -> Reply:
    app = supervisor.apps.get(request.app)
    return Answer(), [] if app is None else [helper.pidfd for helper in app.helpers]


def _find_namespace(supervisor: Supervisor, request: FindNamespace | EnterApp) -> Reply:
    app = supervisor.apps.get(request.app)
    if app is None:
        return _refuse_unknown(request.app)
    if app.namespace is None:
        return Refusal(error=f'app "{app.name}" is not prepared yet'), []
    if isinstance(request, FindNamespace):
        return Answer(), [app.namespace]
    if app.profile is None:
        # Not in the answer, which could outgrow a message.
        app.profile = memory_file("profile", encode_profile(profile_of(app.spec, app.attributes)))
    # While its process prepares itself, /proc in the namespace that is known so far is that of another one.
    if app.run.pids is None or app.run.reaped is not None or app.state == State.PREPARING:
        return Answer(), [app.namespace, app.profile]
    assert app.present_namespace is not None
    return Answer(), [app.present_namespace, app.profile, app.run.pids]


def _note(supervisor: Supervisor, request: Note) -> Reply:
    supervisor.journal.info("note", app=request.app, text=request.text)
    return Answer(), []


def _note_health(supervisor: Supervisor, request: NoteHealth) -> Reply:
    """Keep the decision of a check about the app's present process, and act on it."""
    app = supervisor.apps.get(request.app)
    if app is None or request.check not in KINDS:
        return Refusal(error="expected an app of this pod, a check and its result"), []
    if app.state != State.RUNNING or app.run.pid != request.pid or app.group.is_frozen:
        # The check was about a process that has ended, is about to, or cannot answer.
        return Answer(), []
    check, healthy, text = request.check, request.healthy, request.text[:_MAX_HEALTH_TEXT]
    app.run.health[check] = HealthResult(healthy=healthy, text=text)
    supervisor.journal.event(PodEvent.APP_HEALTH, app=app.name, check=check, healthy=healthy, text=text)
    if not healthy and request.action != NONE:
        reason = text or "it failed"
        supervisor.pod.end_unhealthy(app, f"{check} check", reason, with_pod=request.action == STOP_POD)
    else:
        supervisor.pod.on_progress(app)
    return Answer(), []


def _pause(supervisor: Supervisor, request: PauseApp | ResumeApp) -> Reply:
    app = supervisor.apps.get(request.app)
    if app is None:
        return _refuse_unknown(request.app)
    if app.state != State.RUNNING or not app.run.has_started:
        return Refusal(error=f'app "{app.name}" does not run'), []
    if isinstance(request, ResumeApp):
        supervisor.context.resume(app)
    elif not supervisor.context.pause(app):
        missing = "its control groups have no freezer" if app.ends.descriptors() else "it has no control groups"
        return Refusal(error=f'app "{app.name}": {missing}'), []
    return Answer(), []


def _signal(supervisor: Supervisor, request: SignalApp) -> Reply:
    app = supervisor.apps.get(request.app)
    if app is None:
        return _refuse_unknown(request.app)
    if not 1 <= request.signal < signal.NSIG:
        return Refusal(error='"signal": expected the number of a signal'), []
    if app.state != State.RUNNING or not app.run.has_started or app.run.pidfd is None:
        return Refusal(error=f'app "{app.name}" does not run'), []
    # The end may be about to be read.
    syscalls.send_signals(app.run.pidfd, request.signal)
    return Answer(), []


def _events(supervisor: Supervisor, request: AskEvents) -> Reply:
    if request.since < 0:
        return Refusal(error='"since": expected the number of an event'), []
    lines, last = supervisor.journal.events.since(request.since, _EVENTS_BYTES)
    return Events(events=tuple([parse(line, "event") for line in lines]), last=last), []


def _state(supervisor: Supervisor, request: AskState) -> Reply:
    state = "running" if supervisor.pod.exit_code is None else "stopping"
    apps = tuple([_app_state(app) for app in supervisor.apps.values()])
    return (
        LivePod(
            uuid=supervisor.traits.uuid, state=state, ready=supervisor.pod.ready, apps=apps, version=minit.__version__
        ),
        [],
    )


def _app_state(app: App) -> LiveApp:
    end, streams = app.run.end, app.spec.streams
    paused = PAUSED if app.group.is_frozen else None
    return LiveApp(
        name=app.name,
        state=paused or app.state,
        lifecycle_state="deleting" if app.is_removed else paused or api_state(app.state),
        status=None if end is None else end.number,
        pid=app.run.pid if end is None else None,
        restarts=max(0, app.starts - 1),
        ready=app.is_ready,
        says=None if app.readiness is None else app.readiness.status,
        restart_in_seconds=None if app.restart_at is None else max(0.0, round(app.restart_at - time.monotonic(), 3)),
        streams={"stdin": streams.stdin, "stdout": streams.stdout, "stderr": streams.stderr},
        attached=app.run.streams.counters(),
        lost_output_bytes=app.lost_bytes,
        health={**app.run.health} or None,
    )


def _refuse_unknown(app: str) -> Reply:
    return Refusal(error=f'no app "{app}" in this pod'), []


_OPERATIONS: dict[type[Request], Callable[[Supervisor, Any], Reply]] = {
    Ping: _ping,
    AskState: _state,
    StopPod: _stop,
    ReopenLogs: _reopen_logs,
    AskEvents: _events,
    NoteHealth: _note_health,
    FindNamespace: _find_namespace,
    EnterApp: _find_namespace,
    FindHelpers: _find_helpers,
    Note: _note,
    PauseApp: _pause,
    ResumeApp: _pause,
    SignalApp: _signal,
    Reexecute: _reexecute,
}
