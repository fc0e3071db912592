"""Starting and stopping an app of a mutable pod that runs."""

from __future__ import annotations

from minit.base.errors import MinitError
from minit.stage0.apps import appmarkers
from minit.stage0.pods.mutablepods import read_mutable_manifest, require_app
from minit.stage0.pods.poddirectory import Pod
from minit.stage0.pods.podstatus import APP_RUNNING, read_app_life
from minit.stage0.pods.privateusers import read_ids
from minit.stage0.stage1 import entrypoints
from minit.stage0.stage1.calls import EntrypointFailed, call_crossing, read_app_states

_NOT_STARTED = frozenset({"prepared", "exited"})


def start_app(pod: Pod, app: str, *, debug: bool) -> None:
    """
    Start an app that was added, or has exited; one that runs goes on. PodError if it cannot be started.

    After any failure the markers do not tell that an app runs which does not, as rkt's do.
    """
    require_app(read_mutable_manifest(pod), app)
    if read_app_life(pod, app).state != APP_RUNNING:
        appmarkers.mark_started(pod, app, read_ids(pod))
    try:
        call_crossing(pod, "app/start", entrypoints.app_arguments(app, debug=debug))
    except BaseException as error:
        was_killed = isinstance(error, EntrypointFailed) and error.was_killed
        if _did_not_start(pod, app, is_certain=isinstance(error, MinitError) and not was_killed):
            appmarkers.unmark_started(pod, app)
        raise


def stop_app(pod: Pod, app: str, grace_seconds: float | None, *, debug: bool) -> None:
    """
    Stop an app, and return when it has stopped; one that does not run is no error. PodError if it goes on.

    Another grace period than its own is an extension of minit's own stage1.
    """
    require_app(read_mutable_manifest(pod), app)
    call_crossing(pod, "app/stop", entrypoints.app_stop_arguments(app, grace_seconds, debug=debug))


def _did_not_start(pod: Pod, app: str, *, is_certain: bool) -> bool:
    """
    Return whether an app is known not to run, though it has no status, after its start failed or was interrupted.

    Without anybody to ask it is, if the failure `is_certain`.
    """
    if read_app_life(pod, app).state != APP_RUNNING:
        return False
    try:
        states = read_app_states(pod)
    except MinitError:
        return False
    return is_certain if states is None else states.get(app, "exited") in _NOT_STARTED
