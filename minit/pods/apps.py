"""Adds, starts, stops, changes and removes apps of a running pod."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from minit.base.errors import MinitError, PodError, describe
from minit.base.progress import Progress
from minit.base.value import replace
from minit.manifest.limits import Limits
from minit.podfiles.controlmessages import AskState, LivePod, PauseApp, ResumeApp, SignalApp
from minit.pods.caller import Caller
from minit.pods.preparing import find_image, settled_overrides
from minit.pods.requests import AppRequest
from minit.pods.stopping import stop as stop_whole
from minit.stage0.apps import appadd, appcontrol
from minit.stage0.images.store import Store
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.appsection import Pairs
from minit.stage0.pods.mutablepods import require_app, require_controllable
from minit.stage0.pods.poddirectory import ENDED_STATES, Pod, PodState
from minit.stage0.pods.podstatus import read_pod_manifest
from minit.stage0.stage1.calls import ask_stage1


def add(caller: Caller, pod: Pod, store: Store, request: AppRequest, from_file: Pairs, progress: Progress) -> None:
    """
    Add an app to a running mutable pod, to be started later; PodError after a failure, with the pod as before.

    Arguments in the request replace the image's arguments, as in rkt. `from_file` are variables
    that settings of the app go before.
    """
    require_controllable(pod)
    image = find_image(caller, store, request, progress)
    with _failing_as("error adding app to pod"):
        trees = TreeStore(caller.data, store)
        overrides = replace(settled_overrides(caller, store, trees, request, progress), only_arguments=True)
        appadd.add_app(
            pod,
            store,
            trees,
            image,
            overrides,
            progress,
            debug=caller.debug,
            insecure=caller.insecure,
            from_file=from_file,
        )


def start(caller: Caller, pod: Pod, app: str) -> None:
    """Start an app that was added, or has exited; a running app goes on."""
    require_controllable(pod)
    with _failing_as("error starting app"):
        appcontrol.start_app(pod, app, debug=caller.debug)


def stop(caller: Caller, pod: Pod, app: str, grace_seconds: float | None = None) -> bool:
    """Stop an app, and return when the app has stopped; False if the pod has ended."""
    if pod.state not in ENDED_STATES:
        try:
            require_controllable(pod)
            with _failing_as("error stopping app"):
                appcontrol.stop_app(pod, app, grace_seconds, debug=caller.debug)
            return True
        except (MinitError, OSError):
            # The pod may have ended meanwhile.
            if not pod.refresh() or pod.state not in ENDED_STATES:
                raise
    return False


def remove(caller: Caller, pod: Pod, app: str) -> None:
    """Stop an app if the app runs, and remove all remains."""
    with _failing_as("error removing app"):
        appadd.remove_app(pod, app, debug=caller.debug)


def update(pod: Pod, app: str, limits: Limits) -> None:
    """Change limits of an app while the pod runs; all limits stay as before if one cannot be set."""
    with _failing_as("error updating app"):
        require_app(read_pod_manifest(pod), app)
        appcontrol.change_limits(pod, app, limits)


def pause(pod: Pod, app: str) -> None:
    """Freeze all processes of an app that runs; a paused app stays so."""
    _ask("error pausing app", pod, PauseApp(app=app))


def resume(pod: Pod, app: str) -> None:
    """Thaw all processes of a paused app; an app that runs goes on."""
    _ask("error resuming app", pod, ResumeApp(app=app))


def kill(pod: Pod, number: int, names: Sequence[str] = ()) -> None:
    """
    Send a signal to the main processes of apps, or of all apps that run.

    SIGKILL for all apps kills the pod, so that no app is started again, and waits for the end.
    """
    if pod.state is not PodState.RUNNING:
        raise PodError(f'pod "{pod.uuid}" is not running: its state is "{pod.state}"')
    if number == signal.SIGKILL and not names:
        stop_whole(pod, force=True)
        return
    for name in names or _running_apps(pod):
        _ask("error signalling app", pod, SignalApp(app=name, signal=number))


def _running_apps(pod: Pod) -> list[str]:
    state = ask_stage1(pod, AskState())
    apps = [app.name for app in state.apps if app.pid is not None] if isinstance(state, LivePod) else []
    if not apps:
        raise PodError(f'pod "{pod.uuid}": no app runs that a signal reaches')
    return apps


def _ask(action: str, pod: Pod, request: PauseApp | ResumeApp | SignalApp) -> None:
    with _failing_as(action):
        if pod.state is not PodState.RUNNING:
            raise PodError(f'pod "{pod.uuid}" isn\'t currently running: its state is "{pod.state}"')
        require_app(read_pod_manifest(pod), request.app)
        if ask_stage1(pod, request) is None:
            raise PodError(f'pod "{pod.uuid}": its stage1 neither pauses nor signals apps')


@contextmanager
def _failing_as(action: str) -> Iterator[None]:
    """Put the failed action before the reason, as rkt does."""
    try:
        yield
    except (MinitError, OSError) as error:
        raise PodError(f"{action}: {describe(error)}") from error
