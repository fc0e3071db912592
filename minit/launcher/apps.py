"""
The work of `app/start`, `app/stop` and `app/rm`: asking PID 1, and the rest of the work on the host.

The working directory is the pod directory, by which the supervisor is reached. Files of a removed app are removed
through the mount of the stage1 root: stage0 removes some of these files in the overlay's upper directory behind the
mount, after which a file of the name could be neither made nor removed here.
"""

from __future__ import annotations

import os

from minit.base.errors import (
    EXIT_FAILURE,
    ControlError,
    LaunchError,
    ManifestError,
    MinitError,
    NetworkError,
    NoAnswerError,
    describe,
)
from minit.launcher.cgroups import read_hierarchies, read_subcgroup, remove_app_groups
from minit.launcher.leftbehind import end_helpers, find_helpers
from minit.launcher.start.load import read_pod_manifest
from minit.launcher.stop import open_supervisor, read_pid
from minit.linux.stdio import complain
from minit.manifest.annotations import Annotation
from minit.network.podnames import change_apps
from minit.podfiles import paths
from minit.podfiles.controlmessages import AppRequest, Note, RemoveApp, StartApp, StopApp
from minit.reaper.record import remove_file, write_durably
from minit.supervisor.apps.lifecycle import RESTING
from minit.supervisor.control.ask import ask, ask_state

# PID 1 gives up on a start after 90 seconds. A stop is given up some seconds after the grace period of the app, of any
# length.
_START_SECONDS = 100.0
_STOP_SECONDS = 24 * 3600.0

_TRUE = "true"


class StartError(LaunchError):
    """An app could not be started, in rkt's words."""


def start_app(app: str) -> None:
    """Start an app, and return after the exec; StartError for a failed start, which leaves a status."""
    try:
        ask(StartApp(app=app), _START_SECONDS)
    except ControlError as error:
        check_running()
        _record_failed_start(app)
        raise StartError(f'"{app}" failed to start: {_reason(error)}') from error


def stop_app(app: str, grace_seconds: float | None = None) -> None:
    """
    Stop an app, and return once nothing of the app is left; an app that does not run, or is missing, is stopped.

    SIGKILL follows after the app's own grace period, or after `grace_seconds`.
    """
    _ask_until_done(StopApp(app=app, grace_seconds=grace_seconds))


def remove_app(app: str) -> None:
    """
    Stop an app, have PID 1 let go of the app, and remove the app's traces in the pod directory and control groups.
    """
    helpers = find_helpers(app)
    _ask_until_done(RemoveApp(app=app))
    end_helpers(helpers)
    for problem in remove_traces(app):
        report_failure(app, LaunchError(problem))
        complain(f'stage1 app rm: warning: app "{app}": {problem}')


def _ask_until_done(request: AppRequest) -> None:
    """Ask, and wait for the end; a pod that ends meanwhile has no running app either."""
    try:
        ask(request, _STOP_SECONDS)
    except ControlError as error:
        try:
            check_running()
        except LaunchError:
            # The removal of the rest is stage0's, which learns that the pod has ended.
            if isinstance(request, StopApp) or isinstance(error, NoAnswerError):
                return
            raise
        raise


def check_running() -> None:
    """Raise LaunchError unless the pod runs."""
    pidfd, _ = open_supervisor(read_pid())
    os.close(pidfd)


def report_failure(app: str, error: Exception) -> None:
    """Have the pod's own log hold the reason: stage0 shows an entrypoint's words with --debug only."""
    try:
        ask(Note(app=app, text=describe(error)))
    except MinitError:
        pass  # nor is there a supervisor to write it down


def _may_run(app: str) -> bool:
    """Return whether PID 1 has a process of an app, and will write down the end, or cannot be asked."""
    try:
        state = ask_state()
    except MinitError:
        return True
    return any(known.name == app and known.state not in RESTING for known in state.apps)


def _reason(error: ControlError) -> str:
    return describe(error).removeprefix("supervisor of this pod: ")


def _record_failed_start(app: str) -> None:
    """Give an app that does not run a status: stage0 has marked the app as started and would call the app running."""
    path = paths.POD_STAGE1_ROOTFS + paths.status_file(app)
    if os.path.exists(path) or _may_run(app):
        return
    # Of this process alone: PID 1, and another starter of the app, may be writing the status at the same time.
    own = f"{path}.{os.getpid()}"
    try:
        write_durably(own, b"%d\n" % EXIT_FAILURE)
        try:
            os.link(own, path)
        finally:
            os.unlink(own)
    except FileExistsError:
        pass  # the other one's says more
    except OSError as error:
        complain(f"stage1 app start: {describe(error)}")


def remove_traces(app: str) -> list[str]:
    """Remove files and control groups of an app, and return the failures."""
    problems = _remove_groups(app)
    inside = [
        *(paths.status_file(app), paths.created_marker(app), paths.started_marker(app)),
        *(paths.env_file(app), paths.state_file(app)),
        *([] if _keeps_logs(app) else _log_files(app)),
    ]
    for path in (paths.enter_profile(app), *(paths.POD_STAGE1_ROOTFS + path for path in inside)):
        try:
            remove_file(path)
        except OSError as error:
            problems.append(describe(error))
    try:
        change_apps(os.path.basename(os.getcwd()), removed=(app,))
    except NetworkError as error:
        problems.append(describe(error))
    return problems + _remove_directory(paths.POD_STAGE1_ROOTFS + paths.iottymux_directory(app))


def _remove_directory(path: str) -> list[str]:
    """Remove a directory of files."""
    try:
        for name in os.listdir(path):
            os.unlink(f"{path}/{name}")
        os.rmdir(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        return [describe(error)]
    return []


def _remove_groups(app: str) -> list[str]:
    try:
        subcgroup = read_subcgroup()
    except FileNotFoundError:
        return []  # a user has none
    except (OSError, LaunchError) as error:
        return [describe(error)]
    return remove_app_groups(read_hierarchies(), subcgroup, app)


def _keeps_logs(app: str) -> bool:
    """Return whether the annotation of the app, or of the pod, says so."""
    try:
        manifest = read_pod_manifest()
    except ManifestError:
        return False
    runtime = next((runtime for runtime in manifest.apps if runtime.name == app), None)
    own = None if runtime is None else runtime.annotation(Annotation.KEEP_LOGS)
    return (manifest.annotation(Annotation.KEEP_LOGS) if own is None else own) == _TRUE


def _log_files(app: str) -> list[str]:
    log = paths.log_file(app)
    name = os.path.basename(log)
    try:
        found = os.listdir(paths.POD_STAGE1_ROOTFS + paths.STAGE1_LOG)
    except OSError:
        found = []
    rotated = [f"{paths.STAGE1_LOG}/{other}" for other in found if other.startswith(f"{name}.")]
    return [log, *rotated, f"{paths.STAGE1_LOG}/{app}.lock", paths.log_end_marker(app)]
