"""
minit.supervisor.execution: a supervisor that goes on from the state of another, after an error at any line of its code.

As in test_supervisor, but each error is followed by a supervisor made of the state, in the same process. So no line of
the other half of an execution, execve(2), is here: tests/contract/test_reexecution.py has that.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import minit.supervisor
from minit.base.errors import EXIT_FAILURE
from minit.linux import syscalls
from minit.linux.loop import wait_readable
from minit.linux.messages import Socket, fill_memory_file
from minit.plan.appspec import AppSpec
from minit.plan.life.hooks import Hook
from minit.plan.life.restart import ALWAYS, ON_FAILURE, RestartPolicy
from minit.podfiles import paths
from minit.supervisor.apps import starts as starts_module
from minit.supervisor.apps.apprun import EXECUTED
from minit.supervisor.apps.controlgroup import GroupEnds
from minit.supervisor.apps.podapp import App
from minit.supervisor.exec.child import ChildEnds
from minit.supervisor.execution import CODEC, Failure, FirstProcess, go_on, make_supervisor
from minit.supervisor.lastloop import Reserve
from minit.supervisor.supervisor import Supervisor
from tests.support.campaign import LONG
from tests.unit.test_supervisor import (
    NAMESPACE,
    NOT_TOLD,
    PATIENCE_SECONDS,
    Outcome,
    Script,
    be_app,
    execute,
    exits,
    groups,
    in_child,
    make_groups,
    root,
    running,
    sleeps,
    start_pod,
)

__all__ = ["groups", "root"]  # fixtures
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="control groups and chroot need root")

# Of the turn that sees the end of an app with a handler, about.
ALLOCATIONS = 1000
SOME_ALLOCATIONS = 6
MOST_LINES = 1 << 30
# Of a pod whose clock is the test's.
MOST_DESCRIPTORS = 20
LIFE_SECONDS = (7 * 24 if LONG else 4) * 3600.0
CODE = os.path.dirname(minit.supervisor.__file__)
# In the half of a fork that becomes another process, and where errors are dealt with.
ELSEWHERE = ("/execution.py", "/exec/child.py")
LAST_LOOP = f"{CODE}/lastloop.py"
SAMPLES = 20
# Of a long run over all lines, each within the time of a test.
PARTS = 16 if LONG else 1
in_parts = pytest.mark.parametrize("part", range(PARTS))
# What a pod in a test needs at most, beside the memory of the test.
MORE_BYTES = 64 << 20


class Injected(Exception):
    """An error of PID 1's own."""


class Stopped(Exception):
    """The last loop has stopped the pod."""


class Injection:
    """
    Raises an error at a line of the supervisor's code, by the number of the lines before; None counts only.

    The code is that in files below `code`.
    """

    def __init__(self, at: int | None, code: str = CODE) -> None:
        self.lines = 0
        self._at = at
        self._code = code
        self._pid = os.getpid()

    def __call__(self, frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        """Trace a call or a line, sys.settrace."""
        path = frame.f_code.co_filename
        if os.getpid() != self._pid or not path.startswith(self._code) or path.endswith(ELSEWHERE):
            return None
        if event == "line":
            self.lines += 1
            if self.lines - 1 == self._at:
                raise Injected(f"{path}:{frame.f_lineno}")
        return self


class Pod:
    """
    A pod whose supervisor is exchanged after each error, and if wanted after each turn.

    With an injection `in_last_loop` an error ends in the last loop.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        kept: Sequence[int],
        injection: Injection | None,
        in_last_loop: Injection | None = None,
    ) -> None:
        launcher = supervisor.outside.socket  # type: ignore[attr-defined]
        self._kept = kept
        self.process = FirstProcess(supervisor, launcher, os.open("/", os.O_RDONLY | os.O_DIRECTORY), None)
        self.exchanges = 0
        self.errors: list[str] = []
        self._old: list[FirstProcess] = []
        self._injection = injection
        self._in_last_loop = in_last_loop

    @property
    def supervisor(self) -> Supervisor:
        """The present supervisor."""
        return self.process.supervisor

    def turn_until(self, condition: Callable[[Supervisor], bool]) -> None:
        """Let the supervisors handle events until the condition holds."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not condition(self.supervisor):
            states = {app.name: (app.state, app.due) for app in self.supervisor.apps.values()}
            assert time.monotonic() < until, (states, self.errors)
            self.do(lambda supervisor: supervisor.turn(0.05))

    def do(self, work: Callable[[Supervisor], object]) -> None:
        """Do some work of PID 1; after an error do it once more with the next supervisor."""
        try:
            sys.settrace(self._injection)  # type: ignore[arg-type]
            try:
                work(self.supervisor)
            finally:
                sys.settrace(None)
            if self._injection is None:
                self.exchange()
        except Injected as error:
            self.errors.append(str(error))
            if self._in_last_loop is not None:
                self.stop()
            self.exchange()
            work(self.supervisor)

    def stop(self) -> None:
        """Stop the pod by the last loop."""
        self.process.hold(self.supervisor)
        sys.settrace(self._in_last_loop)  # type: ignore[arg-type]
        try:
            self.process.stop_pod("injected", self.supervisor.journal)
        finally:
            sys.settrace(None)
        raise Stopped

    def exchange(self, *, is_supervised: bool = True) -> None:
        """Have another supervisor go on from the state, or have the state only."""
        self.exchanges += 1
        self.supervisor.keep_specs()
        for app in self.supervisor.apps.values():
            for carried in (app, app.run, app.run.streams, app.group):
                assert {*vars(carried)} - {"spec"} == {*carried._fields}
        if self.process.filter_file is None:
            self.process.filter_file = os.memfd_create("filter")
        self.supervisor.journal.events.leave()
        self.process.hold(self.supervisor)
        state, descriptors = CODEC.encode(self.process)
        for other in gc.get_objects():
            if isinstance(other, socket.socket) and other.fileno() in descriptors:
                other.detach()
        # As execve(2) does. What has been closed must not be closed by its owner once more.
        self._old.append(self.process)
        syscalls.close_all_but((0, 1, 2, *descriptors, *self._kept))
        self.process = CODEC.decode(state, "state")
        if is_supervised:
            make_supervisor(self.process)
            go_on(self.process)


def journey(
    root: Path,
    groups: Mapping[str, GroupEnds],
    at: int | None = None,
    *,
    exchanging: bool = False,
    last_at: int | None = None,
    ends_in_last_loop: bool = False,
    act: Callable[[Pod], object] = lambda pod: None,
) -> Outcome:
    """
    Run a pod of three apps with handlers and a hook, one that ends and two that are stopped; return the outcome.

    The result has the number of lines, the number of exchanges, and where errors were raised.
    """

    def run(kept: list[int]) -> dict[str, Any]:
        injection = None if exchanging else Injection(at)
        in_last_loop = Injection(last_at, LAST_LOOP) if ends_in_last_loop else None
        return _run(root, groups, injection, in_last_loop, kept, act)

    return in_child(root, run)


def _run(
    root: Path,
    groups: Mapping[str, GroupEnds],
    injection: Injection | None,
    in_last_loop: Injection | None,
    kept: Sequence[int],
    act: Callable[[Pod], object],
) -> dict[str, Any]:
    def says(code: int) -> Script:
        def script(report: Socket) -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
            execute(report)
            os.write(1, b"up\n")
            signal.sigwait((signal.SIGTERM,))
            os.write(1, b"down\n")
            os._exit(code)

        return script

    touch = ("/bin/sh", "-c")
    specific: dict[str, dict[str, Any]] = {
        "a": {"pre_start": (*touch, f"touch {root}/pre"), "post_stop": (*touch, f"touch {root}/post")},
        "b": {"pre_stop": Hook(sleep_seconds=0.01)},
    }
    scripts = {"a": exits(0), "b": says(5), "c": says(0)}
    supervisor, launcher, events = start_pod(root, groups, scripts, PATIENCE_SECONDS, specific)
    pod = Pod(supervisor, [*kept, launcher.fileno()], injection, in_last_loop)
    with suppress(Stopped):
        act(pod)
        pod.turn_until(lambda supervisor: not supervisor.pod.order.starting)
        pod.do(lambda supervisor: supervisor.sidecars.start_all())
        pod.turn_until(lambda supervisor: supervisor.apps["a"].state == "exited")
        os.kill(os.getpid(), signal.SIGTERM)
        pod.turn_until(lambda supervisor: supervisor.pod.finished)
        pod.do(lambda supervisor: supervisor.drain())
    counted = in_last_loop or injection
    lines = 0 if counted is None else counted.lines
    result = {"lines": lines, "exchanges": pod.exchanges, "errors": pod.errors}
    return {"result": result, "exit_code": pod.process.pod.exit_code, "events": events}


def check(root: Path, outcome: Outcome) -> None:
    """Check that nobody has noticed anything."""
    assert (outcome.exit_code, outcome.status) == (0, {"a": 0, "b": 5, "c": 0}), (outcome.result, outcome.errors)
    assert (root / "pre").exists() and (root / "post").exists(), (outcome.result, outcome.errors)
    assert [outcome.log(root, app) for app in ("b", "c")] == [["up", "down"], ["up", "down"]], outcome.result


def chosen(lines: int, part: int) -> range:
    """Return the lines to raise an error at, by number: a sample, in a long run a part of all."""
    return range(part, lines, PARTS if LONG else lines // SAMPLES)


def clear(root: Path) -> None:
    """Remove what the pod of another journey has left."""
    for name in ("pre", "post", *(f"rkt/status/{app}" for app in ("a", "b", "c"))):
        (root / name).unlink(missing_ok=True)
    for log in (root / "rkt/minit/log").iterdir():
        log.unlink()


def check_stopped(root: Path, outcome: Outcome) -> None:
    """Check that each app that ran has been stopped in order, has the status and all output."""
    assert outcome.exit_code == 0, (outcome.result, outcome.errors)
    for app, code in {"b": 5, "c": 0}.items():
        log = root / f"rkt/minit/log/{app}.log"
        lines = outcome.log(root, app) if log.exists() else []
        if lines:
            assert (lines, outcome.status.get(app)) == (["up", "down"], code), (app, outcome.result, outcome.errors)
    # Without its /proc nobody can tell that a process never was the app.
    assert outcome.status.get("a", 0) in (0, NOT_TOLD), (outcome.result, outcome.errors)
    assert not outcome.ready


def test_every_turn_in_another_supervisor(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """The state has everything: each turn of PID 1 is done by a supervisor made of the state of the last."""
    outcome = journey(root, groups, exchanging=True)
    check(root, outcome)
    assert outcome.result["exchanges"] > 3


@in_parts
def test_an_error_at_every_line(root: Path, groups: Mapping[str, GroupEnds], part: int) -> None:
    """An error anywhere in PID 1's callbacks costs no status, no output and no handler, and the pod ends as without."""
    lines = journey(root, groups).result["lines"]
    assert lines > 1000
    for at in chosen(lines, part):
        clear(root)
        check(root, journey(root, groups, at))


@in_parts
def test_the_last_loop_after_an_error_at_every_line(root: Path, part: int) -> None:
    """Whatever the supervisor has been doing: the last loop stops all apps with their grace, and loses no status."""
    with make_groups() as groups:
        lines = journey(root, groups).result["lines"]
    for at in chosen(lines, part):
        clear(root)
        # A group in which all were killed may kill whoever is born there.
        with make_groups() as groups:
            outcome = journey(root, groups, at, ends_in_last_loop=True)
        # Another pod may have been done with fewer lines.
        if outcome.result["errors"]:
            check_stopped(root, outcome)
        else:
            check(root, outcome)


@in_parts
def test_an_error_at_every_line_of_the_last_loop(root: Path, part: int) -> None:
    """An error in the last loop loses nothing either."""

    def act(pod: Pod) -> None:
        pod.turn_until(lambda supervisor: not supervisor.pod.order.starting)
        pod.do(lambda supervisor: supervisor.sidecars.start_all())
        pod.turn_until(lambda supervisor: supervisor.apps["a"].state == "exited")
        pod.stop()

    with make_groups() as groups:
        lines = journey(root, groups, act=act, ends_in_last_loop=True).result["lines"]
    assert lines > 200
    for at in chosen(lines, part):
        clear(root)
        with make_groups() as groups:
            outcome = journey(root, groups, act=act, last_at=at, ends_in_last_loop=True)
        check_stopped(root, outcome)
        assert outcome.status == {"a": 0, "b": 5, "c": 0}, (at, outcome.errors)


def turn_without_memory(pod: Pod, at: int) -> None:
    """Let the supervisor have a turn in which one allocation fails, by the number of the allocations before."""
    interpreter = pytest.importorskip("_testcapi")
    pid = os.getpid()
    # The failure is PID 1's alone.
    os.register_at_fork(after_in_child=interpreter.remove_mem_hooks)
    try:
        interpreter.set_nomemory(at, at + 1)
        try:
            pod.supervisor.turn()
        finally:
            interpreter.remove_mem_hooks()
            if os.getpid() != pid:
                # Forked by ctypes, which allocates in the new process, unlike the calls of a dumped program.
                os._exit(EXIT_FAILURE)
    except Exception as error:
        # ctypes has an error of its own for an argument without memory.
        pod.errors.append(repr(error))
        pod.exchange()


@in_parts
def test_an_allocation_that_fails(root: Path, part: int) -> None:
    """A turn is to see the end of an app: whichever allocation fails, nothing is lost."""
    pytest.importorskip("_testcapi", reason="needs an interpreter with its tests")

    def act(pod: Pod, at: int) -> None:
        pod.turn_until(lambda supervisor: supervisor.apps["a"].run.reached >= EXECUTED)
        run = pod.supervisor.apps["a"].run
        assert run.pidfd is not None and run.reaped is None
        assert wait_readable([run.pidfd], PATIENCE_SECONDS)
        turn_without_memory(pod, at)

    numbers = range(part, ALLOCATIONS, PARTS if LONG else ALLOCATIONS // SOME_ALLOCATIONS)
    reached = 0
    for at in numbers:
        clear(root)
        with make_groups() as groups:
            outcome = journey(root, groups, MOST_LINES, act=partial(act, at=at))
        # Of a handler whose interpreter ends right after the fork, for want of memory.
        if "Fatal Python error" not in outcome.errors:
            check(root, outcome)
        reached += bool(outcome.result["errors"])
    assert reached > len(numbers) // 2


def test_a_mark_that_is_there(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """An error right after the pod was marked as ready has the pod marked once more."""
    outcome = journey(root, groups, MOST_LINES, act=lambda _: os.symlink(paths.READY_TARGET, paths.STAGE1_READY))
    check(root, outcome)
    assert "pod.ready" in outcome.events


def exhaust_memory(most_bytes: int) -> list[bytes]:
    """Take all memory that this process can have, up to so much in all, and return what has been taken."""
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    taken: list[bytes] = []
    for piece_bytes in (1 << 20, 1 << 16, 1 << 12, 1 << 8, 64):
        with suppress(MemoryError):
            while True:
                taken.append(bytes(piece_bytes))
    return taken


def test_a_reserve_of_memory(root: Path) -> None:
    """
    After the last byte is taken, what is put aside is enough for the state of a pod, and then for the last loop.

    The file for the state has its pages before.
    """
    most_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MORE_BYTES

    def act(pod: Pod) -> None:
        pod.turn_until(lambda supervisor: not supervisor.pod.order.starting)
        pod.do(lambda supervisor: supervisor.sidecars.start_all())
        pod.turn_until(lambda supervisor: supervisor.apps["a"].state == "exited")
        reserve = Reserve()
        reserve.fill(3)
        pod.supervisor.keep_specs()
        taken = exhaust_memory(most_bytes)
        reserve.let_go()
        memory = reserve.take_file()
        pages = os.fstat(memory).st_blocks
        state, _ = CODEC.encode(pod.process)
        fill_memory_file(memory, state)
        assert taken and 512 * pages > len(state) and os.fstat(memory).st_size == len(state)
        del state
        pod.stop()

    with make_groups() as groups:
        outcome = journey(root, groups, act=act, ends_in_last_loop=True)
    assert (outcome.exit_code, outcome.status) == (0, {"a": 0, "b": 5, "c": 0}), outcome.errors
    assert "MemoryError" not in outcome.errors


def test_a_new_program_without_a_supervisor(root: Path) -> None:
    """An error before there is a supervisor, in a program that cannot be executed: the objects are enough to stop."""

    def act(pod: Pod) -> None:
        pod.turn_until(lambda supervisor: not supervisor.pod.order.starting)
        pod.do(lambda supervisor: supervisor.sidecars.start_all())
        pod.turn_until(lambda supervisor: supervisor.apps["a"].state == "exited")
        pod.exchange(is_supervised=False)
        try:
            raise Injected("made")
        except Injected as error:
            pod.process.begin_once_more(error)
        raise Stopped

    with make_groups() as groups:
        outcome = journey(root, groups, act=act, exchanging=True)
    assert (outcome.exit_code, outcome.status) == (0, {"a": 0, "b": 5, "c": 0}), outcome.errors
    assert [outcome.log(root, app) for app in ("b", "c")] == [["up", "down"], ["up", "down"]]
    assert "PID 1 cannot begin anew: this program of PID 1 cannot be executed: the pod is stopped" in outcome.errors


def test_an_error_that_comes_back_ends_its_app(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """Twice within a second in work for one app: that app has failed, and the pod ends with it in order."""

    def act(pod: Pod) -> None:
        pod.turn_until(lambda supervisor: not supervisor.pod.order.starting)
        pod.do(lambda supervisor: supervisor.sidecars.start_all())
        pod.turn_until(lambda supervisor: supervisor.apps["a"].state == "exited")
        moment = time.monotonic()
        pod.process.failures = [Failure(moment=moment, app="c"), Failure(moment=moment, app="c")]
        pod.exchange()
        # Before anybody asks for a stop.
        pod.turn_until(lambda supervisor: supervisor.pod.exit_code is not None)

    outcome = journey(root, groups, act=act)
    assert (outcome.exit_code, outcome.status) == (254, {"a": 0, "b": 5, "c": 254})
    assert 'app "c": supervisor: an error of PID 1\'s own came back' in outcome.errors


class Clock:
    """A monotonic clock that goes as the real one, and forward at a word; it is that of this process."""

    def __init__(self) -> None:
        self._real = time.monotonic
        self._ahead_seconds = 0.0
        time.monotonic = self

    def __call__(self) -> float:
        return self._real() + self._ahead_seconds

    def go_to(self, moment: float) -> None:
        """Let it be that moment, unless it is later."""
        self._ahead_seconds = max(self._ahead_seconds, moment - self._real())


def fork_again(scripts: Mapping[str, Script]) -> Callable[..., tuple[int, int]]:
    """Return what forks an app whose script this is, in place of the real one, which needs a root for the app."""

    def fork(spec: AppSpec, rootfs: str, ends: ChildEnds, birthplace: int | None, pids: int | None) -> tuple[int, int]:
        pid, pidfd = syscalls.clone3(cgroup=birthplace)
        if pid == 0:
            assert ends.stdout is not None
            be_app(ends.report, ends.stdout, ends.cgroup_tasks, scripts[spec.name])
        return pid, pidfd

    return fork


def waits_for_restart(app: App, supervisor: Supervisor) -> bool:
    """Tell whether nothing of an app is left but the time until the next start."""
    is_planned = app.restarts is not None and app.restarts.delay_seconds is not None
    return is_planned and app.run.deadline is not None and not supervisor.sidecars.read(app.name)


def expected_restarts(policy: RestartPolicy) -> int:
    """Return how often an app that ends at once is started again."""
    count, seconds, delay_seconds = -1, 0.0, policy.delay_seconds
    while seconds < LIFE_SECONDS:
        count, seconds = count + 1, seconds + delay_seconds
        delay_seconds = min(2 * delay_seconds, policy.max_delay_seconds)
    return count


@pytest.mark.timeout(3600 if LONG else 120)
def test_a_week(root: Path, groups: Mapping[str, GroupEnds], monkeypatch: pytest.MonkeyPatch) -> None:
    """Apps are started again when they should be until the pod's deadline, under many supervisors."""
    policies = {
        "a": RestartPolicy(condition=ALWAYS, delay_seconds=1, max_delay_seconds=300),
        "b": RestartPolicy(condition=ON_FAILURE, delay_seconds=1000, max_delay_seconds=1000),
    }
    scripts = {"a": exits(0), "b": exits(3), "c": sleeps}
    monkeypatch.setattr(starts_module, "fork_app", fork_again(scripts))

    def run(kept: list[int]) -> dict[str, Any]:
        clock = Clock()
        specific = {name: {"restart": policy} for name, policy in policies.items()}
        supervisor, launcher, events = start_pod(
            root, groups, scripts, PATIENCE_SECONDS, specific, deadline_seconds=LIFE_SECONDS
        )
        pod = Pod(supervisor, [*kept, launcher.fileno(), NAMESPACE], Injection(None))
        begin = time.monotonic()
        pod.turn_until(running)
        supervisor.sidecars.start_all()
        numbers: list[int] = []
        exchanged: list[int] = []
        while not pod.supervisor.pod.finished:
            if all(waits_for_restart(pod.supervisor.apps[name], pod.supervisor) for name in policies):
                # Once for each run: the next supervisor has something to do a second later.
                starts = [app.starts for app in pod.supervisor.apps.values()]
                if starts != exchanged:
                    exchanged = starts
                    pod.exchange()
                    numbers.append(os.dup(0))
                    os.close(numbers[-1])
                moment = pod.supervisor.next_deadline()
                assert moment is not None
                clock.go_to(moment)
            pod.supervisor.turn(0.05)
        pod.supervisor.drain()
        restarts = {name: pod.supervisor.apps[name].restarts for name in policies}
        result = {
            "seconds": time.monotonic() - begin,
            "restarts": {name: each.count for name, each in restarts.items() if each is not None},
            "lowest_free": max(numbers),
            "exchanges": pod.exchanges,
        }
        return {"result": result, "exit_code": pod.process.pod.exit_code, "events": events}

    outcome = in_child(root, run)
    assert outcome.result["seconds"] >= LIFE_SECONDS
    for name, policy in policies.items():
        expected = expected_restarts(policy)
        # The runs themselves take time.
        assert expected * 0.99 - 1 <= outcome.result["restarts"][name] <= expected, outcome.result
    assert outcome.status == {"a": 0, "b": 3, "c": 0}
    assert outcome.result["lowest_free"] < MOST_DESCRIPTORS
