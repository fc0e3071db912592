"""
Event handlers: a program of the image that runs as root in an app's surroundings before it starts or after it ended.

PID 1's half forks it; the other half runs in a process of its own, first with PID 1's view of the pod, then inside
the app's mount namespace, where nothing may be imported. What goes wrong there before the exec is a line on the
handler's standard error, which is logged like the app's.
"""

from __future__ import annotations

import errno
import os
from typing import NoReturn

from minit import syscalls
from minit.errors import EXIT_EXEC_FAILED, EXIT_FAILURE
from minit.harmless import harmless
from minit.manifest.seccomp import DEFAULT_POLICY
from minit.plan.app import STREAM_NULL
from minit.plan.confinement import confinement_of_handler
from minit.process import join_cgroups, join_v2_group, set_oom_score, take_attributes
from minit.reaper.diagnose import check_exec, diagnose_exec
from minit.reaper.exit_status import STEP_EXEC, ExitStatus
from minit.supervisor.apps.apprun import Handler
from minit.supervisor.apps.podapp import App
from minit.supervisor.exec.privileges import become, give_up_capabilities, install_filters
from minit.supervisor.output.streams import Streams


def spawn_handler(app: App, name: str) -> Handler:
    """Fork the handler `name` of a prepared app and return it; OSError, and nothing left, if there is no process."""
    streams = Streams(app.name, app.run.streams.log)
    # Logged also where the app has the console: a handler is no part of what goes on there.
    modes = {"stdout": app.spec.stdout, "stderr": app.spec.stderr}
    writers = streams.open(name for name, mode in modes.items() if mode != STREAM_NULL)
    try:
        pid, pidfd = syscalls.clone3()
        if pid == 0:
            _become_handler(app, name, writers)
    except OSError:
        streams.close()
        raise
    finally:
        for fd in writers.values():
            os.close(fd)
    streams.pid = pid
    return Handler(name, pid, pidfd, streams)


def _become_handler(app: App, name: str, writers: dict[str, int]) -> NoReturn:
    """Turn this forked process into the handler; never returns."""
    step, path = "close descriptors", ""

    def begin(name: str) -> None:
        nonlocal step
        step = name

    try:
        assert app.namespace is not None
        syscalls.close_all_but((0, 1, 2, app.namespace, app.ends.directory, *app.ends.tasks, *writers.values()))
        step = "open standard streams"
        # Before the app's root is entered: the pod's /dev/null is one that no app can have replaced.
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for number, fd in enumerate((null, writers.get("stdout", null), writers.get("stderr", null))):
            os.dup2(fd, number)
        step = "start session"
        os.setsid()
        step = "join control groups"
        if app.ends.starts_processes:
            join_v2_group(app.ends.directory)
        join_cgroups(app.ends.tasks)
        step = "set oom_score_adj"
        set_oom_score(0)
        step = "set resource limits"
        take_attributes(app.attributes)
        step = "encode arguments"
        arguments = [os.fsencode(word) for word in app.spec.handlers[name]]
        environment = {os.fsencode(key): os.fsencode(value) for key, value in app.spec.environment}
        confinement = confinement_of_handler(app.spec)
        step = "join mount namespace"
        syscalls.set_dumpable(False)
        syscalls.setns(app.namespace, syscalls.CLONE_NEWNS)
        os.umask(0o022)
        step = "close descriptors"
        # Before any path of the manifest or the image is followed: /proc/self/fd leads to the host's control groups.
        syscalls.close_range(3)
        step = "drop capabilities"
        give_up_capabilities(confinement)
        step = "change directory to"
        os.chdir(app.spec.working_directory)
        become(confinement, begin)
        step, path = STEP_EXEC, app.spec.handlers[name][0]
        if app.spec.seccomp != DEFAULT_POLICY:
            # Under filters of the user's own nothing may be left by which a failed exec could be told.
            check_exec(path)
        step = "install seccomp filters"
        install_filters(confinement)
        step = STEP_EXEC
        os.execve(path, arguments, environment)
    except BaseException as error:
        # The last frame of a forked process: whatever went wrong is said, and nothing returns to PID 1's code.
        try:
            if step == STEP_EXEC and isinstance(error, OSError):
                reason = diagnose_exec(path, errno.ENOENT if error.errno is None else error.errno)
            else:
                reason = _describe_step(step, error)
            os.write(2, f"Error: {harmless(reason)}\n".encode())
        finally:
            os._exit(EXIT_EXEC_FAILED if step == STEP_EXEC else EXIT_FAILURE)


def _describe_step(step: str, error: BaseException) -> str:
    if not isinstance(error, OSError) or error.errno is None:
        return f"{step}: {error!r}"
    path = None if error.filename is None else os.fsdecode(error.filename)
    return ExitStatus(step=step, errno=error.errno, path=path).describe()
