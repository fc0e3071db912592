"""
The answers to requests of the control socket that do not wait: from the supervisor's present state.

`minit.podfiles.controlmessages` has the requests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from minit.base.jsontext import parse
from minit.plan.entering import encode_profile, profile_of
from minit.plan.life.health import KINDS, NONE, STOP_POD
from minit.podfiles.controlmessages import (
    PAUSED,
    Answer,
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
    Refusal,
    ReopenLogs,
    Request,
    ResumeApp,
    StopPod,
)
from minit.podfiles.paths import PodEvent
from minit.supervisor.apps.lifecycle import State, api_state
from minit.supervisor.apps.podapp import App
from minit.supervisor.supervisor import Supervisor

# With what is around them they fit into a message.
_EVENTS_BYTES = 48 * 1024
_MAX_HEALTH_TEXT = 200

Reply = tuple[Answer, list[int]]


def answer(supervisor: Supervisor, request: Request) -> Reply:
    """Carry out a request and return the answer with its descriptors, which stay the supervisor's."""
    return _OPERATIONS[type(request)](supervisor, request)


def _ping(supervisor: Supervisor, request: Ping) -> Reply:
    return Identity(uuid=supervisor.plan.uuid, pid=os.getpid()), []


def _stop(supervisor: Supervisor, request: StopPod) -> Reply:
    supervisor.request_stop(force=request.force)
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
        app.profile = _profile_file(app)
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
        return Refusal(error=f'app "{app.name}": its control groups have no freezer'), []
    return Answer(), []


def _profile_file(app: App) -> int:
    # Not in the answer, which could outgrow a message.
    fd = os.memfd_create("profile")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(encode_profile(profile_of(app.spec, app.attributes)))
    return fd


def _events(supervisor: Supervisor, request: AskEvents) -> Reply:
    if request.since < 0:
        return Refusal(error='"since": expected the number of an event'), []
    lines, last = supervisor.journal.events.since(request.since, _EVENTS_BYTES)
    return Events(events=tuple([parse(line, "event") for line in lines]), last=last), []


def _state(supervisor: Supervisor, request: AskState) -> Reply:
    state = "running" if supervisor.pod.exit_code is None else "stopping"
    apps = tuple([_app_state(app) for app in supervisor.apps.values()])
    return LivePod(uuid=supervisor.plan.uuid, state=state, ready=supervisor.pod.ready, apps=apps), []


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
}
