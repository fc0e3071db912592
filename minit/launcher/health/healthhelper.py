"""
The health helper: a process of the host that checks the apps of a pod, and tells PID 1 the results.

PID 1 runs no checks itself: PID 1 waits for nobody, and its forks are processes of the pod. The helper decides by the
thresholds; PID 1 then acts on the app.

Each check is a process of its own, killed when the check takes too long. A command is entered into the app as `enter`
does, so the command is as confined as the app; HTTP and TCP are spoken from the network namespace of the pod, in which
the process is.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import time
from collections.abc import Sequence
from typing import NoReturn

from minit.base.carried import Carried, CarriedCodec
from minit.base.errors import ControlError, NoAnswerError, describe
from minit.base.value import Value
from minit.launcher.enter.enterpod import enter_pod
from minit.launcher.leftbehind import settle
from minit.launcher.podhelper import HelperWork, PodHelper
from minit.launcher.upgradable import prove, resume
from minit.linux import syscalls
from minit.linux.forks import HEALTH_CHECK, HEALTH_HELPER, fork
from minit.linux.loop import wait_readable
from minit.linux.messages import Socket, send_message
from minit.linux.stdio import complain
from minit.plan.life.health import LIVENESS, NONE, READINESS, STARTUP, HealthCheck, Target
from minit.plan.podplan import PodPlan
from minit.podfiles.controlmessages import NoteHealth
from minit.supervisor.control.ask import ask, ask_state

# How often PID 1 is asked whether an app without a process has one now, or has another process.
_LOOK_SECONDS = 0.5
_RUNNING = "running"

NEVER = float("inf")

_STATUS_BYTES = 4096
_OUTPUT_BYTES = 4096
# Of one check. Reading costs the host processor time, so a check that writes without end waits until the timeout.
_MOST_OUTPUT_BYTES = 1 << 20
_SPARE_SECONDS = 1.0
_GOOD_STATUSES = range(200, 400)


class CheckState(Carried):
    """
    One check of a run of an app: when the check is due, and the meaning of the results. Pure: the caller tells the
    time.

    `healthy` is None until there are enough results. A check is not due while being made.
    """

    check: HealthCheck
    healthy: bool | None
    due_at: float
    _good: int
    _bad: int

    def __init__(self, check: HealthCheck, due_at: float) -> None:
        self.check = check
        self.healthy = None
        self.due_at = due_at
        self._good = 0
        self._bad = 0

    def begin(self) -> None:
        """Note that the check is being made."""
        self.due_at = NEVER

    def note(self, good: bool, now: float) -> bool:
        """
        Count a result at `now` and return whether the result decides: the check has become good, or has failed.

        A failing check fails again after as many results.
        """
        self.due_at = now + self.check.interval_seconds
        if good:
            self._good, self._bad = self._good + 1, 0
            if self.healthy is not True and self._good >= self.check.successes:
                self.healthy = True
                return True
            return False
        self._good, self._bad = 0, self._bad + 1
        if self._bad >= self.check.failures:
            self._bad = 0
            self.healthy = False
            return True
        return False


class AppHealth(Carried):
    """
    The checks of one run of an app, from the first look at the running app.

    The other checks wait until the startup check is good, which is not made again.
    """

    states: dict[str, CheckState]
    _began: float

    def __init__(self, checks: Sequence[HealthCheck], now: float) -> None:
        self.states = {check.kind: CheckState(check, now + check.delay_seconds) for check in checks}
        self._began = now

    def due(self, now: float) -> list[CheckState]:
        """Return the checks due by `now`."""
        return [state for state in self._active() if state.due_at <= now]

    def next_due(self) -> float:
        """Return when the next check is to be made; never, if there is none any more."""
        return min((state.due_at for state in self._active()), default=NEVER)

    def note(self, state: CheckState, good: bool, now: float) -> bool:
        """Count a result of one of the checks, and return whether the result decides."""
        decided = state.note(good, now)
        if decided and good and state.check.kind == STARTUP:
            for kind in (LIVENESS, READINESS):
                if kind in self.states:
                    other = self.states[kind]
                    # The delay counts from the start of the app, as in Kubernetes.
                    other.due_at = max(now, self._began + other.check.delay_seconds)
        return decided

    def _active(self) -> list[CheckState]:
        startup = self.states.get(STARTUP)
        if startup is not None and startup.healthy is not True:
            return [startup]
        return [state for kind, state in self.states.items() if kind != STARTUP]


class HealthHelper(PodHelper):
    """The launcher's side of the helper; the helper `stays` for an added app."""

    kind = "health"
    loss = "the health of apps is not checked"

    def __init__(self, checks: PodChecks, *, stays: bool = False) -> None:
        super().__init__(
            HEALTH_HELPER,
            lambda socket: _help(checks, socket, stays),
            lambda socket, error: _fail(socket if stays else None, error),
        )


class CheckedApp(Carried):
    """An app with checks: the last known process, and the results."""

    name: str
    checks: tuple[HealthCheck, ...]
    pid: int | None
    health: AppHealth | None

    def __init__(self, name: str, checks: tuple[HealthCheck, ...]) -> None:
        self.name = name
        self.checks = checks
        self.pid = None
        self.health = None


class PodChecks(HelperWork):
    """The apps with checks of the pod with PID 1 `pod`, as the helper knows them."""

    pod: int
    apps: list[CheckedApp]

    who = "the health helper"
    name = "minit-health"
    resume = "from minit.launcher.health.healthhelper import resume_checks; resume_checks()"
    prove = "from minit.launcher.health.healthhelper import prove_checks; prove_checks()"

    def __init__(self, plan: PodPlan, pod: int) -> None:
        self.pod = pod
        self.apps = [CheckedApp(app.name, app.life.health) for app in plan.apps if app.life.health]


_CODEC = CarriedCodec(PodChecks)


def resume_checks() -> NoReturn:
    """Be the helper in a program that the helper has executed."""
    resume(_CODEC, _check)


def prove_checks() -> NoReturn:
    """Show whether this program can be the helper with a state."""
    prove(_CODEC)


def _help(checks: PodChecks, socket: Socket, stays: bool) -> None:
    namespace = os.open(f"/proc/{checks.pod}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    syscalls.setns(namespace, syscalls.CLONE_NEWNET)
    os.close(namespace)
    checks.begin(socket, settle(socket, checks.pod) if stays else None)
    _check(checks)


def _check(checks: PodChecks) -> None:
    try:
        _Checker(checks).run()
    except Exception as error:
        _fail(None, error)


def _fail(asker: Socket | None, error: BaseException) -> None:
    if asker is None:
        complain(f"stage1: health helper: {describe(error)}")
    else:
        send_message(asker, {"failed": describe(error)})


class _Checker:
    """The loop of the helper, which PID 1 tells when to look at an added app, or which looks at times."""

    def __init__(self, checks: PodChecks) -> None:
        self._checks = checks
        self._pid = checks.pod
        self._apps = checks.apps
        self._running: dict[str, dict[str, _RunningCheck]] = {app.name: {} for app in checks.apps}
        self._look_at = 0.0
        self._is_told = checks.life is not None

    @property
    def _is_leaving(self) -> bool:
        return self._checks.image is not None

    def run(self) -> None:
        """Check until the other end of the socket is gone, or PID 1, or another program goes on."""
        while self._wait():
            now = time.monotonic()
            self._collect(now)
            if self._is_leaving:
                # Each check that has begun ends here.
                if not any(self._running.values()):
                    self._checks.go_on(_CODEC)
                continue
            is_due = any(app.health is not None and app.health.due(now) for app in self._apps)
            if (is_due or now >= self._look_at) and not self._look(now):
                return
            for app in self._apps:
                self._start_due(app, now)

    def _wait(self) -> bool:
        """Wait until something is to be done, and return whether the other end of the socket is there."""
        link = self._checks.link
        watched = [link.fileno()]
        times = [NEVER if self._is_leaving else self._look_at]
        for app in self._apps:
            if app.health is not None and not self._is_leaving:
                times.append(app.health.next_due())
            for running in self._running[app.name].values():
                watched.append(running.pidfd)
                if running.output.fd is not None and running.output.is_wanted:
                    watched.append(running.output.fd)
                times.append(running.deadline)
        if link.fileno() not in wait_readable(watched, min(times) - time.monotonic()):
            return True
        self._look_at = 0.0
        return self._checks.hear()

    def _look(self, now: float) -> bool:
        """Ask PID 1 which apps run; False if PID 1 is gone."""
        self._look_at = now + _LOOK_SECONDS
        try:
            states = {state.name: state for state in ask_state().apps}
        except ControlError:
            # PID 1 has just started, or has ended, as the launcher knows too.
            return os.path.exists(f"/proc/{self._pid}")
        for app in self._apps:
            state = states.get(app.name)
            pid = state.pid if state is not None and state.state == _RUNNING else None
            if pid is None or pid != app.pid:
                self._forget(app)
            if pid is not None and app.health is None:
                app.pid, app.health = pid, AppHealth(app.checks, now)
        if self._is_told or all(app.health is not None for app in self._apps):
            # Before the next check is soon enough.
            self._look_at = NEVER
        return True

    @staticmethod
    def _is_there() -> bool:
        """Tell whether there is a PID 1, even one that hangs; after the end, or right before, nobody needs results."""
        try:
            ask_state()
        except NoAnswerError as error:
            # A connection that ends without an answer ends with PID 1; one that hangs keeps the connection.
            return isinstance(error.__cause__, BlockingIOError)
        except ControlError:
            return False
        return True

    def _forget(self, app: CheckedApp) -> None:
        for running in self._running[app.name].values():
            _give_up_check(running)
        self._running[app.name].clear()
        app.pid = app.health = None

    def _start_due(self, app: CheckedApp, now: float) -> None:
        if app.health is None:
            return
        for state in app.health.due(now):
            state.begin()
            deadline = now + state.check.timeout_seconds
            self._running[app.name][state.check.kind] = _start_check(state.check, self._pid, app.name, deadline)

    def _collect(self, now: float) -> None:
        for app in self._apps:
            for kind, running in [*self._running[app.name].items()]:
                if running.output.is_wanted:
                    running.output.read()
                if wait_readable([running.pidfd], 0):
                    good, text = _finish_check(running)
                elif now >= running.deadline:
                    said = _give_up_check(running)
                    good, text = False, f"no result in time{f': {said}' if said else ''}"
                else:
                    continue
                del self._running[app.name][kind]
                if app.health is not None:
                    self._note(app, app.health, app.health.states[kind], good, text, now)

    def _note(self, app: CheckedApp, health: AppHealth, state: CheckState, good: bool, text: str, now: float) -> None:
        if not health.note(state, good, now):
            return
        action = NONE if good else state.check.action
        assert app.pid is not None
        try:
            ask(NoteHealth(app=app.name, pid=app.pid, check=state.check.kind, healthy=good, text=text, action=action))
        except ControlError as error:
            if self._is_there():
                complain(f'stage1: health of app "{app.name}": {describe(error)}')
        if action != NONE:
            # The app is stopped now, or has another process soon.
            self._look_at = now


class Output:
    """The output of a check, of which only the end is kept: the process must not wait for a reader."""

    def __init__(self, fd: int) -> None:
        self.fd: int | None = fd
        self._end = b""
        self._taken_bytes = 0

    @property
    def is_wanted(self) -> bool:
        """Tell whether to read more output while the check runs."""
        return self.fd is not None and self._taken_bytes < _MOST_OUTPUT_BYTES

    def read(self) -> None:
        """Take the present output, and do not wait for other holders of the write end."""
        if self.fd is None:
            return
        try:
            # No more than the pipe held: a writer may be as fast as the reader.
            for _ in range(fcntl.fcntl(self.fd, fcntl.F_GETPIPE_SZ) // _OUTPUT_BYTES):
                block = os.read(self.fd, _OUTPUT_BYTES)
                if not block:
                    # The descriptor would wake a waiting loop over and over.
                    self.close()
                    break
                self._taken_bytes += len(block)
                self._end = (self._end + block)[-_OUTPUT_BYTES:]
        except BlockingIOError:
            pass

    def last_line(self) -> str:
        """Return the last line so far, at most 200 characters."""
        lines = self._end.decode("utf-8", "backslashreplace").strip().splitlines()
        return lines[-1][:200] if lines else ""

    def close(self) -> None:
        """Read no more."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class _RunningCheck(Value):
    """A check being made: the process, as a pid and a pidfd, the output, and the end of the time."""

    pid: int
    pidfd: int
    output: Output
    deadline: float


def _start_check(check: HealthCheck, pod: int, app: str, deadline: float) -> _RunningCheck:
    """Fork the process for a check of an app in the pod with PID 1 `pod` on the host."""
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    pid = fork(HEALTH_CHECK, lambda: _make(check, pod, app), {"output": theirs}, tell=_fail_check)
    os.close(theirs)
    os.set_blocking(ours, False)
    return _RunningCheck(pid=pid, pidfd=os.pidfd_open(pid), output=Output(ours), deadline=deadline)


def _finish_check(running: _RunningCheck) -> tuple[bool, str]:
    """Return whether an ended check was good, and the end of the output."""
    _, status = os.waitpid(running.pid, 0)
    text = _close(running)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return True, text
    return False, text or (f"exit code {code}" if code > 0 else f"killed by signal {-code}")


def _give_up_check(running: _RunningCheck) -> str:
    """Kill a check that took too long, with the command, and return the end of the output."""
    os.kill(running.pid, signal.SIGKILL)
    os.waitpid(running.pid, 0)
    return _close(running)


def _close(running: _RunningCheck) -> str:
    """Return the last line of the check's output."""
    running.output.read()
    running.output.close()
    os.close(running.pidfd)
    return running.output.last_line()


def _make(check: HealthCheck, pod: int, app: str) -> int:
    # A second line: the helper ends the process in time.
    timeout_seconds = check.timeout_seconds + _SPARE_SECONDS
    if check.target is None:
        return enter_pod(pod, app, check.command or (), as_app=check.as_app, timeout_seconds=timeout_seconds)
    _reach(check.target, timeout_seconds)
    return 0


def _fail_check(error: BaseException) -> int:
    os.write(2, f"{describe(error)}\n".encode(errors="backslashreplace"))
    return 1


def _reach(target: Target, timeout_seconds: float) -> None:
    """Return if the target answers as it should; OSError or ValueError describes the fault."""
    family = socket.AF_INET6 if ":" in target.host else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.settimeout(timeout_seconds)
    try:
        connection.connect((target.host, target.port))
    except OSError as error:
        raise ValueError(f"connect to port {target.port}: {describe(error)}") from error
    if target.path is not None:
        _ask(connection, target, target.path)


def _ask(connection: socket.socket, target: Target, path: str) -> None:
    host = f"[{target.host}]" if ":" in target.host else target.host
    headers = {"Host": f"{host}:{target.port}", "User-Agent": "minit-health", "Connection": "close"}
    headers.update(target.headers)
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    connection.sendall("".join(f"{line}\r\n" for line in [*lines, ""]).encode("ascii"))
    answer = b""
    while b"\n" not in answer and len(answer) < _STATUS_BYTES and (block := connection.recv(_STATUS_BYTES)):
        answer += block
    words = answer.split(b"\n", 1)[0].split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise ValueError(f"port {target.port}: expected an answer of HTTP")
    if int(words[1]) not in _GOOD_STATUSES:
        raise ValueError(f"{path}: HTTP status {int(words[1])}")
