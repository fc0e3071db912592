"""
The events of PID 1, handled without waiting for any: signals, the reports and deaths of apps, deadlines.

Each is fed to the life-cycle table (`lives`), whose actions start apps (`starts`) and end them (`ends`). The effects of
one app on the others are the pod's to decide (`podpolicy`).

One loop gathers all sources of events. During start-up it is polled directly; afterwards trio waits for it. So the
same code runs in both phases, and no event is lost between them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from minit.iottymux.spawner import Spawner
from minit.linux.attributes import Attributes
from minit.linux.loop import Loop
from minit.linux.messages import Socket
from minit.linux.process import hold_limits, read_attributes, read_limits
from minit.linux.syscalls import read_sent_signals
from minit.linux.terminal import CallerTerminal
from minit.plan.podplan import PodPlan
from minit.plan.rights.seccompfilter import LIMITS
from minit.podfiles.paths import pod_cgroup_name
from minit.reaper.reaper import BATCH, died_before_exec, read_zombie, reap
from minit.supervisor.apps.apprecords import Records
from minit.supervisor.apps.apprun import EXECUTED
from minit.supervisor.apps.ends import Ends
from minit.supervisor.apps.handlers import Handlers
from minit.supervisor.apps.lifecycle import Event
from minit.supervisor.apps.lives import Lives
from minit.supervisor.apps.notifylistener import Listeners
from minit.supervisor.apps.outputs import Outputs
from minit.supervisor.apps.podapp import App
from minit.supervisor.apps.podpolicy import BY_CONTROL, BY_SIGNAL, PodPolicy
from minit.supervisor.apps.starts import Starts
from minit.supervisor.journal import Journal
from minit.supervisor.launcherlink import LauncherLink

# SIGRTMIN+3 is the halt of systemd in a container, which managers of containers send.
HALT_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGPWR, signal.SIGRTMIN + 3)
WATCHED_SIGNALS = (signal.SIGCHLD, signal.SIGHUP, *HALT_SIGNALS)

RETRY_SECONDS = 1.0
"""When a record that could not be written, and a connection that could not be accepted, are tried again."""

# As most systems have it.
_OPEN_FILES = (1024, 4096)


class Supervisor:
    """
    The loop of PID 1 around the apps of a pod.

    `attributes` are those of apps that are added, PID 1's if nobody has a record. `sidecars` read what apps write,
    `observers` are called when anything about an app has changed.
    """

    def __init__(
        self,
        plan: PodPlan,
        apps: Sequence[App],
        *,
        launcher: Socket,
        control: Socket,
        signals: int,
        journal: Journal,
        attributes: Attributes | None = None,
        terminal: CallerTerminal | None = None,
        console: int | None = None,
        sidecar_filter: bytes = b"",
    ) -> None:
        self.plan = plan
        self.journal = journal
        self.control = control
        self.attributes = attributes or read_attributes(_OPEN_FILES)
        # From before an app could change them, and whether any can.
        self._limits = read_limits()
        self._is_exposed = any(LIMITS not in app.spec.confinement.guards for app in apps)
        self._signals = signals
        self._loop = loop = Loop(begin=self._hold_limits)
        self._retry = loop.deadline(self._try_again)
        self._lives = lives = Lives(journal)
        self._records = records = Records(journal, self.retry_soon)
        self.pod = pod = PodPolicy(
            plan, apps, launcher, journal, lives.handle, lambda name: self._outputs.mark_log_end(name)
        )
        self._outputs = outputs = Outputs(pod, loop, records, journal, sidecar_filter)
        self._handlers = handlers = Handlers(
            pod.apps, loop, journal, records, outputs.sidecars, lives.handle, pod.end_failed
        )
        self._listeners = listeners = Listeners(loop, journal, self.retry_soon, pod.on_progress)
        self._starts = starts = Starts(
            plan,
            pod,
            lives,
            loop,
            journal,
            handlers=handlers,
            listeners=listeners,
            records=records,
            sidecars=outputs.sidecars,
            on_process_end=self._on_process_end,
        )
        self._ends = Ends(
            plan,
            pod,
            lives,
            loop,
            journal,
            handlers=handlers,
            listeners=listeners,
            records=records,
            outputs=outputs,
            starts=starts,
        )
        self._reap_again = False
        self.apps = pod.apps
        self.sidecars = outputs.sidecars
        self.observers = lives.observers
        loop.watch(signals, lambda _: self._read_signals())
        self._link = self._link_to(launcher, terminal, console)

    @property
    def event_fd(self) -> int:
        """The descriptor that is readable when `turn` has something to do."""
        return self._loop.fileno()

    def next_deadline(self) -> float | None:
        """Return the monotonic time at which `turn` is due without an event, None if there is none."""
        deadlines = [app.run.deadline for app in self.apps.values() if app.run.deadline is not None]
        others = self._loop.next_deadline, self.sidecars.renew_at
        deadlines += [moment for moment in others if moment is not None]
        return time.monotonic() if self._reap_again else min(deadlines, default=None)

    def turn(self, timeout_seconds: float = 0.0) -> None:
        """Handle the events at hand and the deadlines that passed, waiting at most so long for the first."""
        deadline = self.next_deadline()
        if deadline is not None:
            timeout_seconds = max(0.0, min(timeout_seconds, deadline - time.monotonic()))
        self._loop.turn(timeout_seconds)
        if self._reap_again:
            self.reap()
        now = time.monotonic()
        for app in [*self.apps.values()]:
            if app.run.deadline is not None and app.run.deadline <= now:
                self._meet_deadline(app)
        if self.sidecars.renew_at is not None and self.sidecars.renew_at <= now:
            self.sidecars.renew()
        self._link.announce_end()

    def start(self, spawner: Spawner | None) -> None:
        """
        Watch every forked app prepare itself, and have its output wait for a sidecar.

        The spawner is None if there is no output.
        """
        self.sidecars.spawner = spawner
        if self.plan.deadline_seconds is not None:
            self._loop.deadline(self.pod.end_late).set(time.monotonic() + self.plan.deadline_seconds)
        for app in self.apps.values():
            self._starts.watch(app)
            if app.run.streams.need_sidecar:
                self.sidecars.expect(app.run.streams)
        if self.plan.mutable:
            # Ready to have apps added, whatever becomes of those it begins with.
            self.pod.mark_ready()

    def add(self, app: App) -> None:
        """Take in an app whose builder has been forked."""
        self._is_exposed |= LIMITS not in app.spec.confinement.guards
        self._starts.add(app)

    def request_stop(self, source: str = BY_CONTROL, detail: str = "", *, force: bool = False) -> None:
        """Begin the shutdown of the pod; with `force`, or the second time, no app gets time to end by itself."""
        self.pod.request_stop(source, detail, force=force)
        # Before anybody is answered: who hears that the pod will stop can rely on it.
        self._link.announce_end(again=True)

    def hold_limits(self) -> bool:
        """
        Undo what an app that is root has done to the limits of PID 1, which could write or open nothing then.

        Returns whether there was something that could be undone: a hard limit takes CAP_SYS_RESOURCE.
        """
        has_changed = hold_limits(self._limits)
        if has_changed:
            self.journal.info("limits.restored")
        return has_changed

    def drain(self) -> None:
        """Wait for the rest of the output, give up what nobody reads, and write the statuses that are not written."""
        self._outputs.drain(self.turn, self._link.tell_seconds)
        self._records.write_last_ends()

    def reap(self) -> None:
        """Take in the ends of all processes that have ended, whoever's they are."""
        by_pid = {app.run.pid: app for app in self.apps.values() if app.run.end is None and app.run.pid is not None}
        by_handler = {app.run.handler.pid: app for app in self.apps.values() if app.run.handler is not None}
        spawner = self.sidecars.spawner
        for pid, app in by_pid.items():
            # Nobody said yet that it executed its program, and the signals of a stop may have come before.
            if app.run.reached >= EXECUTED and app.run.report is not None:
                app.run.died_before_exec = died_before_exec(pid)
        dead, count = reap({*by_pid, *by_handler, *(() if spawner is None else (spawner.pid,))})
        self._reap_again = count == BATCH
        for pid, status in dead:
            if pid in by_pid:
                self._ends.on_death(by_pid[pid], status)
            elif pid in by_handler:
                self._handlers.on_end(by_handler[pid], status)
            else:
                self.sidecars.on_death(pid, status)
        if count:
            self._ends.check_groups()

    # Steps that a supervisor of another kind does in another way.

    def admits(self, pid: int, uid: int) -> bool:
        """
        Return whether a process may ask on the control socket: one that PID 1 cannot see, with pid 0 here.

        Without a PID namespace it is one of root's in no control group of the pod.
        """
        if not self.plan.host_pids:
            return pid == 0
        try:
            with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
                return uid == 0 and pod_cgroup_name(self.plan.uuid) not in file.read().replace("\n", "/").split("/")
        except OSError:
            return False

    def carries_out(self, op: str) -> bool:
        """Return whether single apps may be worked with by such a request."""
        return self.plan.mutable

    def heeds(self, number: int, code: int, pid: int) -> bool:
        """Return whether a signal counts that has this si_code and came from this process."""
        return True

    def _link_to(self, launcher: Socket, terminal: CallerTerminal | None, console: int | None) -> LauncherLink:
        return LauncherLink(launcher, self.pod, self._loop, self.request_stop, terminal, console)

    def _read_signals(self) -> None:
        self._on_signals([number for number, *sent in read_sent_signals(self._signals) if self.heeds(number, *sent)])

    def _on_signals(self, numbers: Sequence[int]) -> None:
        halts = [str(number) for number in numbers if number in HALT_SIGNALS]
        # Before the dead are looked at: whoever signals every process of the pod is asking for a stop.
        if halts:
            self.request_stop(BY_SIGNAL, " ".join(halts))
        if signal.SIGHUP in numbers:
            self.sidecars.reopen_logs(None)
        if signal.SIGCHLD in numbers:
            self.reap()

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
            self._lives.handle(app, Event.KILL_WAIT_OVER if app.is_killed else Event.GRACE_OVER)

    def _hold_limits(self) -> None:
        if self._is_exposed:
            self.hold_limits()

    def retry_soon(self) -> None:
        """Try again in a moment what a disk has not taken."""
        # Not later than it was to be: whoever asks again and again must not hold up the others.
        if self._retry.moment is None:
            self._retry.set(time.monotonic() + RETRY_SECONDS)

    def _try_again(self) -> None:
        self._records.catch_up()
        self._listeners.resume()
