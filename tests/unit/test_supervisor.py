"""
minit.supervisor.supervisor and what it is made of: the pod's policy, with real processes, groups and files.

The supervisor runs in a forked process whose root is a directory with what it writes to. Its apps are forked
children that speak as a starting app does and then do what the test says.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import stat
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from minit.base.value import replace
from minit.iottymux.spawner import Spawner
from minit.launcher.cgroups import make_pod_groups, pod_subcgroup, read_hierarchies, remove_pod_groups
from minit.linux import syscalls
from minit.linux.messages import Socket, receive_message, send_message, socket_pair
from minit.linux.process import join_cgroups, read_attributes, reset_signals
from minit.plan.appspec import AppSpec
from minit.plan.confinement import Confinement
from minit.plan.life.restart import ALWAYS, RestartPolicy
from minit.plan.lifeplan import LifePlan
from minit.plan.podplan import PodPlan
from minit.plan.process import ProcessPlan
from minit.plan.streams import STREAM_LOG, STREAM_NULL, StreamsPlan
from minit.supervisor.apps import handlers as handlers_module
from minit.supervisor.apps import processes as processes_module
from minit.supervisor.apps.apprun import Handler
from minit.supervisor.apps.context import Context
from minit.supervisor.apps.controlgroup import Group, GroupEnds
from minit.supervisor.apps.handlers import spawn_handler
from minit.supervisor.apps.lifecycle import Action, State
from minit.supervisor.apps.podapp import App
from minit.supervisor.apps.processes import KILL_WAIT_SECONDS
from minit.supervisor.journal import Journal
from minit.supervisor.launcherlink import LauncherLink
from minit.supervisor.output.streams import Streams
from minit.supervisor.supervisor import WATCHED_SIGNALS, Supervisor

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="control groups and chroot need root")

Script = Callable[[Socket], object]
Drive = Callable[[Supervisor, Socket], object]
NAMES = ("a", "b", "c")
PATIENCE_SECONDS = 90.0
PR_SET_CHILD_SUBREAPER = 36
ATTRIBUTES = read_attributes()
# What an app passes for its own: a handler joins it, and so finds itself in the root of this machine.
NAMESPACE = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A stage1 root with the directories that PID 1 writes to."""
    for name in ("rkt/status", "rkt/minit/state", "rkt/minit/log", "dev", "proc/self"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "proc/self/oom_score_adj").touch()
    os.mknod(tmp_path / "dev/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    return tmp_path


@pytest.fixture
def groups() -> Iterator[Mapping[str, GroupEnds]]:
    """Control groups for three apps, removed after the test."""
    with make_groups() as made:
        yield made


@contextmanager
def make_groups() -> Iterator[Mapping[str, GroupEnds]]:
    """Make control groups for three apps, and remove them."""
    hierarchies = read_hierarchies()
    path = pod_subcgroup(hierarchies, str(uuid.uuid4()))
    made = make_pod_groups(hierarchies, path, NAMES)
    try:
        yield {ends.app: ends for ends in made.apps}
    finally:
        for ends in made.apps:
            Group(ends).kill()
        for fd in (*made.tasks, *(fd for ends in made.apps for fd in ends.descriptors())):
            os.close(fd)
        if made.supervisor is not None:
            os.close(made.supervisor)
        assert remove_pod_groups(hierarchies, path) == []


class Outcome:
    """The result of a supervisor: its exit code, its statuses and logs, and its messages on stderr."""

    def __init__(self, root: Path, answer: dict[str, Any], errors: str) -> None:
        self.result = answer["result"]
        self.exit_code = answer["exit_code"]
        self.events = [event for event, _ in answer["events"]]
        self.errors = errors
        self.status = {
            file.name: int(file.read_text())
            for file in (root / "rkt/status").iterdir()
            if not file.name.endswith("-started")
        }
        self.ready = (root / "rkt/supervisor-status").is_symlink()

    @staticmethod
    def log(root: Path, app: str) -> list[str]:
        """Return the lines of an app's log without their time and tags."""
        text = (root / f"rkt/minit/log/{app}.log").read_text()
        return [line.split(" ", 3)[3] for line in text.splitlines()]


def supervise(
    root: Path,
    groups: Mapping[str, GroupEnds],
    scripts: Mapping[str, Script],
    drive: Drive = lambda supervisor, launcher: None,
    grace_seconds: float = 3600,
    specific: Mapping[str, dict[str, Any]] | None = None,
) -> Outcome:
    """Run a supervisor whose apps are `scripts` until it is finished; `drive` is called once it has started."""
    return in_child(root, lambda _: _supervise(root, groups, scripts, drive, grace_seconds, specific))


def in_child(root: Path, work: Callable[[list[int]], dict[str, Any]]) -> Outcome:
    """Return the outcome of work in a child, whose descriptors for answers and errors the work has to keep."""
    answers, errors = os.memfd_create("answers"), os.memfd_create("errors")
    child = os.fork()
    if child == 0:
        try:
            os.dup2(errors, 2)
            os.dup2(errors, 1)
            os.write(answers, json.dumps(work([answers, errors])).encode())
        except BaseException:
            # Not to sys.stderr, which may have another descriptor than 2.
            os.write(errors, traceback.format_exc().encode())
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.waitpid(child, 0)
    said = _content(errors).decode()
    answered = _content(answers)
    assert answered, said
    return Outcome(root, json.loads(answered), said)


def _content(fd: int) -> bytes:
    with open(fd, "rb") as file:
        file.seek(0)
        return file.read()


def _supervise(
    root: Path,
    groups: Mapping[str, GroupEnds],
    scripts: Mapping[str, Script],
    drive: Drive,
    grace_seconds: float,
    specific: Mapping[str, dict[str, Any]] | None,
) -> dict[str, Any]:
    supervisor, launcher, events = start_pod(root, groups, scripts, grace_seconds, specific)
    result = drive(supervisor, launcher)
    turn_until(supervisor, lambda: supervisor.pod.finished)
    supervisor.drain()
    return {"result": result, "exit_code": supervisor.pod.exit_code, "events": events}


def start_pod(
    root: Path,
    groups: Mapping[str, GroupEnds],
    scripts: Mapping[str, Script],
    grace_seconds: float,
    specific: Mapping[str, dict[str, Any]] | None,
    deadline_seconds: float | None = None,
) -> tuple[Supervisor, Socket, list[tuple[str, dict[str, object]]]]:
    """Return a supervisor in this process, with the launcher's end of the link and the list of future events."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) == 0  # orphans come here, as they do to PID 1
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED_SIGNALS)
    signals = syscalls.signalfd(WATCHED_SIGNALS)
    os.chroot(root)
    os.chdir("/")
    least = AppSpec(
        name="",
        process=ProcessPlan(candidates=("/x",)),
        confinement=Confinement(),
        streams=StreamsPlan(stdout=STREAM_LOG, stderr=STREAM_NULL),
        life=LifePlan(stop_grace_seconds=grace_seconds),
    )
    specs = tuple(_with(replace(least, name=name), (specific or {}).get(name, {})) for name in scripts)
    plan = PodPlan(uuid="u", hostname="h", namespaces=(), apps=(), bounding=None, deadline_seconds=deadline_seconds)
    launcher, theirs = socket_pair()
    spawner = Spawner()
    apps = [_fork_app(spec, groups[spec.name], scripts[spec.name], launcher) for spec in specs]
    events: list[tuple[str, dict[str, object]]] = []
    journal = Journal(debug=True)
    journal.attach(lambda event, fields: events.append((event, fields)))
    control, _ = socket_pair()
    context = Context(plan.traits, apps, theirs, journal)
    supervisor = Supervisor(context, LauncherLink(context, theirs), control, signals)
    assert context.actions.keys() == {*Action}
    supervisor.start(spawner)
    return supervisor, launcher, events


def _with(spec: AppSpec, fields: Mapping[str, Any]) -> AppSpec:
    """Return a spec with other streams, and with other fields of its life."""
    life = {name: value for name, value in fields.items() if name != "streams"}
    return replace(spec, streams=fields.get("streams", spec.streams), life=replace(spec.life, **life))


def _fork_app(spec: AppSpec, ends: GroupEnds, script: Script, launcher: Socket) -> App:
    app = App(spec, ends, ATTRIBUTES)
    logged = [
        name for name, mode in (("stdout", spec.streams.stdout), ("stderr", spec.streams.stderr)) if mode == STREAM_LOG
    ]
    [writer] = app.run.streams.open(logged).values()
    ours, theirs = socket_pair()
    app.run.pid, app.run.pidfd = syscalls.clone3(cgroup=ends.directory if ends.is_v2 else None)
    if app.run.pid == 0:
        be_app(theirs, writer, ends.tasks, script)
    app.run.streams.pid = app.run.pid
    app.run.report = ours
    theirs.close()
    os.close(writer)
    return app


def be_app(report: Socket, output: int, tasks: tuple[int, ...], script: Script) -> NoReturn:
    """Become an app in its groups, which speaks by `report`, writes to `output` and does what `script` says."""
    try:
        os.dup2(output, 1)
        syscalls.close_all_but((0, 1, 2, report.fileno(), NAMESPACE, *tasks))
        join_cgroups(tasks)
        reset_signals()
        script(report)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(77)


def turn_until(supervisor: Supervisor, condition: Callable[[], bool], pause_seconds: float = PATIENCE_SECONDS) -> None:
    """Let the supervisor handle its events until the condition holds, which is looked at after each pause at least."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        left = until - time.monotonic()
        assert left > 0, {app.name: app.state for app in supervisor.apps.values()}
        supervisor.turn(min(left, pause_seconds))


# What apps do.


def prepare(report: Socket) -> None:
    """Say that everything is prepared, as a starting app does."""
    send_message(report, {"prepared": []}, [NAMESPACE])


# What a process ends with that is not told to execute.
NOT_TOLD = 78


def execute(report: Socket) -> None:
    """Prepare, wait for "go" and close the socket, which is what execve(2) does."""
    prepare(report)
    if report.recv(16) != b"go":
        os._exit(NOT_TOLD)
    report.close()


def exits(code: int) -> Script:
    """Return an app that exits."""

    def script(report: Socket) -> None:
        execute(report)
        os._exit(code)

    return script


def sleeps(report: Socket) -> None:
    """Run until a signal ends it."""
    execute(report)
    while True:
        signal.pause()


def ignores_sigterm(report: Socket) -> None:
    """Run until SIGKILL."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleeps(report)


def running(supervisor: Supervisor) -> bool:
    """Tell whether every app was executed."""
    return not supervisor.pod.order.starting


def dead(app: App) -> None:
    """Block until the process of an app has ended, without reaping it."""
    assert app.run.pid is not None
    os.waitid(os.P_PID, app.run.pid, os.WEXITED | os.WNOWAIT)


# The policy of an immutable pod.


def test_an_app_that_cannot_be_killed_ends_the_pod(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """The others are stopped as by any other failure, and the pod has failed though the app ended well."""
    own = Path(f"/proc/self/fd/{groups['a'].freezer}").readlink()
    # Of the group around those of the apps, which a kill cannot thaw.
    state = os.open(own.parents[1] / own.name, os.O_WRONLY | os.O_CLOEXEC)

    def leaves_a_child(report: Socket) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        execute(report)
        if os.fork() == 0:
            while True:
                signal.pause()
        os._exit(0)

    def drive(supervisor: Supervisor, launcher: Socket) -> None:
        processes_module.KILL_WAIT_SECONDS = 0.1
        turn_until(supervisor, lambda: supervisor.apps["a"].state == State.LINGERING)
        os.write(state, b"FROZEN")
        turn_until(supervisor, lambda: supervisor.apps["a"].state == State.EXITED)
        os.write(state, b"THAWED")

    scripts = {"a": leaves_a_child, "b": sleeps}
    try:
        outcome = supervise(root, groups, scripts, drive, specific={"a": {"stop_grace_seconds": 0.2}})
    finally:
        os.write(state, b"THAWED")
        os.close(state)
    assert (outcome.exit_code, outcome.status) == (254, {"a": 0, "b": 0})
    assert "pod.stopping" in outcome.events


def test_the_launcher_is_told_how_long_the_end_takes(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """With each request, so that it can tell a pod that takes its time from one whose PID 1 hangs."""

    def drive(supervisor: Supervisor, launcher: Socket) -> list[object]:
        turn_until(supervisor, lambda: running(supervisor))
        told = []
        for _ in range(2):
            supervisor.request_stop()
            message, _ = receive_message(launcher)
            assert message is not None
            told.append(message["seconds"])
        return told

    patient, hurried = supervise(root, groups, {"a": ignores_sigterm}, drive, grace_seconds=1000).result
    assert 900 < patient <= 1000 and 0 < hurried <= KILL_WAIT_SECONDS


def test_what_an_app_that_starts_again_leaves_behind_is_killed(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """The grace period of what is left of an app is that, and not the time after which the app is started again."""

    def leaves_a_child(report: Socket) -> None:
        execute(report)
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                signal.pause()
        os._exit(3)

    def drive(supervisor: Supervisor, launcher: Socket) -> list[object]:
        app = supervisor.apps["a"]
        turn_until(supervisor, lambda: app.state == State.EXITED)
        seen: list[object] = [app.is_restarting, app.restart_at is not None]
        supervisor.request_stop()
        return seen

    policy = RestartPolicy(condition=ALWAYS, delay_seconds=3600, max_delay_seconds=3600)
    specific = {"a": {"restart": policy}}
    outcome = supervise(root, groups, {"a": leaves_a_child}, drive, grace_seconds=0.2, specific=specific)
    assert (outcome.result, outcome.status) == ([True, True], {"a": 3})


# Starting.


def test_an_app_killed_before_it_is_prepared_ends_the_pod(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """A SIGKILL, from the OOM killer say, that leaves no report does not leave the others waiting for ever."""

    def killed(report: Socket) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    outcome = supervise(root, groups, {"a": sleeps, "b": killed})
    assert (outcome.exit_code, outcome.status) == (137, {"b": 137})
    assert 'stage1: app "b": killed by signal 9\n' in outcome.errors


def test_an_app_killed_while_it_waits_ends_the_pod(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """Prepared and then gone is a failure, too."""

    def killed(report: Socket) -> None:
        prepare(report)
        os.kill(os.getpid(), signal.SIGKILL)

    def slow(report: Socket) -> None:
        os.read(os.open("/gate", os.O_RDONLY), 1)
        sleeps(report)

    def drive(supervisor: Supervisor, launcher: Socket) -> None:
        turn_until(supervisor, lambda: supervisor.apps["b"].run.end is not None)

    os.mkfifo(root / "gate")
    outcome = supervise(root, groups, {"a": slow, "b": killed}, drive)
    assert (outcome.exit_code, outcome.status) == (137, {"b": 137})


def test_an_app_that_dies_as_the_last_is_prepared_does_not_take_pid_1_along(
    root: Path, groups: Mapping[str, GroupEnds]
) -> None:
    """Telling a dead app to go is no error of the supervisor's."""

    def killed(report: Socket) -> None:
        os.read(os.open("/gate", os.O_RDONLY), 1)
        prepare(report)
        os.kill(os.getpid(), signal.SIGKILL)

    def drive(supervisor: Supervisor, launcher: Socket) -> None:
        turn_until(supervisor, lambda: supervisor.apps["a"].state == State.PREPARED)
        os.close(os.open("/gate", os.O_WRONLY))
        dead(supervisor.apps["b"])

    os.mkfifo(root / "gate")
    outcome = supervise(root, groups, {"a": sleeps, "b": killed}, drive)
    assert (outcome.exit_code, outcome.status["b"]) == (137, 137)


@pytest.mark.parametrize("late", [False, True], ids=["at once", "after go"])
def test_an_app_that_fails_as_it_waits_says_why(root: Path, groups: Mapping[str, GroupEnds], late: bool) -> None:
    """The step it names is reported and recorded, though it was prepared, and whether or not it was told to go."""

    def fails(report: Socket) -> None:
        prepare(report)
        if late:
            select.select([report], [], [])
        send_message(report, {"step": "wait", "errno": errno.EIO})
        os._exit(254)

    def drive(supervisor: Supervisor, launcher: Socket) -> None:
        if not late:
            dead(supervisor.apps["a"])
            # As when the death of another process has woken it: the reports are not looked at yet.
            supervisor.reap()

    outcome = supervise(root, groups, {"a": fails}, drive)
    assert (outcome.exit_code, outcome.status) == (254, {"a": 254})
    assert outcome.errors.endswith('stage1: app "a": wait: input/output error\n')


def test_an_app_that_failed_as_it_waited_keeps_the_others_from_starting(
    root: Path, groups: Mapping[str, GroupEnds]
) -> None:
    """Its failure counts from when it says so, not from its end."""

    def fails(report: Socket) -> None:
        prepare(report)
        send_message(report, {"step": "wait", "errno": errno.EIO})
        report.close()
        os.read(os.open("/end", os.O_RDONLY), 1)
        os._exit(254)

    def slow(report: Socket) -> None:
        os.read(os.open("/gate", os.O_RDONLY), 1)
        sleeps(report)

    def drive(supervisor: Supervisor, launcher: Socket) -> None:
        turn_until(supervisor, lambda: supervisor.apps["a"].run.report is None)
        os.close(os.open("/gate", os.O_WRONLY))
        turn_until(supervisor, lambda: supervisor.apps["b"].state == State.PREPARED)
        os.close(os.open("/end", os.O_WRONLY))

    for name in ("gate", "end"):
        os.mkfifo(root / name)
    outcome = supervise(root, groups, {"a": fails, "b": slow}, drive)
    assert (outcome.exit_code, outcome.status) == (254, {"a": 254})


def test_a_stop_during_the_start_kills_what_only_prepares(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """Nothing ran, so nothing has a status, and the requested stop ends with 0."""

    def never_prepared(report: Socket) -> None:
        while True:
            signal.pause()

    def drive(supervisor: Supervisor, launcher: Socket) -> None:
        supervisor.request_stop()

    outcome = supervise(root, groups, {"a": never_prepared, "b": sleeps}, drive)
    assert (outcome.exit_code, outcome.status) == (0, {})


# Event handlers. They are shell scripts that run on this machine's root; {root} is the directory of the test.


def handlers(root: Path, **scripts: str) -> dict[str, tuple[str, ...]]:
    """Return the fields of a spec with these handlers."""
    return {name: ("/bin/sh", "-c", script.format(root=root)) for name, script in scripts.items()}


def test_an_app_that_is_stopped_on_its_way_to_its_program_has_no_status(
    root: Path, groups: Mapping[str, GroupEnds]
) -> None:
    """It was told to execute the program, and had not: nobody can say how that would have ended."""

    def never_executes(report: Socket) -> None:
        prepare(report)
        report.recv(16)
        signal.pause()

    (root / "proc").mkdir(exist_ok=True)
    subprocess.run(["mount", "--bind", "/proc", root / "proc"], check=True)
    try:
        outcome = supervise(root, groups, {"a": exits(5), "b": never_executes})
    finally:
        subprocess.run(["umount", root / "proc"], check=True)
    assert (outcome.exit_code, outcome.status) == (5, {"a": 5})


def test_a_stop_ends_a_hanging_pre_start_handler_at_once(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """The app never ran, so it has no status."""

    def drive(supervisor: Supervisor, launcher: Socket) -> float:
        turn_until(supervisor, Path("/up").exists, pause_seconds=0.01)
        started = time.monotonic()
        supervisor.request_stop()
        turn_until(supervisor, lambda: supervisor.pod.finished)
        return time.monotonic() - started

    fields = handlers(root, pre_start="trap '' TERM; touch {root}/up; while :; do sleep 1; done")
    outcome = supervise(root, groups, {"a": exits(0), "b": sleeps}, drive, specific={"a": fields})
    assert (outcome.exit_code, outcome.status) == (0, {"b": 0})
    assert outcome.result < PATIENCE_SECONDS


def test_an_app_that_dies_while_its_pre_start_handler_runs_ends_the_pod(
    root: Path, groups: Mapping[str, GroupEnds]
) -> None:
    """The OOM killer may take it; the handler goes with it."""

    def drive(supervisor: Supervisor, launcher: Socket) -> None:
        app = supervisor.apps["a"]
        turn_until(supervisor, lambda: app.run.handler is not None)
        assert app.run.pid is not None
        os.kill(app.run.pid, signal.SIGKILL)

    fields = handlers(root, pre_start="sleep 60")
    outcome = supervise(root, groups, {"a": exits(0)}, drive, specific={"a": fields})
    assert (outcome.exit_code, outcome.status) == (137, {"a": 137})


@pytest.mark.parametrize("pre_start", ["exit 1", None], ids=["pre-start", "exec"])
def test_a_failed_start_has_a_post_stop(root: Path, groups: Mapping[str, GroupEnds], pre_start: str | None) -> None:
    """A start that was begun is followed by the handler."""

    def fails(report: Socket) -> None:
        prepare(report)
        report.recv(16)
        send_message(report, {"step": "exec", "errno": 2, "path": "/x"})
        os._exit(203)

    fields = handlers(root, post_stop="touch {root}/ran")
    if pre_start is not None:
        fields |= handlers(root, pre_start=pre_start)
    outcome = supervise(root, groups, {"a": fails}, specific={"a": fields})
    assert outcome.exit_code == (203 if pre_start is None else 254)
    assert (root / "ran").exists()


def test_a_post_stop_handler_has_no_limit_while_the_pod_goes_on(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """From the stop on it has the grace period, and what it leaves behind is killed with it."""

    def drive(supervisor: Supervisor, launcher: Socket) -> list[object]:
        app = supervisor.apps["a"]
        turn_until(supervisor, Path("/up").exists, pause_seconds=0.01)
        assert app.run.end is not None
        before = [app.state, app.run.end.number, supervisor.next_deadline(), supervisor.pod.finished]
        started = time.monotonic()
        supervisor.request_stop()
        turn_until(supervisor, lambda: supervisor.pod.finished)
        return [*before, time.monotonic() - started]

    fields = handlers(root, post_stop="trap '' TERM; sleep 60 & touch {root}/up; while :; do sleep 1; done")
    outcome = supervise(root, groups, {"a": exits(0), "b": sleeps}, drive, 0.3, specific={"a": fields})
    assert outcome.result[:-1] == ["post-stop", 0, None, False]
    assert 0.3 <= outcome.result[-1] < PATIENCE_SECONDS
    assert (outcome.exit_code, outcome.status) == (0, {"a": 0, "b": 0})
    assert 'stage1: app "a": post-stop: killed by signal 9\n' in outcome.errors


def test_a_second_stop_ends_a_post_stop_handler_at_once(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """It has lost its grace period."""

    def drive(supervisor: Supervisor, launcher: Socket) -> float:
        turn_until(supervisor, lambda: supervisor.apps["b"].state == State.RUNNING)
        supervisor.request_stop()
        turn_until(supervisor, Path("/up").exists, pause_seconds=0.01)
        started = time.monotonic()
        supervisor.request_stop()
        turn_until(supervisor, lambda: supervisor.pod.finished)
        return time.monotonic() - started

    fields = handlers(root, post_stop="touch {root}/up; sleep 60")
    outcome = supervise(root, groups, {"a": sleeps, "b": sleeps}, drive, specific={"a": fields})
    assert outcome.result < PATIENCE_SECONDS
    assert (outcome.exit_code, outcome.status) == (0, {"a": 0, "b": 0})


def test_what_is_killed_by_force_has_no_post_stop(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """At once means at once; that the handler was left out is in the log."""

    def drive(supervisor: Supervisor, launcher: Socket) -> None:
        turn_until(supervisor, lambda: running(supervisor))
        supervisor.request_stop(force=True)

    fields = handlers(root, post_stop="touch {root}/ran")
    outcome = supervise(root, groups, {"a": sleeps}, drive, specific={"a": fields})
    assert outcome.status == {"a": 137}
    assert not (root / "ran").exists()
    assert "handler.skipped" in outcome.events


def test_a_handler_that_is_in_no_group_yet_is_killed_too(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """Between its fork and joining the groups only its pidfd leads to it."""

    def drive(supervisor: Supervisor, launcher: Socket) -> float:
        pytest.MonkeyPatch().setattr(handlers_module, "spawn_handler", hang)
        turn_until(supervisor, lambda: supervisor.apps["a"].run.handler is not None)
        started = time.monotonic()
        supervisor.request_stop()
        turn_until(supervisor, lambda: supervisor.pod.finished)
        return time.monotonic() - started

    def hang(app: App, name: str) -> None:
        pid, pidfd = syscalls.clone3()
        if pid == 0:
            syscalls.set_parent_death_signal(signal.SIGKILL)
            while True:
                signal.pause()
        app.run.handler = Handler(name, pid, pidfd, Streams(app.name, (0, 1, None)))

    outcome = supervise(root, groups, {"a": exits(0)}, drive, specific={"a": handlers(root, pre_start="exit 0")})
    assert (outcome.exit_code, outcome.status) == (0, {})
    assert outcome.result < PATIENCE_SECONDS


def test_a_handler_that_cannot_be_forked_is_tried_again(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """A process limit that is only reached for a moment costs nothing but that moment."""

    def drive(supervisor: Supervisor, launcher: Socket) -> None:
        attempts = []

        def refuse(app: App, name: str) -> None:
            attempts.append(name)
            if len(attempts) <= 3:
                raise BlockingIOError(11, os.strerror(11))
            spawn_handler(app, name)

        pytest.MonkeyPatch().setattr(handlers_module, "spawn_handler", refuse)

    outcome = supervise(root, groups, {"a": exits(0)}, drive, specific={"a": handlers(root, pre_start="exit 0")})
    assert (outcome.exit_code, outcome.status) == (0, {"a": 0})
    assert outcome.events.count("handler.not-started") == 3


def test_a_handler_that_can_never_be_forked_has_failed(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """A pre-start handler fails its app, a post-stop handler is reported, and PID 1 lives on."""

    def drive(supervisor: Supervisor, launcher: Socket) -> None:
        pytest.MonkeyPatch().setattr(handlers_module, "FORK_PAUSE_SECONDS", 0.0001)

        def refuse(app: App, name: str) -> object:
            raise BlockingIOError(11, os.strerror(11))

        pytest.MonkeyPatch().setattr(handlers_module, "spawn_handler", refuse)

    fields = handlers(root, pre_start="exit 0", post_stop="exit 0")
    outcome = supervise(root, groups, {"a": exits(0)}, drive, specific={"a": fields})
    assert (outcome.exit_code, outcome.status) == (254, {"a": 254})
    assert 'stage1: app "a": pre-start: fork: resource temporarily unavailable\n' in outcome.errors
    assert 'stage1: app "a": post-stop: fork: resource temporarily unavailable\n' in outcome.errors


# Stopping.


def test_what_an_app_leaves_behind_gets_sigterm(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """The stop signal means something to the main process only."""

    def leaves_a_child(report: Socket) -> None:
        execute(report)
        if os.fork() == 0:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            sleeps_on()
        os._exit(0)

    def sleeps_on() -> NoReturn:
        while True:
            signal.pause()

    started = time.monotonic()
    outcome = supervise(root, groups, {"a": leaves_a_child}, specific={"a": {"stop_signal": signal.SIGUSR1}})
    assert (outcome.exit_code, outcome.status) == (0, {"a": 0})
    assert time.monotonic() - started < PATIENCE_SECONDS


@pytest.fixture
def v1_groups() -> Iterator[Mapping[str, GroupEnds]]:
    """Control groups as on a host without v2."""
    hierarchies = [hierarchy for hierarchy in read_hierarchies() if not hierarchy.is_v2]
    if not hierarchies:
        pytest.skip("no v1 hierarchy is mounted")
    path = pod_subcgroup(hierarchies, str(uuid.uuid4()))
    made = make_pod_groups(hierarchies, path, NAMES)
    yield {ends.app: ends for ends in made.apps}
    for fd in (*made.tasks, *(fd for ends in made.apps for fd in ends.descriptors())):
        os.close(fd)
    assert remove_pod_groups(hierarchies, path) == []


def test_a_host_without_v2(root: Path, v1_groups: Mapping[str, GroupEnds]) -> None:
    """Handlers join the groups, forks are caught up with, and an empty group is noticed."""

    def bomb(report: Socket) -> None:
        execute(report)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            if os.fork() == 0:
                time.sleep(0.02)
                os._exit(0)

    def drive(supervisor: Supervisor, launcher: Socket) -> None:
        turn_until(supervisor, lambda: supervisor.apps["b"].run.end is not None)
        supervisor.request_stop()

    group = os.readlink(f"/proc/self/fd/{v1_groups['b'].directory}")
    fields = handlers(root, pre_start=f"cat '{group}/cgroup.procs' >{{root}}/members", post_stop="sleep 60 & exit 0")
    outcome = supervise(root, v1_groups, {"a": bomb, "b": exits(0)}, drive, 0.3, specific={"b": fields})
    assert (outcome.exit_code, outcome.status) == (0, {"a": 137, "b": 0})
    # Its own process, the handler's shell and its cat.
    assert len((root / "members").read_text().split()) == 3


HUP, TERM = '{"stop": 1}', '{"stop": 15}'


@pytest.mark.parametrize(
    ("requests", "forced"),
    [
        (["control"], False),
        (["control", "control"], True),
        (["TERM", "TERM"], True),
        ([TERM, TERM], True),
        (["control", "TERM"], True),
        ([TERM, "control"], True),
        # One signal to every process of the pod, and to the launcher.
        (["TERM", TERM], False),
        ([TERM, "TERM"], False),
        (["TERM", TERM, "TERM"], True),
        # What systemd sends, in whatever order it is read.
        ([HUP, TERM], False),
        ([TERM, HUP], False),
        ([HUP, HUP, HUP], False),
        ([TERM, "launcher"], False),
        ([HUP, TERM, "launcher"], False),
        (["launcher", "control"], False),
        (["launcher", "control", "TERM"], True),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_what_counts_as_a_second_stop(
    root: Path, groups: Mapping[str, GroupEnds], requests: list[str], forced: bool
) -> None:
    """A second signal or request kills at once; SIGHUP, the launcher's death and a signal's second way in do not."""

    def drive(supervisor: Supervisor, launcher: Socket) -> list[object]:
        turn_until(supervisor, lambda: running(supervisor))
        for request in requests:
            if request == "control":
                supervisor.request_stop()
                continue
            if request == "TERM":
                os.kill(os.getpid(), signal.SIGTERM)
            elif request == "launcher":
                launcher.close()
            else:
                launcher.send(request.encode())
            supervisor.turn(PATIENCE_SECONDS)
        reached: list[object] = [supervisor.pod.exit_code, supervisor.apps["a"].state]
        supervisor.request_stop(force=True)
        return reached

    outcome = supervise(root, groups, {"a": ignores_sigterm}, drive, grace_seconds=60)
    assert outcome.result == [0, State.KILLED if forced else State.STOPPING]


# Records and output.


def test_a_log_that_cannot_be_written_costs_no_output_and_no_time(root: Path, groups: Mapping[str, GroupEnds]) -> None:
    """Without a directory for it the log is lost, but the console has every line and no sidecar is renewed."""

    def writes(report: Socket) -> None:
        execute(report)
        os.write(1, b"one\ntwo\n")
        os._exit(0)

    (root / "rkt/minit/log/a.log").symlink_to("/nowhere")
    outcome = supervise(root, groups, {"a": writes})
    assert [line.partition("]: ")[2] for line in outcome.errors.splitlines()] == ["one", "two"]
    assert "sidecar.lost" not in outcome.events
