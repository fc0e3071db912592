"""
The control socket's requests and replies: one JSON object per SEQPACKET message, at most 64 KiB. A larger reply is in
the file that comes with a message {"ok": true, "in_file": true}.

A request has `op`; a reply has `ok`, and `error` where that is false. Answers are computed from the supervisor's
present state, without waiting, but for those that do something with a single app, which come when it is done.

ping                 {"uuid", "pid"}
state                {"uuid", "state", "ready", "apps": [{"name", "state", "lifecycle_state", "ready", "pid"?,
                     "status"?, "says"?, "restarts", "restart_in_seconds"?, "streams", "attached"?,
                     "lost_output_bytes"?}]}; `lifecycle_state` is one of rkt's app-level API, `says` the text of
                     sd_notify's STATUS=, `streams` are the modes, `attached` those of minit.iottymux.ring
stop {"force"?}      {} at once; the pod ends later, at once with force or when asked a second time
reopen-logs {"app"?} {} when the sidecars have been told; a log file that was moved is then let go of
events {"since"?}    {"events", "last"}: those after number `since` that are kept, as many as fit; `last` is the number
                     of the last one of them, to go on with. docs/events.md has their list
health {"app", "pid", "check", "healthy", "text", "action"}
                     {} when the result of a check is noted, and what follows from it has begun
namespace {"app"}    {} and a descriptor of the app's mount namespace
enter {"app"}        {} and descriptors of the app's mount namespace and of its profile, see minit.plan.entering, and
                     of its PID namespace if it runs and has one of its own
helpers {"app"}      {} and pidfds of its helpers, see minit.supervisor.apps.apphelper
app-add {"app", "version", "descriptors", "v2"}
                     {} when the app can be started; with a descriptor for each of the roles that `descriptors` names,
                     see minit.supervisor.control.adding
app-start {"app"}    {} when it is executed, at once if it is already
app-stop {"app", "grace_seconds"?}
                     {} when nothing of it is left, or if there is no such app; that is the time until it is killed, in
                     place of its grace period, and 0.0 at once
app-rm {"app"}       {} when PID 1 holds nothing of it, or if there is no such app; it is stopped first
note {"app", "text"} {} when the text, why something could not be asked for, stands in the pod's log
"""

from __future__ import annotations

import os
import time

from minit.base.jsontext import parse
from minit.plan.entering import encode_profile, profile_of
from minit.plan.life.health import KINDS, NONE, STOP_POD
from minit.podfiles.paths import PodEvent
from minit.supervisor.apps.lifecycle import State, api_state
from minit.supervisor.apps.podapp import App
from minit.supervisor.supervisor import Supervisor

OP_PING = "ping"
OP_STATE = "state"
OP_STOP = "stop"
OP_REOPEN_LOGS = "reopen-logs"
OP_EVENTS = "events"
OP_HEALTH = "health"
OP_NAMESPACE = "namespace"
OP_ENTER = "enter"
OP_HELPERS = "helpers"
OP_NOTE = "note"
OP_APP_ADD = "app-add"
OP_APP_START = "app-start"
OP_APP_STOP = "app-stop"
OP_APP_RM = "app-rm"
APP_OPS = (OP_APP_ADD, OP_APP_START, OP_APP_STOP, OP_APP_RM)
# Of what app-add means by its descriptors and the spec among them; both sides are of one image.
ADDING_VERSION = 3
# How many descriptors a request may have (SCM_MAX_FD of Linux).
MAXIMUM_DESCRIPTORS = 253

# With what is around them they fit into a message.
_EVENTS_BYTES = 48 * 1024
_MAX_HEALTH_TEXT = 200

Reply = tuple[dict[str, object], list[int]]


def answer(supervisor: Supervisor, request: dict[str, object]) -> Reply:
    """Carry out a request and return the reply with its descriptors, which stay the supervisor's."""
    op = request.get("op")
    if op == OP_PING:
        return {"ok": True, "uuid": supervisor.plan.uuid, "pid": os.getpid()}, []
    if op == OP_STATE:
        return {"ok": True, **_state(supervisor)}, []
    if op == OP_STOP:
        supervisor.request_stop(force=request.get("force") is True)
        return {"ok": True}, []
    if op == OP_REOPEN_LOGS:
        name = request.get("app")
        if name is not None and not (isinstance(name, str) and name in supervisor.apps):
            return _refuse(f'no app "{name}" in this pod')
        supervisor.sidecars.reopen_logs(name if isinstance(name, str) else None)
        return {"ok": True}, []
    if op == OP_EVENTS:
        return _events(supervisor, request.get("since", 0))
    if op == OP_HEALTH:
        return _note_health(supervisor, request), []
    if op == OP_HELPERS:
        known = supervisor.apps.get(str(request.get("app")))
        return {"ok": True}, [] if known is None else [helper.pidfd for helper in known.helpers]
    if op in (OP_NAMESPACE, OP_ENTER):
        app = supervisor.apps.get(str(request.get("app")))
        if app is None:
            return _refuse(f'no app "{request.get("app")}" in this pod')
        if app.namespace is None:
            return _refuse(f'app "{app.name}" is not prepared yet')
        if op == OP_NAMESPACE:
            return {"ok": True}, [app.namespace]
        if app.profile is None:
            app.profile = _profile_file(app)
        # While its process prepares itself, /proc in the namespace that is known so far is that of another one.
        if app.run.pids is None or app.run.reaped is not None or app.state == State.PREPARING:
            return {"ok": True}, [app.namespace, app.profile]
        assert app.present_namespace is not None
        return {"ok": True}, [app.present_namespace, app.profile, app.run.pids]
    if op == OP_NOTE:
        supervisor.journal.info("note", app=str(request.get("app")), text=str(request.get("text")))
        return {"ok": True}, []
    return _refuse(f'unknown op "{op}"')


def _note_health(supervisor: Supervisor, request: dict[str, object]) -> dict[str, object]:
    """Keep what a check decided about the process that an app is now, and act on it; return the reply."""
    app = supervisor.apps.get(str(request.get("app")))
    check, healthy, action = request.get("check"), request.get("healthy"), request.get("action", NONE)
    if app is None or check not in KINDS or not isinstance(healthy, bool):
        return {"ok": False, "error": "expected an app of this pod, a check and its result"}
    if app.state != State.RUNNING or app.run.pid != request.get("pid"):
        # It was about a process that has ended, or is about to.
        return {"ok": True}
    text = str(request.get("text", ""))[:_MAX_HEALTH_TEXT]
    app.run.health[str(check)] = {"healthy": healthy, "text": text}
    supervisor.journal.event(PodEvent.APP_HEALTH, app=app.name, check=check, healthy=healthy, text=text)
    if not healthy and action != NONE:
        reason = text or "it failed"
        supervisor.pod.end_unhealthy(app, f"{check} check", reason, with_pod=action == STOP_POD)
    else:
        supervisor.pod.on_progress(app)
    return {"ok": True}


def _profile_file(app: App) -> int:
    # Not in the reply, which could outgrow a message.
    fd = os.memfd_create("profile")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(encode_profile(profile_of(app.spec, app.attributes)))
    return fd


def _events(supervisor: Supervisor, since: object) -> Reply:
    if not isinstance(since, int) or isinstance(since, bool) or since < 0:
        return _refuse('"since": expected the number of an event')
    lines, last = supervisor.journal.events.since(since, _EVENTS_BYTES)
    return {"ok": True, "events": [parse(line, "event") for line in lines], "last": last}, []


def _state(supervisor: Supervisor) -> dict[str, object]:
    apps = []
    for app in supervisor.apps.values():
        entry: dict[str, object] = {"name": app.name, "state": app.state}
        entry["lifecycle_state"] = "deleting" if app.is_removed else api_state(app.state)
        if app.run.end is not None:
            entry["status"] = app.run.end.number
        elif app.run.pid is not None:
            entry["pid"] = app.run.pid
        entry["restarts"] = max(0, app.starts - 1)
        entry["ready"] = app.is_ready
        if app.readiness is not None and app.readiness.status is not None:
            entry["says"] = app.readiness.status
        if app.restart_at is not None:
            entry["restart_in_seconds"] = max(0.0, round(app.restart_at - time.monotonic(), 3))
        entry["streams"] = {
            "stdin": app.spec.streams.stdin,
            "stdout": app.spec.streams.stdout,
            "stderr": app.spec.streams.stderr,
        }
        attached = app.run.streams.counters()
        if attached is not None:
            entry["attached"] = attached
        if app.lost_bytes is not None:
            entry["lost_output_bytes"] = app.lost_bytes
        if app.run.health:
            entry["health"] = {kind: {**result} for kind, result in app.run.health.items()}
        apps.append(entry)
    state = "running" if supervisor.pod.exit_code is None else "stopping"
    return {"uuid": supervisor.plan.uuid, "state": state, "ready": supervisor.pod.ready, "apps": apps}


def _refuse(reason: str) -> Reply:
    return {"ok": False, "error": reason}, []
