"""
Removing what minit has of an app that PID 1 has let go of.

Through the mount of the stage1 root: stage0 removes some of these files in the overlay's upper directory behind it,
after which a file of that name could neither be made nor removed here.
"""

from __future__ import annotations

import os

from minit.base.errors import LaunchError, ManifestError, NetworkError, describe
from minit.launcher.cgroups import read_hierarchies, read_subcgroup, remove_app_groups
from minit.launcher.start.load import read_pod_manifest
from minit.manifest.annotations import Annotation
from minit.network.podnames import change_apps
from minit.podfiles import paths
from minit.reaper.record import remove_file

_TRUE = "true"


def remove_traces(app: str) -> list[str]:
    """Remove files and control groups of an app, and return what could not be removed."""
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
