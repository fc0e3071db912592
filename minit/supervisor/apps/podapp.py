"""An app of the pod as PID 1 holds the app, over all starts."""

from __future__ import annotations

import os
import time
from functools import cached_property

from minit.base.carried import Carried, Descriptor
from minit.base.value import replace
from minit.linux.attributes import Attributes
from minit.linux.messages import memory_file, read_memory_file
from minit.plan.appspec import AppSpec, decode_spec, encode_spec
from minit.supervisor.apps.apphelper import AppHelper
from minit.supervisor.apps.apprun import LastRun, Run
from minit.supervisor.apps.backoff import Restarts
from minit.supervisor.apps.controlgroup import Group, GroupEnds
from minit.supervisor.apps.lifecycle import Action, State
from minit.supervisor.apps.notifysocket import Readiness
from minit.supervisor.apps.pidgroup import PidGroup


class App(Carried):
    """
    An app of the pod; the supervisor alone changes it.

    `attributes` belong to all processes of the app. `sockets` are the sockets of the spec, open for as long as the pod
    lives. `namespace` is the mount namespace of the root, from the first start on, `profile` a file for a command that
    is entered. `starts` counts the forks of the app's process; `run` is the present or last start. `readiness` has the
    app's own words, `restarts` the counts of restarts; None for an app without. `lost_bytes` counts lost output, None
    if none was lost, or nothing is known yet. `helpers` are processes of the host for an added app. `is_removed` says
    that somebody wants the app gone. `due` are the actions of the life-cycle table that are still to be carried out,
    the present one first. `spec_file` is a file in memory with the spec, from `keep_spec` on.
    """

    name: str
    group: Group
    attributes: Attributes
    sockets: tuple[Descriptor, ...]
    state: State
    due: list[Action]
    is_removed: bool
    created_ns: int
    namespace: Descriptor | None
    profile: Descriptor | None
    spec_file: Descriptor | None
    starts: int
    run: Run
    lost_bytes: int | None
    readiness: Readiness | None
    restarts: Restarts | None
    helpers: tuple[AppHelper, ...]

    def __init__(
        self,
        spec: AppSpec,
        ends: GroupEnds,
        attributes: Attributes,
        sockets: tuple[int, ...] = (),
        state: State = State.PREPARING,
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.group = Group(ends) if ends.directory is not None else PidGroup(ends)
        self.attributes = attributes
        self.sockets = sockets
        self.state = state
        self.due = []
        self.is_removed = False
        self.created_ns = time.time_ns()
        self.namespace = None
        self.profile = None
        self.spec_file = None
        self.starts = 0
        self.run = Run(spec)
        self.lost_bytes = None
        self.readiness = None
        self.restarts = None
        self.helpers = ()
        if spec.life.tells_readiness:
            self.readiness = Readiness()
        if spec.life.restart is not None:
            self.restarts = Restarts(spec.life.restart)

    @cached_property
    def spec(self) -> AppSpec:
        """The spec, which another program reads when the spec is first needed."""
        assert self.spec_file is not None
        return decode_spec(read_memory_file(self.spec_file))

    def keep_spec(self) -> None:
        """Write the spec into a file in memory, which nobody can change, unless there is the file."""
        if self.spec_file is None:
            self.spec_file = memory_file(f"spec of {self.name}", encode_spec(self.spec))

    @property
    def ends(self) -> GroupEnds:
        """The descriptors of the control groups."""
        return self.group.ends

    def forget_tasks(self) -> None:
        """Close the files by which a process joins groups: no later process of the app does."""
        tasks, self.group.ends = self.ends.tasks, replace(self.ends, tasks=())
        for fd in tasks:
            os.close(fd)

    @property
    def present_namespace(self) -> int | None:
        """The mount namespace of the present process, perhaps another one than where the root is made."""
        return self.namespace if self.run.namespace is None else self.run.namespace

    @property
    def oom_kills(self) -> int:
        """The number of processes of the present run that the kernel has killed for want of memory."""
        return self.group.memory.oom_kills() - self.run.oom_kills

    def describe_oom_kills(self, *, is_main: bool) -> str:
        """Return words about the processes killed by the kernel, the main one or others, and the limit, for a line."""
        limits = self.spec.resources.limits
        asked_bytes = None if limits is None else limits.memory_bytes
        return self.group.memory.describe_kills(self.oom_kills, asked_bytes, is_main=is_main)

    @property
    def is_ready(self) -> bool:
        """Tell whether the app was executed, is ready by its own words and by checks, and did not fail to start."""
        if not self.run.has_started or self.is_restarting or not (self.readiness is None or self.readiness.is_ready):
            return False
        return all(self.run.is_healthy(check.kind) for check in self.spec.life.health if check.decides_readiness)

    @property
    def is_restarting(self) -> bool:
        """Tell whether the app has ended and will be started again by itself."""
        return self.restarts is not None and self.restarts.delay_seconds is not None

    @property
    def restart_at(self) -> float | None:
        """The monotonic time of the restart, once nothing of the app is left; None without a restart."""
        return self.run.deadline if self.is_restarting and self.state == State.EXITED else None

    @property
    def has_ended(self) -> bool:
        """Tell whether the main process has ended for good."""
        return self.run.end is not None and not self.is_restarting

    @property
    def is_killed(self) -> bool:
        """Tell whether processes of the app were sent SIGKILL and nothing is left but to wait."""
        return self.state in (State.CLEARING, State.KILLED, State.REMNANTS, State.DELETING, State.ABANDONED)

    def begin_again(self, *, by_itself: bool = False) -> None:
        """Forget how the app was started and ended, after the record; but not the end before a start `by_itself`."""
        last = self.run.last
        if self.run.end is not None:
            last = LastRun(end=self.run.end, started_ns=self.run.started_ns) if by_itself else None
        self.run.close_fields("pidfd", "namespace", "pids")
        if self.run.pid is None:
            # Opened for a process that was never forked.
            self.run.streams.close()
        self.run.streams.supersede()
        self.run = Run(self.spec, last)

    def release(self) -> None:
        """Close everything that belongs to the app."""
        self.group.end()
        self.run.close_fields("pidfd", "namespace", "pids", "report")
        self.close_fields("namespace", "profile", "spec_file")
        for fd in (*self.sockets, *self.ends.descriptors()):
            os.close(fd)
        if self.readiness is not None:
            self.readiness.close()
        for helper in self.helpers:
            helper.close()
        self.helpers = ()
