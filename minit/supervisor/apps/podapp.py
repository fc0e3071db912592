"""An app of the pod as PID 1 holds the app, over all starts."""

from __future__ import annotations

import os
import time

from minit.linux.attributes import Attributes
from minit.plan.appspec import AppSpec
from minit.supervisor.apps.apphelper import AppHelper
from minit.supervisor.apps.apprun import LastRun, Run
from minit.supervisor.apps.backoff import Restarts
from minit.supervisor.apps.controlgroup import Group, GroupEnds
from minit.supervisor.apps.lifecycle import State
from minit.supervisor.apps.notifysocket import Readiness
from minit.supervisor.apps.pidgroup import PidGroup


class App:
    """
    An app of the pod; the supervisor alone changes it.

    `attributes` belong to all processes of the app. `sockets` are the sockets of the spec, open for as long as the pod
    lives. `namespace` is the mount namespace of the root, from the first start on, `profile` a file for a command that
    is entered. `starts` counts the forks of the app's process; `run` is the present or last start. `readiness` has the
    app's own words, `restarts` the counts of restarts; None for an app without. `lost_bytes` counts lost output, None
    if none was lost, or nothing is known yet. `helpers` are processes of the host for an added app. `is_removed` says
    that somebody wants the app gone.
    """

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
        self.ends = ends
        self.attributes = attributes
        self.sockets = sockets
        self.group = Group(ends) if ends.directory is not None else PidGroup(ends)
        self.state = state
        self.is_removed = False
        self.created_ns = time.time_ns()
        self.namespace: int | None = None
        self.profile: int | None = None
        self.starts = 0
        self.run = Run(spec)
        self.lost_bytes: int | None = None
        self.readiness: Readiness | None = None
        self.restarts: Restarts | None = None
        self.helpers: tuple[AppHelper, ...] = ()
        if spec.life.tells_readiness:
            self.readiness = Readiness()
        if spec.life.restart is not None:
            self.restarts = Restarts(spec.life.restart)

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
        for fd in (self.run.pidfd, self.run.namespace, self.run.pids):
            if fd is not None:
                os.close(fd)
        self.run.streams.supersede()
        self.run = Run(self.spec, last)

    def release(self) -> None:
        """Close everything that belongs to the app."""
        self.group.end()
        own = (self.run.pidfd, self.run.namespace, self.run.pids, self.namespace, self.profile)
        for fd in (*own, *self.sockets, *self.ends.descriptors()):
            if fd is not None:
                os.close(fd)
        if self.run.report is not None:
            self.run.report.close()
        if self.readiness is not None:
            self.readiness.close()
        for helper in self.helpers:
            helper.close()
        self.helpers = ()
