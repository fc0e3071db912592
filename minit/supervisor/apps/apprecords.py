"""
The records of apps: the end of each app, and the markers of progress.

A failed write or removal, on a full disk say, is remembered and done later.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from minit.base.carried import Carried
from minit.base.errors import describe
from minit.linux.stdio import complain_at_once
from minit.podfiles import paths
from minit.podfiles.paths import PodEvent
from minit.reaper.record import note_state, record_exit, record_state, remove_file, write_file
from minit.supervisor.apps.podapp import App
from minit.supervisor.journal import Journal


class Records(Carried):
    """The files of apps; `retry` is called when `catch_up` has something to do later."""

    _unwritten: dict[str, App]
    _recorded: set[str]
    _late: set[str]
    # Files of a run before, and complete logs without a marker.
    _stale: dict[str, App]
    _unmarked: dict[str, App]

    def __init__(self, journal: Journal, retry: Callable[[], None]) -> None:
        self._journal = journal
        self._retry = retry
        self._unwritten = {}
        self._recorded = set()
        self._late = set()
        self._stale = {}
        self._unmarked = {}

    def write_end(self, app: App) -> None:
        """Write the end of an app, or later findings about the end, now or later."""
        self._unwritten[app.name] = app
        self._stale.pop(paths.status_file(app.name), None)
        self._write_ends()

    def catch_up(self) -> None:
        """Do the work that failed before."""
        self._write_ends()
        for path, app in sorted(self._stale.items(), key=lambda item: item[0]):
            self._remove(app, path)
        for name in sorted(self._unmarked):
            self.mark_log_end(self._unmarked[name])

    def _write_ends(self) -> None:
        for name, app in sorted(self._unwritten.items()):
            assert app.run.end is not None
            try:
                if name not in self._recorded:
                    # A reader of the status finds the reason too, and waits for the disk once only.
                    note_state(name, state_of(app))
                    record_exit(name, app.run.end.number)
                    self._recorded.add(name)
                record_state(name, state_of(app))
            except OSError as error:
                # PID 1 lives on and tries again: the app's end must not be lost to a full disk.
                self._journal.info("status.unwritten", app=name, reason=describe(error))
                self._late.add(name)
                self._retry()
            else:
                del self._unwritten[name]
                if name in self._late:
                    # A look at the end of the app found nothing.
                    self._late.remove(name)
                    self._journal.event(PodEvent.APP_END_WRITTEN, app=name)

    def write_last_ends(self) -> None:
        """Try failed writes once more, and name the statuses lost by another failure."""
        self.catch_up()
        for name, app in sorted(self._unwritten.items()):
            if name not in self._recorded and app.run.end is not None:
                complain_at_once(f'stage1: app "{name}": status {app.run.end.number} could not be written')

    def forget_end(self, app: App) -> None:
        """Forget an end, written or not: the app is started again, or removed."""
        self._recorded.discard(app.name)
        self._late.discard(app.name)
        self._unwritten.pop(app.name, None)
        self._unmarked.pop(app.name, None)
        for path in (paths.status_file(app.name), paths.log_end_marker(app.name)):
            self._stale.pop(path, None)

    def remove_status(self, app: App) -> None:
        """Remove the status of an ended app; OSError for a failure."""
        self._remove(app, paths.status_file(app.name))

    def unmark_log_end(self, app: App) -> None:
        """Tell followers of the app's log that there is more to come; OSError for a failure."""
        self._remove(app, paths.log_end_marker(app.name))

    def _remove(self, app: App, path: str) -> None:
        try:
            remove_file(path)
            self._stale.pop(path, None)
        except OSError as error:
            # On a disk that has failed (ext4(5), "errors=") the file stays for now, and the app starts all the same:
            # nobody can be told anything there.
            if error.errno != errno.EROFS and path not in self._stale:
                raise
            self._journal.info("status.unremoved", app=app.name, reason=describe(error))
            self._stale[path] = app
            self._retry()

    def note_state(self, app: App) -> None:
        """Write the state of an app before the end."""
        try:
            note_state(app.name, state_of(app))
        except OSError as error:
            # The end is written, and tried again; until then nobody depends on the file.
            self._journal.info("state.unwritten", app=app.name, reason=describe(error))

    def mark_log_end(self, app: App) -> None:
        """Tell followers of the app's log that the log is complete, now or later."""
        self._stale.pop(paths.log_end_marker(app.name), None)
        try:
            write_file(paths.log_end_marker(app.name), b"")
        except OSError as error:
            self._journal.info("log.end-unmarked", app=app.name, reason=describe(error))
            self._unmarked[app.name] = app
            self._retry()
        else:
            self._unmarked.pop(app.name, None)


def mark_started(app: App) -> None:
    """Tell stage0 that the app has been started; OSError for a failure."""
    path = paths.started_marker(app.name)
    try:
        write_file(path, b"")
    except OSError as error:
        # A marker of stage0, which may belong to the host's root, or that of an earlier start, on a disk that has
        # failed.
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or not os.path.exists(path):
            raise


def write_environment(app: str, environment: tuple[tuple[str, str], ...]) -> None:
    """Write the variables of an app for `enter`."""
    # One variable per line without quoting: a variable with a newline has no form, so `enter` does without.
    lines = [f"{name}={value}\n" for name, value in environment if "\n" not in value]
    write_file(paths.env_file(app), "".join(lines).encode(errors="surrogateescape"))


def state_of(app: App) -> dict[str, object]:
    """Return minit's own record of an app: times in nanoseconds since 1970, and the end with the reason, if any."""
    run = app.run
    state: dict[str, object] = {"app": app.name, "created": app.created_ns}
    if run.started_ns is not None:
        state["started"] = run.started_ns
    state["restarts"] = max(0, app.starts - 1)
    if app.group.is_frozen:
        state["paused"] = True
    if app.lost_bytes is not None:
        state["lost_output_bytes"] = app.lost_bytes
    if run.end is None or run.end.status is None:
        return state
    status = run.end.status
    state |= {"finished": run.end.ns, "status": run.end.number, "end": status.describe(), "reason": run.end.reason}
    for field in ("code", "signal", "step", "errno", "path"):
        value = getattr(status, field)
        if value is not None:
            state[field] = value
    if run.post_stop_failure is not None:
        state["post-stop"] = run.post_stop_failure.describe()
    return state
