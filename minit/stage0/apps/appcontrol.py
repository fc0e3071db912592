"""
Starts and stops an app of a running mutable pod, and changes limits of an app in the files of the control group.

The groups are those of any stage1, as in `minit.stage0.reports.usage`. An app that is not started yet has a group, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from minit.base.errors import MinitError, PodError, describe
from minit.linux.mountinfo import find_mounts
from minit.manifest.limits import Limits
from minit.podfiles.usersdirectory import is_of_user
from minit.stage0.apps import appadd
from minit.stage0.pods.mutablepods import manifest_lock, read_mutable_manifest, require_app
from minit.stage0.pods.poddirectory import Pod, PodState
from minit.stage0.pods.podstatus import APP_RUNNING, read_app_life
from minit.stage0.pods.privateusers import read_ids
from minit.stage0.reports.stats import read_subcgroup
from minit.stage0.reports.usage import APPS, Hierarchy, find_group, find_hierarchies, parse_table, read_file
from minit.stage0.stage1 import entrypoints
from minit.stage0.stage1.calls import EntrypointFailed, call_crossing, read_app_states

_NOT_STARTED = frozenset({"prepared", "exited"})


def start_app(pod: Pod, app: str, *, debug: bool) -> None:
    """
    Start an app that was added, or has exited; a running app goes on. PodError if the app cannot be started.

    After a failure the markers never claim that the app runs, unlike rkt's.
    """
    require_app(read_mutable_manifest(pod), app)
    if read_app_life(pod, app).state != APP_RUNNING:
        appadd.mark_started(pod, app, read_ids(pod))
    try:
        call_crossing(pod, "app/start", entrypoints.app_arguments(app, debug=debug))
    except BaseException as error:
        was_killed = isinstance(error, EntrypointFailed) and error.was_killed
        if _did_not_start(pod, app, is_certain=isinstance(error, MinitError) and not was_killed):
            appadd.unmark_started(pod, app)
        raise


def stop_app(pod: Pod, app: str, grace_seconds: float | None, *, debug: bool) -> None:
    """
    Stop an app, and return when the app has stopped; no error if it does not run. PodError if the app goes on.

    A grace period other than the app's own is an extension of minit's stage1.
    """
    require_app(read_mutable_manifest(pod), app)
    call_crossing(pod, "app/stop", entrypoints.app_stop_arguments(app, grace_seconds, debug=debug))


def _did_not_start(pod: Pod, app: str, *, is_certain: bool) -> bool:
    """
    Return whether an app is known not to run, though without a status, after the start failed or was interrupted.

    Without a supervisor to ask the answer is yes, if the failure `is_certain`.
    """
    if read_app_life(pod, app).state != APP_RUNNING:
        return False
    try:
        states = read_app_states(pod)
    except MinitError:
        return False
    return is_certain if states is None else states.get(app, "exited") in _NOT_STARTED


def change_limits(pod: Pod, app: str, limits: Limits) -> None:
    """
    Set the limits of an app that are not None; if a limit cannot be set, all limits stay as before, with a PodError.

    The limits count as long as the pod runs, also for later starts of the app.
    """
    # Of two changes one comes first, so that the other never restores half a change.
    with manifest_lock(pod):
        _change(app, _groups(pod, app), limits)


def _change(app: str, places: Sequence[tuple[Hierarchy, str]], limits: Limits) -> None:
    wanted: dict[str, str] = {}
    for controller in sorted(limits.controllers):
        place = next((place for place in places if _has_controller(*place, controller)), None)
        if place is None and controller in limits.needed_controllers:
            raise PodError(
                f'app "{app}": its control group has no controller {controller}{_reason(places, controller)}'
            )
        if place is not None:
            wanted |= _files(app, limits, controller, *place)
    try:
        before = {path: _read(path) for path in wanted}
    except OSError as error:
        raise PodError(f'app "{app}": {describe(error)}') from error
    wanted = {path: text for path, text in wanted.items() if before[path].strip() != text}
    _write(app, wanted, before)


def _reason(places: Sequence[tuple[Hierarchy, str]], controller: str) -> str:
    """Return why the group of an app lacks a controller, as far as that can be told."""
    for hierarchy, directory in places:
        around = os.path.join(directory, "../../..")
        if not hierarchy.controllers and _has_controller(hierarchy, around, controller):
            return f": the pod was run without a limit of {controller}"
    return ": none is delegated to you (see docs/rootless.md)" if is_of_user() else ""


def _groups(pod: Pod, app: str) -> list[tuple[Hierarchy, str]]:
    if pod.state is not PodState.RUNNING:
        raise PodError(f'pod "{pod.uuid}" isn\'t currently running: its state is "{pod.state}"')
    subcgroup = read_subcgroup(pod)
    if subcgroup is None and is_of_user():
        raise PodError(
            f'app "{app}": no control group is delegated to you, so there are no limits (see docs/rootless.md)'
        )
    hierarchies = find_hierarchies(find_mounts("cgroup"))
    places = [] if subcgroup is None else find_group(hierarchies, os.path.join(subcgroup, APPS, f"{app}.service"))
    if not places:
        raise PodError(f'app "{app}" of pod "{pod.uuid}" has no control groups')
    return places


def _has_controller(hierarchy: Hierarchy, directory: str, controller: str) -> bool:
    return controller in (hierarchy.controllers or read_file(directory, "cgroup.controllers").split())


def _files(app: str, limits: Limits, controller: str, hierarchy: Hierarchy, directory: str) -> Mapping[str, str]:
    """Return the texts for a controller, by the paths of files."""
    is_v2 = not hierarchy.controllers
    if not is_v2 and any(file.startswith(f"{controller}.") for file, _ in limits.unified):
        raise PodError(f'app "{app}": {controller} is in a hierarchy of v1: it has no files of v2')
    settings = limits.settings(controller, is_v2)
    if controller == "memory" and limits.memory_bytes is not None and limits.memory_bytes >= 0 and is_v2:
        # v1 refuses a limit below the use that cannot be freed; v2 would kill the app.
        stat = parse_table(read_file(directory, "memory.stat"))
        used = stat.get("anon", 0) + stat.get("shmem", 0)
        if used > limits.memory_bytes:
            raise PodError(f'app "{app}": it has {used} bytes of memory that cannot be given up')
    return {os.path.join(directory, file): text for file, text in settings}


def _write(app: str, wanted: Mapping[str, str], before: Mapping[str, str]) -> None:
    try:
        _write_in_some_order(wanted.items())
    except OSError as error:
        try:
            _write_in_some_order(before.items())
        except OSError as left:
            raise PodError(f'app "{app}": {describe(error)}; it is not all as it was: {describe(left)}') from error
        raise PodError(f'app "{app}": {describe(error)}') from error


def _write_in_some_order(files: Iterable[tuple[str, str]]) -> None:
    """Write files in an order that the kernel accepts: at no time may a limit be above a limit that bounds it."""
    pending = [*files]
    while pending:
        failed: list[tuple[str, str]] = []
        for path, text in pending:
            try:
                _write_file(path, text)
            except OSError as error:
                failed.append((path, text))
                reason = error
        if len(failed) == len(pending):
            raise reason
        pending = failed


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _write_file(path: str, text: str) -> None:
    """Write a file at once; an empty text becomes a line feed, since nothing else would be written."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode() or b"\n")
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(fd)
