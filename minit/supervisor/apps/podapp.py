"""One app as PID 1 holds it: its state, its process and the descriptors that outlive that process."""

from __future__ import annotations

import os
import time

from minit import paths, syscalls
from minit.attributes import Attributes
from minit.messages import Socket, socket_pair
from minit.paths import app_rootfs
from minit.plan.app import STREAM_LOG, AppSpec
from minit.reaper.exit_status import STEP_EXEC, ExitStatus
from minit.reaper.record import write_file
from minit.supervisor.apps.apphelper import AppHelper
from minit.supervisor.apps.backoff import Restarts
from minit.supervisor.apps.controlgroup import Group, GroupEnds
from minit.supervisor.apps.lifecycle import ABANDONED, CLEARING, DELETING, EXITED, KILLED, PREPARING, REMNANTS
from minit.supervisor.apps.notifysocket import Readiness
from minit.supervisor.exec.child import ChildEnds, become_app
from minit.supervisor.exec.notifyends import NotifyEnds
from minit.supervisor.output.streams import Streams


class Handler:
    """A handler that runs: its name, its process and what it writes."""

    def __init__(self, name: str, pid: int, pidfd: int, streams: Streams) -> None:
        self.name = name
        self.pid = pid
        self.pidfd = pidfd
        self.streams = streams


class App:
    """
    An app of the pod; the supervisor alone changes it.

    `attributes` are those of its processes. `sockets` are those of its spec, open for as long as the pod
    lives. `namespace` is where its root is, from its first start on. `starts` counts how often its process was forked;
    what `_begin` sets is about the present or last of these. `handler` is the event handler that runs; `begun` says
    that the first program of the app was started, be it the pre-start handler, and `executed` that its own was, at
    `executed_at` of the monotonic clock. It is `waiting` while it is prepared and others have to be ready first.
    `readiness` is what it says of itself, `restarts` what follows its ends, None without either.
    `lost_bytes` is how much of its output was lost, None if none was, or nothing is known of it yet.
    `helpers` are processes of the host that an app has which was added.
    `is_stopped` says that somebody wants it to end, the app alone, and `is_removed` that somebody wants it gone.
    """

    def __init__(
        self,
        spec: AppSpec,
        ends: GroupEnds,
        attributes: Attributes,
        sockets: tuple[int, ...] = (),
        state: str = PREPARING,
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.ends = ends
        self.attributes = attributes
        self.sockets = sockets
        self.group = Group(ends)
        self.state = state
        self.is_removed = False
        self.created_ns = time.time_ns()
        self.namespace: int | None = None
        self.profile: int | None = None
        self.starts = 0
        self.waiting = False
        self.pidfd: int | None = None
        self.oom_kills = 0
        self.lost_bytes: int | None = None
        self.readiness: Readiness | None = None
        self.restarts: Restarts | None = None
        self.helpers: tuple[AppHelper, ...] = ()
        if spec.tells_readiness:
            self.readiness = Readiness()
        if spec.restart is not None:
            self.restarts = Restarts(spec.restart)
        self._begin()

    @property
    def is_ready(self) -> bool:
        """Whether it was executed, is ready by what it says and by its checks, and did not fail to start."""
        executed = self.executed and self.report is None and self.failure is None
        if not executed or self.is_restarting or not (self.readiness is None or self.readiness.is_ready):
            return False
        return all(
            self.health.get(check.kind, {}).get("healthy") for check in self.spec.health if check.decides_readiness
        )

    @property
    def is_restarting(self) -> bool:
        """Whether it has ended and will be started again by itself."""
        return self.restarts is not None and self.restarts.delay_seconds is not None

    @property
    def restart_at(self) -> float | None:
        """When it is started again by itself, by the monotonic clock, once nothing of it is left; None if it is not."""
        return self.deadline if self.is_restarting and self.state == EXITED else None

    @property
    def has_ended(self) -> bool:
        """Whether its main process has ended for good."""
        return self.number is not None and not self.is_restarting

    @property
    def is_killed(self) -> bool:
        """Whether processes of it were sent SIGKILL and nothing else can be done but wait."""
        return self.state in (CLEARING, KILLED, REMNANTS, DELETING, ABANDONED)

    def begin_again(self) -> None:
        """Forget how the app was started and ended, which is recorded."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None
        self.streams.supersede()
        self._begin()

    def release(self) -> None:
        """Close everything that belongs to the app."""
        own = (self.pidfd, self.namespace, self.profile, *self.sockets, *self.ends.descriptors())
        for fd in own:
            if fd is not None:
                os.close(fd)
        if self.report is not None:
            self.report.close()
        if self.readiness is not None:
            self.readiness.close()
        for helper in self.helpers:
            helper.close()
        self.helpers = ()

    def _begin(self) -> None:
        self.pid: int | None = None
        self.report: Socket | None = None
        self.streams = Streams(self.name, (self.spec.log_size_bytes, self.spec.log_files))
        self.health: dict[str, dict[str, object]] = {}
        self.is_unhealthy = False
        self.handler: Handler | None = None
        self.begun = False
        self.executed = False
        self.executed_at: float | None = None
        self.told_ready = False
        self.failed_forks = 0
        self.post_stop_due = self.spec.post_stop is not None
        self.is_stopped = False
        self.was_asked_to_end = False
        self.is_oom_killed = False
        self.started_ns: int | None = None
        self.finished_ns: int | None = None
        self.failure: ExitStatus | None = None
        self.status: ExitStatus | None = None
        self.number: int | None = None
        self.recorded = False
        self.post_stop_failure: ExitStatus | None = None
        self.deadline: float | None = None


def spawn_app(app: App, trees: tuple[int, ...] = (), console: int | None = None, dev: int | None = None) -> None:
    """
    Fork the process of `app`, which prepares itself and waits for "go".

    It starts in its v2 group, where there is one in which PID 1 may start it, and joins the v1 groups itself.
    `trees` are the detached mounts of its volumes, `console` is the slave of the pod's console, `dev` a detached /dev
    if it may not make one itself. Started again, it finds its root in the namespace of the app. OSError, and nothing
    left, if there is no process or no room for its streams.
    """
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
            console=console if app.spec.has_console else None,
            cgroup_tasks=app.ends.tasks,
            attributes=app.attributes,
            trees=trees,
            dev=dev,
            sockets=app.sockets,
            notify=notify,
            namespace=app.namespace,
            group=app.ends.directory if app.ends.starts_processes and birthplace is None else None,
        )
        # Fork and registration: nothing may be reaped between them.
        app.pid, app.pidfd = syscalls.clone3(cgroup=birthplace)
        if app.pid == 0:
            become_app(app.spec, app_rootfs(app.name), child)
    except OSError:
        ours.close()
        app.streams.close()
        raise
    finally:
        theirs.close()
        for fd in (*writers.values(), *(() if notify is None else notify.descriptors())):
            os.close(fd)
    app.starts += 1
    app.streams.pid = app.pid
    app.report = ours


def _open_streams(app: App) -> dict[str, int]:
    """Make the app's streams and return its own ends, the caller's, by name."""
    modes = {"stdout": app.spec.stdout, "stderr": app.spec.stderr}
    writers = app.streams.open([name for name, mode in modes.items() if mode == STREAM_LOG], app.spec.uid, app.spec.gid)
    if app.spec.is_attachable:
        try:
            writers |= app.streams.open_attachable(app.spec)
        except OSError:
            for fd in writers.values():
                os.close(fd)
            app.streams.close()
            raise
    return writers


def write_environment(app: str, environment: tuple[tuple[str, str], ...]) -> None:
    """Write the variables of an app for `enter`."""
    # One variable per line without quoting: one that holds a newline cannot be said, so `enter` does without it.
    lines = [f"{name}={value}\n" for name, value in environment if "\n" not in value]
    write_file(paths.env_file(app), "".join(lines).encode(errors="surrogateescape"))


def state_of(app: App) -> dict[str, object]:
    """Return minit's own record of an app: times in nanoseconds since 1970, how it ended if it has, and why."""
    state: dict[str, object] = {"app": app.name, "created": app.created_ns}
    if app.started_ns is not None:
        state["started"] = app.started_ns
    state["restarts"] = max(0, app.starts - 1)
    if app.lost_bytes is not None:
        state["lost_output_bytes"] = app.lost_bytes
    if app.status is None or app.number is None:
        return state
    state |= {"finished": app.finished_ns, "status": app.number, "end": app.status.describe()}
    state["reason"] = _reason(app, app.status)
    for field in ("code", "signal", "step", "errno", "path"):
        value = getattr(app.status, field)
        if value is not None:
            state[field] = value
    if app.post_stop_failure is not None:
        state["post-stop"] = app.post_stop_failure.describe()
    return state


def _reason(app: App, status: ExitStatus) -> str:
    if app.is_unhealthy:
        return "unhealthy"
    if status.step is not None:
        return "exec failed" if status.step == STEP_EXEC else "start failed"
    if app.is_oom_killed:
        return "oom-killed"
    if app.was_asked_to_end:
        return "stopped"
    return "exited" if status.signal is None else "signalled"
