"""
Other programs that run in an app's surroundings: event handlers of the image, as root before the app starts or after it
ended, and hooks, as the app while it runs.

PID 1's half forks it; the other half runs in a process of its own, first with PID 1's view of the pod, then inside the
app's mount namespace, where nothing may be imported. A failure there before the exec is a line on the handler's
standard error, which is logged like the app's.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from minit.base.errors import EXIT_EXEC_FAILED, EXIT_FAILURE, Step, step_of
from minit.base.harmless import harmless
from minit.linux import syscalls
from minit.linux.forks import HANDLER, Kept, clone
from minit.linux.process import join_cgroups, join_v2_group, set_oom_score, take_attributes
from minit.plan.appplan import STREAM_NULL, AppSpec
from minit.plan.confinement import confinement_of, confinement_of_handler
from minit.reaper.diagnose import diagnose_exec
from minit.reaper.exit_status import STEP_EXEC, ExitStatus
from minit.supervisor.apps.apprun import Handler
from minit.supervisor.apps.podapp import App
from minit.supervisor.exec.child import NotFound, find_executable
from minit.supervisor.exec.privileges import Command, choose_profile, execute
from minit.supervisor.output.streams import Streams


def spawn_handler(app: App, name: str) -> Handler:
    """
    Fork the handler or hook `name` of a prepared app and return it; OSError, and nothing left, if there is no process.
    """
    streams = Streams(app.name, app.run.streams.log)
    # Logged also where the app has the console: a handler is no part of what goes on there.
    modes = {"stdout": app.spec.streams.stdout, "stderr": app.spec.streams.stderr}
    writers = streams.open(name for name, mode in modes.items() if mode != STREAM_NULL)
    try:
        kept: dict[str, Kept] = {
            "mount namespace": app.present_namespace,
            "control groups": (app.ends.directory, *app.ends.tasks),
            "stdout": writers.get("stdout"),
            "stderr": writers.get("stderr"),
        }
        pid, pidfd = clone(HANDLER, lambda: _run(app, name), kept, pids=app.run.pids, tell=_fail)
    except OSError:
        streams.close()
        raise
    finally:
        for fd in writers.values():
            os.close(fd)
    streams.pid = pid
    return Handler(name, pid, pidfd, streams)


def _run(app: App, name: str) -> NoReturn:
    spec, hook = app.spec, app.spec.life.hooks.get(name)
    confinement = confinement_of_handler(spec) if hook is None else confinement_of(spec)
    choose_profile(confinement)
    _enter_app(app, is_hook=hook is not None)
    words = spec.life.handlers.get(name, ()) if hook is None else (hook.command, *hook.arguments)
    path = words[0]

    def look_up() -> None:
        nonlocal path
        if hook is not None:
            with Step("find executable"):
                path = find_executable(hook)
        with Step("change directory to"):
            os.chdir(spec.process.working_directory)

    execute(confinement, look_up, lambda: _encode(spec, path, words))


def _fail(error: BaseException) -> int:
    step = step_of(error)
    if step == STEP_EXEC and isinstance(error, OSError):
        reason = diagnose_exec(os.fsdecode(error.filename), errno.ENOENT if error.errno is None else error.errno)
    else:
        reason = _describe_step(step, error)
    with suppress(OSError):
        os.write(2, f"Error: {harmless(reason)}\n".encode())
    return EXIT_EXEC_FAILED if step == STEP_EXEC else EXIT_FAILURE


def _enter_app(app: App, *, is_hook: bool) -> None:
    assert app.present_namespace is not None
    with Step("join control groups"):
        if app.ends.starts_processes:
            join_v2_group(app.ends.directory)
        join_cgroups(app.ends.tasks)
        if is_hook and app.spec.has_group_namespace:
            syscalls.unshare(syscalls.CLONE_NEWCGROUP)
    with Step("set oom_score_adj"):
        set_oom_score((app.spec.resources.oom_score_adj or 0) if is_hook else 0)
    with Step("set resource limits"):
        take_attributes(app.attributes)
    with Step("join mount namespace"):
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
