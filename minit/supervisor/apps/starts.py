"""
Starts of apps, as PID 1 sees them: a process is forked, watched, heard and told to go.

The process says by a socket its progress.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from minit.base.errors import LaunchError
from minit.linux.loop import wait_readable
from minit.linux.messages import Socket, receive_message, socket_pair
from minit.linux.stdio import complain_at_once
from minit.plan.process import HANDLER_PRE_START
from minit.plan.streams import STREAM_LOG
from minit.podfiles import paths
from minit.podfiles.paths import PodEvent, app_rootfs
from minit.reaper.exit_status import ExitStatus
from minit.reaper.reaper import died_before_exec
from minit.supervisor.apps.apphelper import AppHelper
from minit.supervisor.apps.apprecords import mark_started
from minit.supervisor.apps.apprun import BEGUN, EXECUTED, Run, Words
from minit.supervisor.apps.context import Context
from minit.supervisor.apps.handlers import Handlers
from minit.supervisor.apps.lifecycle import Event, State
from minit.supervisor.apps.pidgroup import PidGroup
from minit.supervisor.apps.podapp import App
from minit.supervisor.apps.processes import describe_processes
from minit.supervisor.exec.child import ChildEnds, fork_app
from minit.supervisor.exec.notifyends import NotifyEnds

# For making the root of an added app; only a hanging volume takes so long.
BUILD_SECONDS = 60.0


class Starts:
    """The starts of a pod's apps; `on_process_end` is called when the process of an app has ended, unreaped."""

    def __init__(self, context: Context, handlers: Handlers, on_process_end: Callable[[App], None]) -> None:
        self._context = context
        self._handlers = handlers
        self._on_process_end = on_process_end

    def watch(self, app: App) -> None:
        """Hear a new process, and see the end of the process."""
        assert app.run.report is not None and app.run.pidfd is not None
        self._hear_from(app, app.run.report)
        self._see_end_of(app, app.run.pidfd)
        self._context.listeners.listen(app)

    def _hear_from(self, app: App, report: Socket) -> None:
        self._context.loop.watch(report.fileno(), lambda _: self.hear(app))

    def _see_end_of(self, app: App, pidfd: int) -> None:
        self._context.loop.watch(pidfd, lambda _: self._on_process_end(app))

    def resume(self, app: App) -> None:
        """Hear and see again an app that another program has started, as far as something is still to come."""
        app.run.streams.pid = app.run.pid
        if app.run.report is not None and app.run.pid is not None:
            self._hear_from(app, app.run.report)
        elif app.run.report is not None:
            # It was never forked.
            app.run.close_fields("report")
            app.starts -= 1
        if app.run.pidfd is not None and app.run.reaped is None and app.run.end is None:
            self._see_end_of(app, app.run.pidfd)
        if app.run.reaped is None:
            self._context.listeners.listen(app)
        for helper in app.helpers:
            self._watch_helper(app, helper)
        if app.run.streams.need_sidecar and app.run.pid is not None:
            self._context.sidecars.admit(app.run.streams)

    def add(self, app: App) -> None:
        """Take in an app with a forked builder."""
        self._context.pod.apps[app.name] = app
        app.run.deadline = time.monotonic() + BUILD_SECONDS
        self.watch(app)
        for helper in app.helpers:
            self._watch_helper(app, helper)
        self._context.notify(app)

    def hear(self, app: App) -> None:
        """Hear that the process of an app has prepared itself, has failed, or says nothing any more."""
        run = app.run
        assert run.report is not None
        run.words.append(receive_message(run.report))
        self.heed(app)

    def heed(self, app: App) -> None:
        """Act on the words of the process of an app."""
        run = app.run
        with self._context.work_for(app):
            while run.words:
                self._heed(app, run, run.words[0])
                del run.words[0]

    def _heed(self, app: App, run: Run, words: Words) -> None:
        message, descriptors = words
        if message is not None and "pids" in message:
            [run.pids] = descriptors
            return
        if message is not None and "prepared" in message:
            if descriptors and app.namespace in (None, *descriptors):
                [app.namespace] = descriptors
            elif descriptors:
                [run.namespace] = descriptors
            notes = message["prepared"]
            assert isinstance(notes, list)
            for note in notes:
                complain_at_once(f'stage1: warning: app "{app.name}": {note}')
            self._context.handle(app, Event.READY_TO_EXEC)
            if app.state == State.PREPARED:
                self._context.pod.order.on_prepared(app)
            return
        if message is not None:
            run.failure = failure_of(message)
        # End of file: either the exec closed the socket, or the process is about to be reaped.
        if run.report is not None:
            self._context.loop.unwatch(run.report.fileno())
            run.close_fields("report")
        if run.reached >= EXECUTED and run.pid is not None and self._context.pod.is_asked_to_end(app):
            # The signal may have come first; an exec changes the flags before the first close.
            run.died_before_exec = run.died_before_exec or died_before_exec(run.pid, is_dying=True)
        if run.has_executed:
            run.started_ns = time.time_ns()
            if self._context.traits.mutable:
                self._context.records.note_state(app)
            if run.post_start_pending and run.reaped is None:
                self._context.handle(app, Event.HANDLE_RUNNING)
        self._context.notify(app)
        if not self._context.pod.order.starting:
            # Before, sidecars would take processors from starting apps; a ready pod has sidecars.
            self._context.sidecars.start_all()
        self._context.pod.on_progress(app)

    def on_built(self, app: App, status: ExitStatus) -> None:
        """Act on the end of the builder of an app's root."""
        run = app.run
        if app.state == State.BUILDING:
            run.deadline = None
        else:
            run.failure = ExitStatus(step="build the root", path="given up")
        if run.failure is None and (status.code != 0 or app.namespace is None):
            run.failure = ExitStatus(step="build the root", path=status.describe())
        if run.failure is None:
            app.begin_again()
            self._context.records.note_state(app)
            self._context.handle(app, Event.BUILT)
        else:
            self._context.handle(app, Event.BUILD_FAILED)

    def spawn_again(self, app: App) -> None:
        """Fork the process of an app once more, in the same root."""
        app.begin_again(by_itself=app.is_restarting)
        if app.restarts is not None:
            # The new run has the last one only if nobody has asked for the start.
            app.restarts.begin(by_itself=app.run.last is not None)
        app.run.oom_kills = app.group.memory.oom_kills()
        try:
            self._context.records.unmark_log_end(app)
            spawn_app(app, pids=self._pids_to_join(app))
        except (OSError, LaunchError) as error:
            number = error.errno if isinstance(error, OSError) else None
            app.run.failure = ExitStatus(step="fork", errno=number, path=None if number else str(error))
            self._context.handle(app, Event.FORK_FAILED)
            return
        self._context.journal.event(PodEvent.APP_STARTED_AGAIN, app=app.name, starts=app.starts)
        self.watch(app)
        if app.run.streams.need_sidecar:
            self._context.sidecars.start(app.run.streams)

    def _pids_to_join(self, app: App) -> int | None:
        """Return the PID namespace of another app for an app to join, None for the pod's; LaunchError if gone."""
        name = app.spec.process.pids_of
        if name is None:
            return None
        run = None if name not in self._context.pod.apps else self._context.pod.apps[name].run
        if run is None or not run.has_executed or run.pidfd is None or wait_readable([run.pidfd], 0):
            raise LaunchError(f'app "{name}", whose PID namespace it joins, does not run')
        return run.pids

    def _watch_helper(self, app: App, helper: AppHelper) -> None:
        def on_word(_: int) -> None:
            if not helper.read():
                self._context.loop.unwatch(helper.link.fileno())
                self._context.journal.event(PodEvent.APP_HELPER_DIED, app=app.name, helper=helper.kind)

        self._context.loop.watch(helper.link.fileno(), on_word)

    def fork(self, app: App) -> None:
        """Start an app again, by itself or because somebody asks for it."""
        if app.run.pid is not None and app.run.reaped is None and app.run.end is None:
            return  # it was forked before an error
        self._context.records.forget_end(app)
        self.spawn_again(app)

    def run_pre_start(self, app: App) -> None:
        """Run the pre-start handler of a prepared app."""
        app.run.reached = BEGUN
        self._handlers.run(app)

    def tell_to_execute(self, app: App) -> None:
        """Tell the process of a prepared app to execute the program."""
        run = app.run
        if run.report is None:
            return  # it failed after preparing itself, and is about to be reaped
        step, path = "remove the last status", paths.status_file(app.name)
        try:
            # Not before: a start given up leaves the app with the last end.
            self._context.records.remove_status(app)
            if self._context.pod.order.is_marked_at_exec(app):
                step, path = "mark as started", paths.started_marker(app.name)
                mark_started(app)
        except OSError as error:
            run.failure = ExitStatus(step=step, errno=error.errno, path=path)
            self._context.handle(app, Event.KILL)
            return
        run.reached = EXECUTED
        run.executed_at = time.monotonic()
        self._context.sidecars.start_soon(run.streams)
        try:
            run.report.send(b"go")
        except (BrokenPipeError, ConnectionResetError):
            pass  # it died after preparing itself, and is about to be reaped

    def fail(self, app: App) -> None:
        """Note a failed start, since processes of the pre-start handler cannot be killed."""
        left = describe_processes(app, but=app.run.pid)
        app.run.failure = ExitStatus(step=HANDLER_PRE_START, path=f"unkillable processes that it left: {left}")


def failure_of(message: dict[str, object]) -> ExitStatus:
    """Return the failure that the process of an app tells."""
    step, number, path = message["step"], message.get("errno"), message.get("path")
    assert isinstance(step, str) and (number is None or isinstance(number, int))
    assert path is None or isinstance(path, str)
    return ExitStatus(step=step, errno=number, path=path)


def spawn_app(
    app: App,
    trees: tuple[int, ...] = (),
    console: int | None = None,
    dev: int | None = None,
    pids: int | None = None,
) -> None:
    """
    Fork the process of `app`, which prepares itself and waits for "go".

    The process starts in the app's v2 group, if PID 1 may start processes there, and joins the v1 groups itself, or
    without groups starts in a new PID namespace. `trees` are the detached mounts of the volumes, `console` is the
    slave of the pod's console, `dev` a detached /dev for an app that may not make one, `pids` the PID namespace of
    another app to join. Started again, the app finds the root in its namespace. OSError, and nothing left, without a
    process or room for the streams.
    """
    if isinstance(app.group, PidGroup):
        try:
            app.run.pids = pids = app.group.begin()
        except OSError as error:
            raise app.group.explain(error) from error
    birthplace = app.group.birthplace
    writers = _open_streams(app)
    ours, theirs = socket_pair()
    notify: NotifyEnds | None = None
    try:
        notify = None if app.readiness is None else app.readiness.open(app.spec)
        child = ChildEnds(
            report=theirs,
            stdin=writers.get("stdin"),
            stdout=writers.get("stdout"),
            stderr=writers.get("stderr"),
            tty=writers.get("tty"),
            console=console if app.spec.streams.has_console else None,
            cgroup_tasks=app.ends.tasks,
            attributes=app.attributes,
            trees=trees,
            dev=dev,
            sockets=app.sockets,
            notify=notify,
            namespace=app.namespace,
            group=app.ends.directory if app.ends.starts_processes and birthplace is None else None,
        )
        app.starts += 1
        app.run.report = ours
        # Fork and registration in one step: nothing may be reaped between them, nor an error lose the process.
        app.run.pid, app.run.pidfd = fork_app(app.spec, app_rootfs(app.name), child, birthplace, pids)
    except OSError as error:
        if app.run.report is not None:
            app.starts -= 1
            app.run.report = None
        ours.close()
        app.run.streams.close()
        raise app.group.explain(error) from error
    finally:
        theirs.close()
        for fd in (*writers.values(), *(() if notify is None else notify.descriptors())):
            os.close(fd)
    app.run.streams.pid = app.run.pid


def _open_streams(app: App) -> dict[str, int]:
    """Make the app's streams and return the app's ends to the caller, by name."""
    modes = {"stdout": app.spec.streams.stdout, "stderr": app.spec.streams.stderr}
    writers = app.run.streams.open(
        [name for name, mode in modes.items() if mode == STREAM_LOG], app.spec.confinement.uid, app.spec.confinement.gid
    )
    if app.spec.streams.is_attachable:
        try:
            writers |= app.run.streams.open_attachable(app.spec)
        except OSError:
            for fd in writers.values():
                os.close(fd)
            app.run.streams.close()
            raise
    return writers
