"""One app as PID 1 holds it: its state, its process and the descriptors that outlive that process."""

from __future__ import annotations

import os

from minit import syscalls
from minit.messages import Socket, socket_pair
from minit.paths import app_rootfs
from minit.plan.app import STREAM_LOG
from minit.supervisor.child import ChildEnds, become_app
from minit.supervisor.lifecycle import PREPARING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from minit.plan.app import AppSpec
    from minit.reaper.exit_status import ExitStatus
    from minit.supervisor.group import Group, GroupEnds


class App:
    """
    An app of the pod; the supervisor alone changes it.

    `outputs` are the read ends of its streams, kept so that a new sidecar can take over from a dead one.
    """

    def __init__(self, spec: AppSpec, group: Group) -> None:
        self.spec = spec
        self.name = spec.name
        self.group = group
        self.state = PREPARING
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.report: Socket | None = None
        self.namespace: int | None = None
        self.environment: int | None = None
        self.outputs: list[tuple[str, int]] = []
        self.sidecar: int | None = None
        self.executed = False
        self.failure: ExitStatus | None = None
        self.number: int | None = None
        self.deadline: float | None = None


def spawn_app(
    app: App, group: GroupEnds, open_files: tuple[int, int], trees: tuple[int, ...], console: int | None
) -> None:
    """
    Fork the process of `app`, which prepares itself and waits for "go".

    It starts in its v2 group, where there is one, and joins the v1 groups itself. `open_files` is its RLIMIT_NOFILE,
    `trees` are the detached mounts of its volumes, `console` is the slave of the pod's console.
    """
    ends: dict[str, int | None] = {}
    for name, mode in (("stdout", app.spec.stdout), ("stderr", app.spec.stderr)):
        ends[name] = None
        if mode == STREAM_LOG:
            reader, writer = os.pipe2(os.O_CLOEXEC)
            # An app that is not root may open /dev/stdout, which is this pipe, once more.
            os.fchown(writer, app.spec.uid, app.spec.gid)
            app.outputs.append((name, reader))
            ends[name] = writer
    ours, theirs = socket_pair()
    child = ChildEnds(
        report=theirs,
        stdout=ends["stdout"],
        stderr=ends["stderr"],
        console=console if app.spec.has_console else None,
        cgroup_tasks=group.tasks,
        open_files=open_files,
        trees=trees,
    )
    # Fork and registration: nothing may be reaped between them.
    app.pid, app.pidfd = syscalls.clone3(cgroup=group.directory if group.is_v2 else None)
    if app.pid == 0:
        become_app(app.spec, app_rootfs(app.name), child)
    app.report = ours
    theirs.close()
    for fd in ends.values():
        if fd is not None:
            os.close(fd)
