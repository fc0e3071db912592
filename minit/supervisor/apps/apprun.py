"""One start of an app, from the fork of the process until the next one: progress, failures and end."""

from __future__ import annotations

from minit.base.carried import Carried, Descriptor
from minit.base.value import Value
from minit.linux.messages import Socket
from minit.plan.appspec import AppSpec
from minit.podfiles.controlmessages import HealthResult
from minit.reaper.exit_status import ExitStatus, signal_name
from minit.supervisor.output.streams import Streams

# How far a start has come, one after the other: nothing is executed, the first program is, perhaps the pre-start
# handler, the app's own is told to be, and the app was said to be ready.
FORKED, BEGUN, EXECUTED, READY = range(4)


class Handler(Carried):
    """A handler or hook that runs: name, process, 0 before the fork, and output."""

    name: str
    pid: int
    pidfd: Descriptor
    streams: Streams

    def __init__(self, name: str, pid: int, pidfd: int, streams: Streams) -> None:
        self.name = name
        self.pid = pid
        self.pidfd = pidfd
        self.streams = streams


class End(Value):
    """
    The end of a start, at `ns` since 1970: with the exit code `number`, for one of minit's reasons.

    `status` is None if the turn to be executed had not come, and nobody knows how the program would have ended.
    """

    number: int
    ns: int
    status: ExitStatus | None = None
    reason: str = ""

    def describe(self) -> str | None:
        """Return the end of a program as words behind the app's name; None for a program never executed."""
        if self.status is None or self.status.step is not None:
            return None
        number = self.status.signal
        words = self.status.describe() if number is None else f"was killed by {signal_name(number)}"
        return f"{words} (out of memory)" if self.reason == "oom-killed" else words


class LastRun(Value):
    """The end of a run before the present one, and the moment of its exec, in nanoseconds since 1970."""

    end: End
    started_ns: int | None


# A message of the process of an app, None for the end of the messages, with descriptors.
Words = tuple[dict[str, object] | None, list[Descriptor]]


class Run(Carried):
    """
    One start of an app, or the making of a root; the supervisor alone changes it.

    `namespace` is the mount namespace, if another one than where the app's root is made, and `pids` the PID namespace,
    if another one than the pod's. `report` is open until the process has executed its program, or ended. `reached` is
    how far it has come, EXECUTED of that at `executed_at` of the monotonic clock, `started_ns` since 1970; an app that
    `died_before_exec` was told to execute, and did not. `handler` is the event handler or hook that runs; a hook
    that only sleeps is none, and `wakes_at` is the end of the sleep. `ended_handler` is one that has ended, with the
    status, until the app goes on. `words` of the process have been read and not been acted on. `grace_ends_at`, of the
    monotonic clock too, is the end of the time for a pre-stop hook and the stop together. `failure` is a reason known
    from elsewhere than the end of the process, `reaped` is the end of the process, and `end` the judgement of the pod
    about both. `is_stopped` says that somebody wants the app alone to end.
    `grace_seconds` is the time for a stop. `deadline`, of the monotonic clock, is the deadline of the present wait.
    `oom_kills` is the count of the app's group from before the start. `last` is the run before, if that run ended and
    the present run came by itself: until the exec the end of the last run is the app's.
    """

    last: LastRun | None
    pid: int | None
    pidfd: Descriptor | None
    namespace: Descriptor | None
    pids: Descriptor | None
    report: Socket | None
    streams: Streams
    health: dict[str, HealthResult]
    is_unhealthy: bool
    handler: Handler | None
    ended_handler: tuple[str, ExitStatus] | None
    words: list[Words]
    wakes_at: float | None
    post_start_pending: bool
    grace_ends_at: float | None
    reached: int
    executed_at: float | None
    started_ns: int | None
    died_before_exec: bool
    post_stop_pending: bool
    post_stop_failure: ExitStatus | None
    is_stopped: bool
    grace_seconds: float
    oom_kills: int
    failure: ExitStatus | None
    reaped: ExitStatus | None
    end: End | None
    deadline: float | None

    def __init__(self, spec: AppSpec, last: LastRun | None = None) -> None:
        self.last = last
        self.pid = None
        self.pidfd = None
        self.namespace = None
        self.pids = None
        self.report = None
        self.streams = Streams(spec.name, (spec.streams.log_size_bytes, spec.streams.log_files, spec.streams.log_path))
        self.health = {}
        self.is_unhealthy = False
        self.handler = None
        self.ended_handler = None
        self.words = []
        self.wakes_at = None
        self.post_start_pending = spec.life.post_start is not None
        self.grace_ends_at = None
        self.reached = FORKED
        self.executed_at = None
        self.started_ns = None
        self.died_before_exec = False
        self.post_stop_pending = spec.life.post_stop is not None
        self.post_stop_failure = None
        self.is_stopped = False
        self.grace_seconds = spec.life.stop_grace_seconds
        self.oom_kills = 0
        self.failure = None
        self.reaped = None
        self.end = None
        self.deadline = None

    def is_healthy(self, kind: str) -> bool:
        """Tell whether the last result of a kind of check is good; not without a result."""
        return kind in self.health and self.health[kind].healthy

    @property
    def has_executed(self) -> bool:
        """Tell whether the app's own program was executed, and nothing is known to have failed."""
        return self.is_executed and self.report is None and self.failure is None

    @property
    def has_started(self) -> bool:
        """Tell whether the start is complete: the app was executed, and the post-start hook has ended well."""
        return self.has_executed and not self.post_start_pending

    @property
    def is_executed(self) -> bool:
        """Tell whether the turn to be executed had come before the death."""
        return self.reached >= EXECUTED and not self.died_before_exec

    @property
    def post_stop_due(self) -> bool:
        """Tell whether the post-stop handler has to run after the end, and has not."""
        return self.post_stop_pending and self.reached >= BEGUN

    @property
    def status(self) -> ExitStatus | None:
        """The reason of the failure, or the end of the process; None if neither is known."""
        return self.failure or self.reaped
