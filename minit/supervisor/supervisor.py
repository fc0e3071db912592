"""
The events of PID 1, handled without waiting for any: signals, the reports and deaths of apps, deadlines.

Each is fed to the life-cycle table by the context, and one table here has the functions of the following actions:
starts (`starts`), handlers (`handlers`) and ends (`ends`) of apps. The pod decides about the effects of one app on the
others (`podpolicy`).

One loop gathers all sources of events. During start-up PID 1 polls the loop directly, afterwards trio waits for it. So
the same code runs in both phases, and no event is lost between them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Any

from minit.base.carried import Carried
from minit.iottymux.spawner import Spawner
from minit.linux.attributes import Attributes
from minit.linux.messages import Socket
from minit.linux.process import read_attributes
from minit.linux.syscalls import read_sent_signals
from minit.reaper.exit_status import from_wait_status
from minit.reaper.reaper import BATCH, died_before_exec, read_zombie, reap
from minit.supervisor.apps.apprun import EXECUTED
from minit.supervisor.apps.context import Context
from minit.supervisor.apps.ends import Ends
from minit.supervisor.apps.handlers import Handlers
from minit.supervisor.apps.lifecycle import Action, Event
from minit.supervisor.apps.podapp import App
from minit.supervisor.apps.podpolicy import BY_CONTROL, BY_SIGNAL
from minit.supervisor.apps.processes import arm_grace
from minit.supervisor.apps.starts import Starts
from minit.supervisor.launcherlink import Outside

# SIGRTMIN+3 is the halt of systemd in a container, which managers of containers send.
HALT_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGPWR, signal.SIGRTMIN + 3)
WATCHED_SIGNALS = (signal.SIGCHLD, signal.SIGHUP, *HALT_SIGNALS)


class Supervisor(Carried):
    """
    The loop of PID 1 around the apps of a pod, which hears of events by the descriptor `signals` and from `outside`.

    `control` is the control socket. `attributes` are for added apps, PID 1's if nobody has a record. `is_to_execute`
    says that somebody wants PID 1 to execute its program anew, and `defect` is an error that wants the same.
    """

    _reap_again: bool
    dead: list[tuple[int, int]]
    """Children whose ends are known and not acted on yet: pid, and status in the form of wait(2)."""
    sent: list[tuple[int, int, int]]
    """Signals that are known and not acted on yet: number, si_code and pid of the sender."""

    def __init__(
        self, context: Context, outside: Outside, control: Socket, signals: int, attributes: Attributes | None = None
    ) -> None:
        self.context = context
        self.outside = outside
        self.control = control
        self.attributes = attributes or read_attributes()
        self.traits = context.traits
        self.journal = context.journal
        self.pod = pod = context.pod
        self.apps = context.apps
        self.sidecars = context.sidecars
        self.observers = context.observers
        self._loop = context.loop
        self.signals = signals
        self.is_to_execute = False
        self.defect: Exception | None = None
        self._reap_again = False
        self.dead = []
        self.sent = []
        self._handlers = handlers = Handlers(context)
        self._starts = starts = Starts(context, handlers, self._on_process_end)
        self._ends = ends = Ends(context, handlers, starts)
        context.actions = {
            Action.FORK: starts.fork,
            Action.RUN_PRE_START: starts.run_pre_start,
            Action.EXECUTE: starts.tell_to_execute,
            Action.RECORD: ends.record,
            Action.RUN_POST_START: handlers.run,
            Action.GO_ON: pod.on_progress,
            Action.RUN_PRE_STOP: ends.run_pre_stop,
            Action.END_HOOK: handlers.end_late,
            Action.TERMINATE: ends.processes.terminate,
            Action.KILL_GROUP: ends.processes.kill,
            Action.CLEAR_GROUP: ends.processes.clear,
            Action.CHECK_GROUP: ends.check_group,
            Action.FAIL_START: starts.fail,
            Action.RUN_POST_STOP: ends.run_post_stop,
            Action.ARM_GRACE: arm_grace,
            Action.REPORT_UNKILLABLE: ends.report_unkillable,
            Action.FINISH: ends.finish,
            Action.END_LOG: context.outputs.mark_log_end,
            Action.RELEASE: ends.release,
        }
        self._ending = context.loop.deadline(pod.end_late)
        context.loop.watch(signals, lambda _: self._read_signals())

    def parts(self) -> dict[str, Any]:
        """Return the parts with fields for another program of PID 1."""
        return {
            "pod": self.pod,
            "order": self.pod.order,
            "records": self.context.records,
            "limits": self.context.limits,
            "sidecars": self.sidecars,
            "events": self.journal.events,
            "handlers": self._handlers,
            "link": self.outside,
        }

    @property
    def event_fd(self) -> int:
        """The descriptor to become readable when `turn` has something to do."""
        return self._loop.fileno()

    def next_deadline(self) -> float | None:
        """Return the monotonic time at which `turn` is due without an event, None for never."""
        deadlines = [app.run.deadline for app in self.apps.values() if app.run.deadline is not None]
        others = self._loop.next_deadline, self.sidecars.renew_at
        deadlines += [moment for moment in others if moment is not None]
        return time.monotonic() if self._reap_again else min(deadlines, default=None)

    def turn(self, timeout_seconds: float = 0.0) -> None:
        """Handle the events at hand and the deadlines that passed, after a wait of at most so long for the first."""
        deadline = self.next_deadline()
        if deadline is not None:
            timeout_seconds = max(0.0, min(timeout_seconds, deadline - time.monotonic()))
        self.context.at_work.clear()
        self._loop.turn(timeout_seconds)
        if self._reap_again:
            self.reap()
        now = time.monotonic()
        for app in [*self.apps.values()]:
            if app.run.deadline is not None and app.run.deadline <= now:
                self._meet_deadline(app)
        if self.sidecars.renew_at is not None and self.sidecars.renew_at <= now:
            self.sidecars.renew()
        self.outside.announce_end()

    def keep_specs(self) -> None:
        """Write down what never changes, for another program of PID 1."""
        for app in self.apps.values():
            app.keep_spec()

    def start(self, spawner: Spawner | None) -> None:
        """
        Watch every forked app prepare itself, and have its output wait for a sidecar.

        The spawner is None if there is no output.
        """
        self.sidecars.spawner = spawner
        if self.traits.deadline_seconds is not None:
            self.pod.ends_at = time.monotonic() + self.traits.deadline_seconds
            self._ending.set(self.pod.ends_at)
        for app in self.apps.values():
            self.context.limits.expose(app.spec)
            self._starts.watch(app)
            if app.run.streams.need_sidecar:
                self.sidecars.expect(app.run.streams)
        if self.traits.mutable:
            # Ready for added apps, whatever becomes of the first ones.
            self.pod.mark_ready()

    def resume(self) -> None:
        """
        Go on in the place of another program, which may have ended by an error in the middle of its work.

        Everything is looked at anew. Work that the other program has noted as due, and has not finished, is done first.
        """
        apps = [*self.apps.values()]
        self.sidecars.resume()
        for app in apps:
            self._starts.resume(app)
        self._handlers.resume()
        for app in apps:
            self.context.act(app)
        self._bury(*self._owners())
        self._act_on_signals()
        for app in apps:
            self._starts.heed(app)
        self._handlers.catch_up()
        self.pod.resume()
        self.outside.resume()
        if self.pod.ends_at is not None:
            self._ending.set(self.pod.ends_at)
        self.reap()
        self._ends.check_groups()
        self.context.retry_soon()

    def add(self, app: App) -> None:
        """Take in an app with a forked builder."""
        self.context.limits.expose(app.spec)
        self._starts.add(app)

    def request_stop(
        self, source: str = BY_CONTROL, detail: str = "", *, force: bool = False, is_counted: bool = False
    ) -> None:
        """Begin the shutdown of the pod; with `force`, or the second time, no app gets time to end by itself."""
        self.pod.request_stop(source, detail, force=force, is_counted=is_counted)
        # Before anybody is answered: a client told of the stop can rely on the stop.
        self.outside.announce_end(again=True)

    def drain(self) -> None:
        """Wait for the rest of the output, give up output without a reader, and write the missing statuses."""
        self.context.outputs.drain(self.turn, self.outside.tell_seconds)
        self.context.records.write_last_ends()

    def reap(self) -> None:
        """Take in the ends of all processes that have ended, orphans too."""
        by_pid, by_handler = self._owners()
        spawner = self.sidecars.spawner
        for pid, app in by_pid.items():
            # Nobody said yet that the app executed its program, and the signals of a stop may have come before.
            if app.run.reached >= EXECUTED and app.run.report is not None:
                app.run.died_before_exec = died_before_exec(pid)
        count = reap({*by_pid, *by_handler, *(() if spawner is None else (spawner.pid,))}, self.dead)
        self._reap_again = count == BATCH
        self._bury(by_pid, by_handler)
        if count:
            self._ends.check_groups()

    def _owners(self) -> tuple[dict[int, App], dict[int, App]]:
        """Return the apps by the pids of the processes of apps, and of handlers, whose ends are still to be seen."""
        apps = self.apps.values()
        return (
            {app.run.pid: app for app in apps if app.run.end is None and app.run.pid is not None},
            {app.run.handler.pid: app for app in apps if app.run.handler is not None and app.run.handler.pid},
        )

    def _bury(self, by_pid: Mapping[int, App], by_handler: Mapping[int, App]) -> None:
        """Act on the ends of children; each is forgotten when the work is done."""
        while self.dead:
            pid, number = self.dead[0]
            status = from_wait_status(number)
            if pid in by_pid:
                self._ends.on_death(by_pid[pid], status)
            elif pid in by_handler:
                self._handlers.on_end(by_handler[pid], status)
            else:
                self.sidecars.on_death(pid, status)
            del self.dead[0]

    def _read_signals(self) -> None:
        self.sent += read_sent_signals(self.signals)
        self._act_on_signals()

    def _act_on_signals(self) -> None:
        numbers = [number for number, code, pid in self.sent if self.outside.heeds(number, code, pid)]
        halts = [number for number in numbers if number in HALT_SIGNALS]
        # Before the dead are looked at: a signal to every process of the pod asks for a stop.
        if halts:
            self.outside.note_halt(halts)
            others = [each for each in self.sent if each[0] not in HALT_SIGNALS]
            # Both at once: an error must neither lose the request nor have it count twice.
            self.sent, self.pod.requests[BY_SIGNAL] = others, self.pod.requests[BY_SIGNAL] + 1
            self.request_stop(BY_SIGNAL, " ".join(map(str, halts)), is_counted=True)
        if signal.SIGHUP in numbers:
            self.sidecars.reopen_logs(None)
        if signal.SIGCHLD in numbers:
            self.reap()
        self.sent.clear()

    def _on_process_end(self, app: App) -> None:
        pid = app.run.pid
        self.reap()
        if app.run.pid == pid and app.run.pidfd in self._loop:
            # Only its tracer, on the host perhaps, can reap it. Its end counts all the same.
            assert pid is not None
            self._ends.on_death(app, read_zombie(pid))

    def _meet_deadline(self, app: App) -> None:
        # Before its end is over the deadline is that of what it left behind.
        is_restart = app.restart_at is not None
        app.run.deadline = None
        if is_restart:
            self.pod.start_again(app)
        else:
            self.context.handle(app, Event.KILL_WAIT_OVER if app.is_killed else Event.GRACE_OVER)
