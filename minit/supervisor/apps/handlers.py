"""
Other programs in an app's surroundings: event handlers of the image, and hooks.

A handler runs as root, before the app starts or after the app has ended; a hook runs as the app, while the app runs.
PID 1 starts both, puts them off when there is no process, and acts on their ends. The process itself begins with PID
1's view of the pod and goes on in the app's mount namespace, where nothing may be imported. A failure there before the
exec is a line on the handler's standard error, which is logged like the app's.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from minit.base.carried import Carried
from minit.base.errors import EXIT_EXEC_FAILED, EXIT_FAILURE, Step, describe, step_of
from minit.base.harmless import harmless
from minit.linux import syscalls
from minit.linux.forks import HANDLER, Kept, clone
from minit.linux.process import admit_limits, join_cgroups, join_v2_group, set_oom_score, take_attributes
from minit.linux.stdio import complain_at_once
from minit.plan.appspec import AppSpec
from minit.plan.life.hooks import HOOK_POST_START, HOOK_PRE_STOP, HOOKS
from minit.plan.process import HANDLER_POST_STOP, HANDLER_PRE_START
from minit.plan.streams import STREAM_NULL
from minit.podfiles.paths import PodEvent, app_rootfs
from minit.reaper.diagnose import diagnose_exec
from minit.reaper.exit_status import STEP_EXEC, ExitStatus
from minit.supervisor.apps.apprun import Handler
from minit.supervisor.apps.context import Context
from minit.supervisor.apps.lifecycle import Event, State
from minit.supervisor.apps.pidgroup import PidGroup
from minit.supervisor.apps.podapp import App
from minit.supervisor.exec.child import NotFound, copy_root, find_executable
from minit.supervisor.exec.privileges import Command, choose_profile, execute
from minit.supervisor.output.streams import Streams
from minit.supervisor.root.applymounts import enter_root

FORK_PAUSE_SECONDS = 0.005
"""Before the second attempt to fork; it doubles with each."""

# A fork can fail for a moment, while a neighbour takes all processes, say.
_FORK_ATTEMPTS = 10
_LONGEST_PAUSE_SECONDS = 1.0
_HANDLER_OF = {
    State.PRE_START: HANDLER_PRE_START,
    State.POST_START: HOOK_POST_START,
    State.PRE_STOP: HOOK_PRE_STOP,
    State.POST_STOP: HANDLER_POST_STOP,
}


class Handlers(Carried):
    """Runs the handler or hook that the state of an app calls for; its end is an event of the app."""

    _failed_forks: dict[str, int]

    def __init__(self, context: Context) -> None:
        self._context = context
        self._journal = context.journal
        self._retry = context.loop.deadline(self._run_put_off)
        self._waking = context.loop.deadline(self._wake)
        self._failed_forks = {}

    def run(self, app: App) -> None:
        """Start the handler or hook of an app that has come to the state for it; a hook that still runs ends first."""
        self._failed_forks.pop(app.name, None)
        app.run.wakes_at = None
        if app.run.handler is not None and app.run.handler.name == _HANDLER_OF.get(app.state):
            return  # it was started before an error
        if app.run.handler is not None:
            syscalls.send_signals(app.run.handler.pidfd, signal.SIGKILL)
        else:
            self._run(app)

    def end_late(self, app: App) -> None:
        """End the pre-stop hook of an app, which takes longer than the app has."""
        complain_at_once(f'stage1: app "{app.name}": {HOOK_PRE_STOP}: not over within the grace period')
        if app.run.handler is not None:
            syscalls.send_signals(app.run.handler.pidfd, signal.SIGKILL)
        if app.run.wakes_at is not None:
            self._journal.event(PodEvent.HANDLER_ENDED, app=app.name, handler=HOOK_PRE_STOP, end="cut short")

    def on_end(self, app: App, status: ExitStatus) -> None:
        """Act on the end of the handler or hook of an app, which has been reaped."""
        handler = app.run.handler
        assert handler is not None
        app.run.ended_handler, app.run.handler = (handler.name, status), None
        os.close(handler.pidfd)
        self._journal.event(PodEvent.HANDLER_ENDED, app=app.name, handler=handler.name, end=status.describe())
        self._conclude(app)

    def _conclude(self, app: App) -> None:
        """Have the app go on after the end of a handler or hook."""
        assert app.run.ended_handler is not None
        run, (name, status) = app.run, app.run.ended_handler
        with self._context.work_for(app):
            if name in HOOKS and _HANDLER_OF.get(app.state) != name:
                # It was ended with its app, or before the next one.
                if app.state == State.PRE_STOP and app.run.handler is None:
                    self._run(app)
            elif status.code == 0:
                self._succeed(app)
            else:
                self._fail(app, name, status)
            run.ended_handler = None

    def _run(self, app: App) -> None:
        name = _HANDLER_OF[app.state]
        hook = app.spec.life.hooks.get(name)
        if hook is not None and hook.sleep_seconds is not None:
            self._journal.event(PodEvent.HANDLER_STARTED, app=app.name, handler=name, sleep_seconds=hook.sleep_seconds)
            app.run.wakes_at = time.monotonic() + hook.sleep_seconds
            self._set_waking()
            return
        try:
            spawn_handler(app, name)
        except OSError as error:
            self._put_off(app, name, error)
            return
        self._failed_forks.pop(app.name, None)
        assert app.run.handler is not None
        self._journal.event(PodEvent.HANDLER_STARTED, app=app.name, handler=name, pid=app.run.handler.pid)
        self._attend(app, app.run.handler)

    def _attend(self, app: App, handler: Handler) -> None:
        """Note the start of a handler, and have its output read."""
        handler.streams.pid = handler.pid
        if handler.name == HANDLER_POST_STOP:
            app.run.post_stop_pending = False
        if handler.streams.ends:
            self._context.sidecars.admit(handler.streams)

    def _set_waking(self) -> None:
        """Have the next sleep end in time; apps that have gone on meanwhile sleep no more."""
        asleep = (app for app in self._context.apps.values() if app.state in _HANDLER_OF)
        moments = [app.run.wakes_at for app in asleep if app.run.wakes_at is not None]
        if moments:
            self._waking.set(min(moments))

    def _wake(self) -> None:
        """Act on the ends of sleeps."""
        now = time.monotonic()
        for app in [*self._context.apps.values()]:
            run = app.run
            if run.wakes_at is not None and run.wakes_at <= now and app.state in _HANDLER_OF:
                name = _HANDLER_OF[app.state]
                self._journal.event(PodEvent.HANDLER_ENDED, app=app.name, handler=name, end="slept")
                self._succeed(app)
                run.wakes_at = None
        self._set_waking()

    def resume(self) -> None:
        """
        Look after running handlers, forget handlers that were never forked, and go on after handlers that have ended.

        Before all other events: a later handler of the app could be taken for the ended handler.
        """
        for app in [*self._context.apps.values()]:
            if app.run.handler is not None and app.run.handler.pid:
                self._attend(app, app.run.handler)
            elif app.run.handler is not None:
                handler, app.run.handler = app.run.handler, None
                handler.streams.close()
            if app.run.ended_handler is not None:
                self._conclude(app)

    def catch_up(self) -> None:
        """Look after sleeps, and fork what was put off."""
        self._set_waking()
        self._run_put_off()

    def _succeed(self, app: App) -> None:
        if app.state == State.POST_START:
            app.run.post_start_pending = False
        self._context.handle(app, Event.HANDLED)

    def _run_put_off(self) -> None:
        for app in [*self._context.apps.values()]:
            if app.name in self._failed_forks and app.run.handler is None and app.state in _HANDLER_OF:
                self._run(app)

    def _put_off(self, app: App, name: str, error: OSError) -> None:
        """Fork the handler a little later; after many attempts it has failed."""
        failed_forks = self._failed_forks[app.name] = self._failed_forks.get(app.name, 0) + 1
        self._journal.info("handler.not-started", app=app.name, handler=name, reason=describe(error))
        if failed_forks < _FORK_ATTEMPTS:
            delay_seconds = min(FORK_PAUSE_SECONDS * 2**failed_forks, _LONGEST_PAUSE_SECONDS)
            self._retry.set(time.monotonic() + delay_seconds)
        else:
            self._fail(app, name, ExitStatus(step="fork", errno=error.errno))

    def _fail(self, app: App, name: str, status: ExitStatus) -> None:
        failure = ExitStatus(step=name, path=status.describe())
        if name == HOOK_POST_START:
            self._context.pod.end_failed(app, failure)
            return
        if name == HOOK_PRE_STOP:
            # Nothing else follows from it (Kubernetes).
            _complain(app, failure)
        elif name == HANDLER_POST_STOP:
            # The app has its status; that its handler failed is said beside it.
            _complain(app, failure)
            app.run.post_stop_pending = False
            app.run.post_stop_failure = status
            if app.run.end is not None and app.run.end.status is not None:
                self._context.records.write_end(app)
        elif app.state == State.PRE_START:
            app.run.failure = failure
        self._context.handle(app, Event.HANDLER_FAILED)


def _complain(app: App, failure: ExitStatus) -> None:
    complain_at_once(f'stage1: app "{app.name}": {failure.describe()}')
    if app.oom_kills > 0:
        complain_at_once(f'stage1: app "{app.name}": {app.describe_oom_kills(is_main=False)}')


def spawn_handler(app: App, name: str) -> None:
    """
    Fork the handler or hook `name` of a prepared app; OSError, and nothing left, if there is no process.
    """
    streams = Streams(app.name, app.run.streams.log)
    handler = app.run.handler = Handler(name, 0, -1, streams)
    # Logged also where the app has the console: a handler is no part of what goes on there.
    modes = {"stdout": app.spec.streams.stdout, "stderr": app.spec.streams.stderr}
    writers: dict[str, int] = {}
    try:
        writers = streams.open(name for name, mode in modes.items() if mode != STREAM_NULL)
        is_new = isinstance(app.group, PidGroup) and not app.group.is_alive
        if isinstance(app.group, PidGroup) and is_new:
            # A post-stop handler, and all before was killed.
            _replace_pids(app, app.group)
        kept: dict[str, Kept] = {
            "mount namespace": app.present_namespace,
            "control groups": (app.ends.directory, *app.ends.tasks),
            "stdout": writers.get("stdout"),
            "stderr": writers.get("stderr"),
        }
        pids = app.run.pids
        # Fork and registration in one step: an error in between would lose the process.
        handler.pid, handler.pidfd = clone(
            HANDLER, lambda: _run(app, name, has_new_pids=is_new), kept, pids=pids, tell=_fail
        )
    except OSError:
        app.run.handler = None
        streams.close()
        raise
    finally:
        for fd in writers.values():
            os.close(fd)


def _replace_pids(app: App, group: PidGroup) -> None:
    app.run.close_fields("pids")
    app.run.pids = group.begin()


def _run(app: App, name: str, *, has_new_pids: bool) -> NoReturn:
    spec, hook = app.spec, app.spec.life.hooks.get(name)
    confinement = spec.handler_confinement if hook is None else spec.confinement
    choose_profile(confinement)
    _enter_app(app, is_hook=hook is not None, has_new_pids=has_new_pids)
    words = spec.life.handlers.get(name, ()) if hook is None else (hook.command, *hook.arguments)
    path = words[0]

    def look_up() -> None:
        nonlocal path
        if hook is not None:
            with Step("find executable"):
                path = find_executable(hook)
        with Step("change directory to"):
            os.chdir(spec.process.working_directory)

    execute(confinement, spec.resources.rlimits, look_up, lambda: _encode(spec, path, words))


def _fail(error: BaseException) -> int:
    step = step_of(error)
    if step == STEP_EXEC and isinstance(error, OSError):
        reason = diagnose_exec(os.fsdecode(error.filename), errno.ENOENT if error.errno is None else error.errno)
    else:
        reason = _describe_step(step, error)
    with suppress(OSError):
        os.write(2, f"Error: {harmless(reason)}\n".encode())
    return EXIT_EXEC_FAILED if step == STEP_EXEC else EXIT_FAILURE


def _enter_app(app: App, *, is_hook: bool, has_new_pids: bool) -> None:
    assert app.present_namespace is not None
    with Step("join control groups"):
        if app.ends.starts_processes and app.ends.directory is not None:
            join_v2_group(app.ends.directory)
        join_cgroups(app.ends.tasks)
        if is_hook and app.spec.has_group_namespace:
            syscalls.unshare(syscalls.CLONE_NEWCGROUP)
    with Step("set oom_score_adj"):
        set_oom_score((app.spec.resources.oom_score_adj or 0) if is_hook else 0)
    with Step("take the attributes of the app"):
        take_attributes(app.attributes)
        admit_limits(app.spec.resources.rlimits)
    with Step("join mount namespace"):
        if has_new_pids:
            root = copy_root(app.spec, app_rootfs(app.name), app.present_namespace)
            syscalls.set_dumpable(False)
            enter_root(root)
        else:
            syscalls.set_dumpable(False)
            syscalls.setns(app.present_namespace, syscalls.CLONE_NEWNS)
        os.umask(0o022)
    with Step("close descriptors"):
        # Before any path of the manifest or the image is followed: /proc/self/fd leads to the host's control groups.
        syscalls.close_range(3)


def _encode(spec: AppSpec, path: str, words: Sequence[str]) -> Command:
    with Step("encode arguments"):
        environment = {os.fsencode(key): os.fsencode(value) for key, value in spec.process.environment}
        return path, [os.fsencode(word) for word in words], environment


def _describe_step(step: str, error: BaseException) -> str:
    if isinstance(error, NotFound):
        return f"{step}: {error}"
    if not isinstance(error, OSError) or error.errno is None:
        return f"{step}: {error!r}"
    path = None if error.filename is None else os.fsdecode(error.filename)
    return ExitStatus(step=step, errno=error.errno, path=path).describe()
