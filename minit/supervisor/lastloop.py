"""
The last loop of PID 1, for a supervisor that cannot go on: stops all apps, records their ends, and drains the output.

Small on purpose: without trio, control socket, hooks, handlers and restarts, and with nothing imported. An error ends
one step for one app: the other apps, and the later steps, go on.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from minit.base.carried import CarriedCodec
from minit.base.errors import EXIT_FAILURE
from minit.linux.loop import Loop, wait_readable
from minit.linux.messages import Socket, read_memory_file, receive_message, reserve_memory_file
from minit.linux.stdio import complain_at_once
from minit.linux.syscalls import read_sent_signals, send_signals
from minit.plan.podplan import PodTraits
from minit.plan.process import HANDLER_POST_STOP
from minit.podfiles import paths
from minit.podfiles.paths import PodEvent
from minit.reaper.exit_status import STEP_EXEC, ExitStatus, from_wait_status
from minit.reaper.reaper import died_before_exec, read_zombie, reap
from minit.reaper.record import record_exit, record_state, write_file
from minit.supervisor.apps.apprecords import state_of
from minit.supervisor.apps.apprun import EXECUTED, End, Run
from minit.supervisor.apps.context import RETRY_SECONDS
from minit.supervisor.apps.ends import judge
from minit.supervisor.apps.lifecycle import RESTING, Action, State
from minit.supervisor.apps.outputs import DRAIN_STALL_SECONDS, fails_by_loss
from minit.supervisor.apps.podapp import App
from minit.supervisor.apps.podpolicy import BY_LAUNCHER, BY_SIGNAL, PodPolicy
from minit.supervisor.apps.processes import KILL_WAIT_SECONDS, ask_to_end, describe_processes
from minit.supervisor.apps.starts import failure_of
from minit.supervisor.journal import Journal
from minit.supervisor.launcherlink import Outside, tell_seconds
from minit.supervisor.output.sidecars import Sidecars
from minit.supervisor.supervisor import HALT_SIGNALS

# The ends of sidecars and of other processes of an app come without a signal.
_TICK_SECONDS = 0.1
_PAUSE_SECONDS = 0.01
# A MiB for an arena of the interpreter's objects (Objects/obmalloc.c), and the rest for larger ones.
_RESERVE_BYTES = 2 << 20
_STATE = "state"
_STATE_BYTES = 1 << 15
_APP_BYTES = 1 << 13
_STOPPED = (State.STOPPING, State.LINGERING)
_BUILT_ONLY = (State.BUILDING, State.ABANDONED)


class LastLoop:
    """
    The end of a pod by carried objects: `apps`, the `pod` with the code, `sidecars`, and the `outside`.

    Nothing of these objects is used but what another program of PID 1 would have. `journal` is ready for events.
    """

    def __init__(
        self,
        traits: PodTraits,
        apps: Sequence[App],
        pod: PodPolicy,
        sidecars: Sidecars,
        filter: bytes,
        outside: Outside,
        launcher: Socket | None,
        signals: int,
        journal: Journal,
    ) -> None:
        self._traits = traits
        self._apps = {app.name: app for app in apps}
        self._pod = pod
        self._outside = outside
        self._launcher = launcher
        self._signals = signals
        self._journal = journal
        self._sidecars = Sidecars(_Unwatched(), journal, lambda _: None, self._on_loss, filter)
        self._sidecars.take_over(sidecars)
        # Ends of children, told once only.
        self._dead: list[tuple[int, int]] = []
        # Apps of which something is left, with the end of the patience for the stop or for the kill.
        self._patience: dict[str, float] = {}
        self._asked: set[str] = set()
        self._killed: set[str] = set()
        self._gone: set[str] = set()
        self._taken_in: set[str] = set()
        self._unwritten: dict[str, App] = {}
        self._written_at = 0.0
        self._failed_steps: set[str] = set()

    def run(self, dead: list[tuple[int, int]], sent: list[tuple[int, int, int]]) -> None:
        """
        Stop the pod, whose code is in the PodPolicy afterwards; after an error do what is left to be done.

        `dead` and `sent` are ends of children and signals that the supervisor has not acted on.
        """
        self._dead = dead
        # Who has ended before the stop has not been stopped.
        self._reap()
        if self._pod.exit_code is None:
            self._pod.exit_code = 0
            with self._shield("event"):
                self._journal.event(PodEvent.POD_STOPPING, status=0)
        with self._shield("remove the mark of a ready pod"):
            self._unmark()
        for app in self._apps.values():
            is_resting = app.state in RESTING and Action.FINISH not in app.due
            if not is_resting and app.name not in self._gone:
                # Before anything that may fail: the app has this time at most.
                self._patience.setdefault(app.name, time.monotonic() + app.run.grace_seconds)
        for app in self._apps.values():
            with self._shield("stop"):
                self._stop(app)
            with self._shield("look after output"):
                self._admit_output(app)
        with self._shield("look after output"):
            self._sidecars.renew(at_once=True)
        self._count_halts(sent)
        sent.clear()
        self._announce()
        while self._patience:
            with self._shield("write events"):
                self._journal.events.flush()
            self._turn()
        with self._shield("remove the mark of a ready pod"):
            self._unmark()
        self._drain()
        # Once more, for whatever an error has left out.
        self._reap()
        self._write_ends(is_last=True)
        with self._shield("event"):
            self._journal.event(PodEvent.POD_ENDED, status=self._pod.exit_code or 0)
        with self._shield("event"):
            self._journal.events.flush()

    @contextmanager
    def _shield(self, step: str) -> Iterator[None]:
        """Note an error, once for each step, and go on."""
        try:
            yield
        except Exception as error:
            if step not in self._failed_steps:
                self._failed_steps.add(step)
                complain_at_once(f"stage1: {step}: {type(error).__name__}: {error}")

    # Ends.

    def _reap(self) -> None:
        """Take in the ends of all processes that have ended."""
        by_pid = self._by_pid()
        for pid, app in by_pid.items():
            if app.run.reached >= EXECUTED and app.run.report is not None:
                app.run.died_before_exec = app.run.died_before_exec or died_before_exec(pid)
        spawner = self._sidecars.spawner
        with self._shield("reap"):
            reap({*by_pid, *(() if spawner is None else (spawner.pid,))}, self._dead)
        self._bury()
        for pid, app in self._by_pid().items():
            with self._shield("reap"):
                if app.run.pidfd is not None and wait_readable([app.run.pidfd], 0):
                    # Only its tracer can reap it.
                    self._on_death(app, read_zombie(pid))
        for app in self._apps.values():
            with self._shield("judge"):
                self._take_in(app)

    def _by_pid(self) -> dict[int, App]:
        apps = self._apps.values()
        return {app.run.pid: app for app in apps if app.run.pid is not None and _is_alive(app.run)}

    def _bury(self) -> None:
        by_pid = self._by_pid()
        for pid, number in [*self._dead]:
            with self._shield("bury"):
                status = from_wait_status(number)
                if pid in by_pid:
                    self._on_death(by_pid[pid], status)
                else:
                    self._sidecars.on_death(pid, status)
                self._dead.remove((pid, number))

    def _on_death(self, app: App, status: ExitStatus) -> None:
        run = app.run
        run.reaped = status
        with self._shield("hear of a failed start"):
            words = [message for message, _ in run.words]
            while run.report is not None and wait_readable([run.report.fileno()], 0):
                words.append(receive_message(run.report)[0])
                if words[-1] is None:
                    run.close_fields("report")
            failure = next((message for message in words if message is not None and "step" in message), None)
            run.failure = run.failure or (None if failure is None else failure_of(failure))

    def _take_in(self, app: App) -> None:
        """Judge the end of an app that has ended, and have the end written."""
        run = app.run
        if app.name in self._taken_in or run.status is None or _is_alive(run) or app.state in _BUILT_ONLY:
            return
        if run.end is None:
            run.end = self._judge(app, run.status)
        end = run.end
        if end.status is not None:
            self._unwritten[app.name] = app
            is_failed = bool(end.number) and not (self._traits.mutable or run.is_stopped) and app.restarts is None
            if is_failed and self._pod.exit_code is None:
                words = end.describe()
                self._pod.exit_code = end.number
                self._pod.cause = None if words is None else f'app "{app.name}" {words}: the pod was stopped'
            self._write_ends()
        # Last: what an error leaves out is done at the next look.
        self._taken_in.add(app.name)

    def _judge(self, app: App, status: ExitStatus) -> End:
        """Return what an end means, and say so."""
        end, oom_kills = End(number=status.number(), ns=time.time_ns(), status=status, reason="exited"), 0
        with self._shield("count oom kills"):
            oom_kills = app.oom_kills
        with self._shield("judge"):
            end = judge(self._pod, app, status, had_oom_kill=oom_kills > 0)
        with self._shield("tell an end"):
            if end.status is not None:
                text = end.status.describe()
                self._journal.event(PodEvent.APP_EXITED, app=app.name, status=end.number, end=text, reason=end.reason)
                if app.run.reached < EXECUTED or end.status.step not in (None, STEP_EXEC):
                    complain_at_once(f'stage1: app "{app.name}": {text}')
        return end

    def _write_ends(self, *, is_last: bool = False) -> None:
        self._written_at = time.monotonic()
        for name, app in [*self._unwritten.items()]:
            assert app.run.end is not None
            try:
                record_exit(name, app.run.end.number)
                del self._unwritten[name]
            except Exception:
                if is_last:
                    complain_at_once(f'stage1: app "{name}": status {app.run.end.number} could not be written')
                continue
            with self._shield("record"):
                record_state(name, state_of(app))

    # Stops.

    def _stop(self, app: App) -> None:
        """Ask all of an app to end, unless that has been done, or is of no use."""
        run, now = app.run, time.monotonic()
        if app.name in self._asked or app.name not in self._patience:
            return
        if self._pod.forced or run.reached < EXECUTED or app.is_killed:
            self._patience[app.name] = now
        elif app.state == State.POST_STOP or (app.state in _STOPPED and Action.TERMINATE not in app.due):
            if run.deadline is not None:
                self._patience[app.name] = run.deadline
        else:
            if Action.EXECUTE in app.due and run.report is not None:
                # Nobody knows whether the process has been told. If not, the end of the words ends the process.
                run.report.shutdown(socket.SHUT_WR)
            ask_to_end(app)
        self._asked.add(app.name)

    def _unmark(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(paths.STAGE1_READY)
        self._pod.ready = False

    def _turn(self) -> None:
        """Wait a little, and do what is due."""
        self._wait()
        for app in [self._apps[name] for name in self._patience]:
            is_left = True
            with self._shield("stop"):
                self._stop(app)
            with self._shield("look at a control group"):
                is_left = _is_alive(app.run) or bool(app.group.processes())
            if not is_left:
                self._finish(app)
            elif time.monotonic() >= self._patience[app.name]:
                self._end_patience(app)
            elif app.name in self._killed:
                self._kill(app)
        self._look_after_output()
        if self._unwritten and time.monotonic() >= self._written_at + RETRY_SECONDS:
            self._write_ends()

    def _wait(self) -> None:
        sources = [self._signals] if self._launcher is None else [self._signals, self._launcher.fileno()]
        is_done = False
        with self._shield("wait"):
            wait_readable(sources, _TICK_SECONDS)
            self._hear()
            for source in self._outside.attend():
                self._count(source)
            is_done = True
        if not is_done:
            # An error that stays must not take a processor.
            time.sleep(_TICK_SECONDS)
        self._reap()

    def _hear(self) -> None:
        self._count_halts(read_sent_signals(self._signals))
        if self._launcher is None or not wait_readable([self._launcher.fileno()], 0):
            return
        # Until there is a message: an error lets go of the launcher.
        launcher, self._launcher = self._launcher, None
        message, _ = receive_message(launcher)
        if message is None:
            self._outside.let_go()
            return
        self._launcher = launcher
        if message.get("stop") not in (None, signal.SIGHUP):
            self._count(BY_LAUNCHER)
        self._announce()

    def _count_halts(self, sent: Sequence[tuple[int, int, int]]) -> None:
        halts = [each[0] for each in sent if each[0] in HALT_SIGNALS and self._outside.heeds(*each)]
        if halts:
            self._outside.note_halt(halts)
            self._count(BY_SIGNAL)

    def _count(self, source: str) -> None:
        """Count a request to stop; the second forces the stop."""
        self._pod.requests[source] += 1
        if self._pod.is_asked_twice:
            self._pod.forced = True
            for name in self._patience.keys() - self._killed:
                self._patience[name] = time.monotonic()

    def _announce(self) -> None:
        """Have the launcher wait for the end of the stop."""
        left = max(self._patience.values(), default=0.0) - time.monotonic()
        if self._launcher is not None:
            tell_seconds(self._launcher, max(0.0, left) + KILL_WAIT_SECONDS)

    def _end_patience(self, app: App) -> None:
        if app.name not in self._killed:
            self._killed.add(app.name)
            self._patience[app.name] = time.monotonic() + KILL_WAIT_SECONDS
            self._kill(app)
            return
        self._let_go(app)
        left = ""
        with self._shield("look at a control group"):
            left = describe_processes(app)
        complain_at_once(f'stage1: app "{app.name}": giving up on unkillable processes: {left}')
        if not (self._traits.mutable or app.run.is_stopped):
            self._pod.exit_code = self._pod.exit_code or EXIT_FAILURE

    def _kill(self, app: App) -> None:
        with self._shield("kill"):
            app.group.kill()
        for process in (app.run if _is_alive(app.run) else None, app.run.handler):
            if process is not None and process.pidfd is not None:
                with self._shield("kill"):
                    send_signals(process.pidfd, signal.SIGKILL)

    def _let_go(self, app: App) -> None:
        self._gone.add(app.name)
        del self._patience[app.name]

    def _finish(self, app: App) -> None:
        self._let_go(app)
        with self._shield("let go of a group"):
            app.group.end()
        with self._shield("event"):
            if app.run.post_stop_due:
                self._journal.event(PodEvent.HANDLER_SKIPPED, app=app.name, handler=HANDLER_POST_STOP)
            self._journal.event(PodEvent.APP_STATE, app=app.name, state=State.EXITED, cause="last-loop")

    # Output.

    def _admit_output(self, app: App) -> None:
        streams = app.run.streams
        if streams.need_sidecar and app.run.pid is not None:
            streams.pid = app.run.pid
            self._sidecars.admit(streams)

    def _look_after_output(self) -> None:
        for streams in self._sidecars.present():
            with self._shield("look after output"):
                self._sidecars.look_after(streams)

    def _drain(self) -> None:
        """Wait until every sidecar has written what its process left, or none makes progress any more."""
        progress, stalled_at = (-1, -1), time.monotonic() + DRAIN_STALL_SECONDS
        with self._shield("look after output"):
            self._sidecars.renew(at_once=True)
        self._look_after_output()
        while not self._sidecars.all_ended and time.monotonic() < stalled_at:
            with self._shield("measure output"):
                present = self._sidecars.unread_bytes(), self._sidecars.flushes()
                if present != progress:
                    progress, stalled_at = present, time.monotonic() + DRAIN_STALL_SECONDS
                    if self._launcher is not None:
                        tell_seconds(self._launcher, DRAIN_STALL_SECONDS)
            self._wait()
            self._look_after_output()
        with self._shield("give up output"):
            self._sidecars.lose_rest()
        for app in self._apps.values():
            with self._shield("mark the end of a log"):
                if app.run.pid is not None:
                    write_file(paths.log_end_marker(app.name), b"")
            with self._shield("count lost output"):
                if fails_by_loss(app):
                    self._pod.exit_code = self._pod.exit_code or EXIT_FAILURE

    def _on_loss(self, name: str, size_bytes: int) -> None:
        app = self._apps.get(name)
        if app is not None:
            app.lost_bytes = (app.lost_bytes or 0) + size_bytes
            if app.run.end is not None and app.run.end.status is not None:
                self._unwritten[name] = app


def end_without_objects(memory: int, why: str) -> None:
    """
    Kill the apps of a pod whose state, in a file in memory, this program cannot turn into objects, and say `why`.

    The ends are recorded, and the output is waited for, as far as the state tells of processes.
    """
    complain_at_once(f"stage1: PID 1 cannot go on: {why}: all apps are killed")
    objects = CarriedCodec.fields(read_memory_file(memory))
    apps = [(fields["name"], objects[fields["run"]]) for fields in objects if "run" in fields and "name" in fields]
    by_pid = {run["pid"]: name for name, run in apps if run["pid"] and run["reaped"] is None and run["end"] is None}
    sidecars = [fields["sidecar"] for fields in objects if fields.get("sidecar") is not None]
    for pid in by_pid:
        # Not reaped, so nobody else has the number.
        os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + KILL_WAIT_SECONDS
    dead: list[tuple[int, int]] = []
    while len(dead) < len(by_pid) and time.monotonic() < until:
        reap({*by_pid}, dead)
        time.sleep(_PAUSE_SECONDS)
    for pid, number in dead:
        with suppress(OSError):
            record_exit(by_pid[pid], from_wait_status(number).number())
    until = time.monotonic() + DRAIN_STALL_SECONDS
    while sidecars and (left_seconds := until - time.monotonic()) > 0:
        sidecars = [pidfd for pidfd in sidecars if pidfd not in wait_readable(sidecars, left_seconds)]


class Reserve:
    """
    Memory that PID 1 takes beforehand, to begin anew when there is no other: for the work, and a file for the state.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._file: int | None = None

    def fill(self, app_count: int) -> None:
        """Take the memory, as far as there is some."""
        # Not written to: limits and the kernel's account of promises, behind every MemoryError, count what is mapped.
        # Not of malloc(3), which could keep the memory, while the interpreter maps another MiB for objects.
        with suppress(OSError):
            if self._memory is None:
                self._memory = mmap.mmap(-1, _RESERVE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):
            size_bytes = _STATE_BYTES + app_count * _APP_BYTES
            self._file = reserve_memory_file(_STATE, size_bytes) if self._file is None else self._file

    def let_go(self) -> None:
        """Have the memory for work."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()

    def take_file(self) -> int:
        """Return the file, now the caller's, or another if there is none."""
        file, self._file = self._file, None
        return reserve_memory_file(_STATE) if file is None else file


class _Unwatched(Loop):
    """A loop without a descriptor of its own, whose descriptors are looked at without being waited for."""

    def __init__(self) -> None:
        pass

    def watch(self, fd: int, callback: Callable[[int], object], events: int = select.EPOLLIN) -> None:
        """Do nothing."""

    def unwatch(self, fd: int) -> None:
        """Do nothing."""


def _is_alive(run: Run) -> bool:
    """Tell whether the end of the process of an app is still to be seen."""
    return run.pid is not None and run.reaped is None and run.end is None
