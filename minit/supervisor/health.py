"""What PID 1 does with the results of health checks, which a helper on the host makes (minit.launcher.health)."""

from __future__ import annotations

from minit.plan.health import KINDS, NONE, STOP_POD
from minit.supervisor.lifecycle import RUNNING
from minit.supervisor.supervisor import Supervisor

_MAX_TEXT = 200


def note_health(supervisor: Supervisor, request: dict[str, object]) -> dict[str, object]:
    """Keep what a check decided about the process that an app is now, and act on it; return the reply."""
    app = supervisor.apps.get(str(request.get("app")))
    check, healthy, action = request.get("check"), request.get("healthy"), request.get("action", NONE)
    if app is None or check not in KINDS or not isinstance(healthy, bool):
        return {"ok": False, "error": "expected an app of this pod, a check and its result"}
    if app.state != RUNNING or app.pid != request.get("pid"):
        # It was about a process that has ended, or is about to.
        return {"ok": True}
    text = str(request.get("text", ""))[:_MAX_TEXT]
    app.health[str(check)] = {"healthy": healthy, "text": text}
    supervisor.journal.event("app.health", app=app.name, check=check, healthy=healthy, text=text)
    if not healthy and action != NONE:
        reason = text or "it failed"
        supervisor.end_unhealthy(app, f"{check} check", reason, with_pod=action == STOP_POD)
    else:
        supervisor.note_health(app)
    return {"ok": True}
