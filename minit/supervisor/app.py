"""One app as PID 1 holds it: its state, its process and the descriptors that outlive that process."""

from __future__ import annotations

import os

from minit import syscalls
from minit.messages import Socket, socket_pair
from minit.paths import app_rootfs
from minit.plan.app import STREAM_LOG
from minit.supervisor.child import ChildEnds, become_app
from minit.supervisor.group import Group
from minit.supervisor.lifecycle import PREPARING
from minit.supervisor.streams import Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from minit.plan.app import AppSpec
    from minit.reaper.exit_status import ExitStatus
    from minit.supervisor.group import GroupEnds
    from minit.supervisor.handler import Handler


class App:
    """
    An app of the pod; the supervisor alone changes it.

    `open_files` is the RLIMIT_NOFILE of its processes. `sockets` are those of its spec, open for as long as the pod
    lives. `handler` is the event handler that runs; `begun` says that
    the first program of the app was started, be it the pre-start handler, and `executed` that its own was.
    """

    def __init__(
        self, spec: AppSpec, ends: GroupEnds, open_files: tuple[int, int], sockets: tuple[int, ...] = ()
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.ends = ends
        self.open_files = open_files
        self.sockets = sockets
        self.group = Group(ends)
        self.group_events: int | None = None
        self.state = PREPARING
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.report: Socket | None = None
        self.namespace: int | None = None
        self.profile: int | None = None
        self.streams = Streams(spec.name, (spec.log_size_bytes, spec.log_files))
        self.handler: Handler | None = None
        self.begun = False
        self.executed = False
        self.failed_forks = 0
        self.post_stop_due = spec.post_stop is not None
        self.failure: ExitStatus | None = None
        self.status: ExitStatus | None = None
        self.number: int | None = None
        self.recorded = False
        self.post_stop_failure: ExitStatus | None = None
        self.deadline: float | None = None


def spawn_app(app: App, trees: tuple[int, ...] = (), console: int | None = None, dev: int | None = None) -> None:
    """
    Fork the process of `app`, which prepares itself and waits for "go".

    It starts in its v2 group, where there is one and PID 1 may do that, and joins the v1 groups itself. `trees` are the
    detached mounts of its volumes, `console` is the slave of the pod's console, `dev` a detached /dev if it may not
    make one itself.
    """
    modes = {"stdout": app.spec.stdout, "stderr": app.spec.stderr}
    logged = [name for name, mode in modes.items() if mode == STREAM_LOG]
    writers = app.streams.open(logged, app.spec.uid, app.spec.gid)
    if app.spec.is_attachable:
        writers |= app.streams.open_attachable(app.spec)
    ours, theirs = socket_pair()
    child = ChildEnds(
        report=theirs,
        stdin=writers.get("stdin"),
        stdout=writers.get("stdout"),
        stderr=writers.get("stderr"),
        tty=writers.get("tty"),
        console=console if app.spec.has_console else None,
        cgroup_tasks=app.ends.tasks,
        open_files=app.open_files,
        trees=trees,
        dev=dev,
        sockets=app.sockets,
    )
    # Fork and registration: nothing may be reaped between them.
    app.pid, app.pidfd = syscalls.clone3(cgroup=app.ends.directory if app.ends.starts_processes else None)
    if app.pid == 0:
        become_app(app.spec, app_rootfs(app.name), child)
    app.streams.pid = app.pid
    app.report = ours
    theirs.close()
    for fd in writers.values():
        os.close(fd)
