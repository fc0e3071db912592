"""
minit.supervisor.control.serve: the loop of PID 1 as trio runs it, with a real app, spawner, sidecars and clients.

The loop is a task beside the test's own, so a test sees both sides. Two things are the test's: it says what signalfd(2)
would, since the signals of this process belong to pytest, and it writes what the app would.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from minit.iottymux.spawner import Spawner
from minit.launcher.cgroups import make_pod_groups, pod_subcgroup, read_hierarchies, remove_pod_groups
from minit.linux.messages import encode_message, socket_pair
from minit.linux.process import join_cgroups, read_attributes
from minit.plan.appspec import AppSpec, encode_spec
from minit.plan.confinement import Confinement
from minit.plan.lifeplan import LifePlan
from minit.plan.podplan import PodPlan
from minit.plan.process import ProcessPlan
from minit.plan.storage import StoragePlan
from minit.plan.streams import STREAM_LOG, STREAM_NULL, STREAM_STREAM, StreamsPlan
from minit.podfiles import paths
from minit.podfiles.controlmessages import ADDING_VERSION
from minit.supervisor.apps import context as context_module
from minit.supervisor.apps.apprun import EXECUTED
from minit.supervisor.apps.context import Context
from minit.supervisor.apps.controlgroup import Group, GroupEnds
from minit.supervisor.apps.lifecycle import State
from minit.supervisor.apps.podapp import App
from minit.supervisor.control import serve
from minit.supervisor.control.ask import ask_state
from minit.supervisor.journal import Journal
from minit.supervisor.launcherlink import LauncherLink
from minit.supervisor.supervisor import Supervisor
from tests.support.attached import Session

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="control groups and sidecars need root")

PATIENCE_SECONDS = 60.0
APP = "web"
SIGNALFD_INFO_BYTES = 128
PLACES = 64
CLIENT_SECONDS = 5.0
START_SECONDS = 90.0


class OpenLink(LauncherLink):
    """The outside of a pod, with clients in the supervisor's own process, of which PID 1 sees the pid."""

    def admits(self, pid: int, uid: int) -> bool:
        return True


class Client:
    """One connection to the control socket."""

    def __init__(self, address: bytes) -> None:
        self.socket = trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._address = address

    async def __aenter__(self) -> Client:
        await self.socket.connect(self._address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.socket.close()

    async def ask(self, **request: object) -> dict[str, Any]:
        """Return the answer to a request; empty if the connection was closed instead."""
        await self.socket.send(json.dumps(request).encode())
        return await self.receive()

    async def receive(self) -> dict[str, Any]:
        """Return the next answer, empty at the end."""
        data = await self.socket.recv(1 << 16)
        return json.loads(data) if data else {}


class Served:
    """A mutable pod with one app that sleeps, ignoring SIGTERM; `output` is what the app would write to."""

    def __init__(self, root: Path, ends: GroupEnds, stdout: str, grace_seconds: float) -> None:
        self.root = root
        self.signals, self._signalled = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.bind(b"")  # a name of its own, unix(7)
        control.listen(128)
        self.address = control.getsockname()
        self._launcher, theirs = socket_pair()
        spec = AppSpec(
            name=APP,
            process=ProcessPlan(candidates=("/x",)),
            confinement=Confinement(),
            streams=StreamsPlan(stdout=stdout, stderr=STREAM_NULL),
            life=LifePlan(stop_grace_seconds=grace_seconds),
        )
        plan = PodPlan(uuid="u", hostname="h", namespaces=(), apps=(), bounding=None, mutable=True)
        self.app = app = App(spec, ends, read_attributes(), state=State.RUNNING)
        streams = app.run.streams.open_attachable(spec) if stdout == STREAM_STREAM else app.run.streams.open(["stdout"])
        self.output = streams["stdout"]
        os.set_blocking(self.output, False)
        self._process = subprocess.Popen(["sleep", "inf"], preexec_fn=lambda: _join(ends))
        app.run.pid = app.run.streams.pid = self._process.pid
        app.run.pidfd = os.pidfd_open(app.run.pid)
        app.run.report, executed = socket_pair()
        executed.close()
        app.run.reached = EXECUTED
        app.starts = 1
        self.events: list[str] = []
        journal = Journal(debug=True)
        self.fields: dict[str, dict[str, Any]] = {}
        journal.attach(self._note)
        context = Context(plan.traits, [app], theirs, journal)
        self.supervisor = Supervisor(context, OpenLink(context, theirs), control, self.signals)
        self.supervisor.start(Spawner())
        self.supervisor.sidecars.start_all()
        # For good, whatever becomes of the app's other processes.
        self.sidecars = self.supervisor.sidecars

    def _note(self, event: str, fields: dict[str, object]) -> None:
        self.events.append(event)
        self.fields[event] = fields

    @property
    def number(self) -> int | None:
        """The exit code of the app, None before its end."""
        return None if self.app.run.end is None else self.app.run.end.number

    def client(self) -> Client:
        """Return a client that is not connected yet."""
        return Client(self.address)

    def deliver(self, number: int) -> None:
        """Say that a signal has come."""
        os.write(self._signalled, number.to_bytes(4, "little") + bytes(SIGNALFD_INFO_BYTES - 4))

    async def write(self, data: bytes) -> None:
        """Write all of this as the app does."""
        while data:
            await trio.lowlevel.wait_writable(self.output)
            data = data[os.write(self.output, data) :]

    def attachments(self) -> list[str]:
        """Return the events of clients so far."""
        return [event for event in self.events if event in ("app.attached", "app.detached")]

    def logged(self) -> list[str]:
        """Return the lines of the app's log."""
        return read_log(self.root / f"log/{APP}.log")

    def kill_sidecar(self) -> int:
        """Kill the present sidecar and return its pidfd."""
        assert self.app.run.streams.sidecar is not None
        signal.pidfd_send_signal(self.app.run.streams.sidecar, signal.SIGKILL)
        return self.app.run.streams.sidecar

    async def renewed(self, count: int) -> None:
        """Wait until so many sidecars were lost and there is another one."""
        await until(lambda: self.events.count("sidecar.lost") == count and self.app.run.streams.sidecar is not None)

    def end(self) -> None:
        """Leave nothing."""
        self._process.kill()
        self.sidecars.discard(APP)
        children = [self._process.pid]
        if self.sidecars.spawner is not None:
            children.append(self.sidecars.spawner.pid)
            self.sidecars.spawner.close()
        for pid in children:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass  # the supervisor reaped it
        self._process.returncode = 0
        for fd in (self.output, self.signals, self._signalled):
            os.close(fd)
        self._launcher.close()


def _join(ends: GroupEnds) -> None:
    if ends.is_v2:
        Path(f"/proc/self/fd/{ends.directory}/cgroup.procs").write_text("0")
    join_cgroups(ends.tasks)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def read_log(path: Path) -> list[str]:
    """Return the lines of a log without times and tags."""
    return [line.split(" ", 3)[3] for line in path.read_text().splitlines()] if path.exists() else []


async def until(condition: Callable[[], object]) -> None:
    """Wait for what shows itself by being looked at."""
    while not condition():
        await trio.sleep(0.003)


@pytest.fixture
def groups() -> Iterator[GroupEnds]:
    """Control groups for the app."""
    hierarchies = read_hierarchies()
    path = pod_subcgroup(hierarchies, str(uuid.uuid4()))
    made = make_pod_groups(hierarchies, path, (APP,))
    [ends] = made.apps
    yield ends
    Group(ends).kill()
    for fd in (*made.tasks, *ends.descriptors(), *(() if made.supervisor is None else (made.supervisor,))):
        os.close(fd)
    assert remove_pod_groups(hierarchies, path) == []


@pytest.fixture
def make_served(
    tmp_path: Path, groups: GroupEnds, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Served]]:
    """A function that makes the pod, whose files are in `tmp_path`; it is not served yet."""
    for name, value in list(vars(paths).items()):
        if name.startswith("STAGE1_") and isinstance(value, str) and value.startswith("/rkt/"):
            monkeypatch.setattr(paths, name, str(tmp_path / Path(value).name))
    for name in ("log", "state", "status"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(context_module, "RETRY_SECONDS", 0.01)
    made: list[Served] = []

    def make(stdout: str = STREAM_LOG, grace_seconds: float = 3600.0) -> Served:
        made.append(Served(tmp_path, groups, stdout, grace_seconds))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.fixture
def served(make_served: Callable[..., Served], nursery: trio.Nursery) -> Served:
    """The pod with a log, being served."""
    pod = make_served()
    nursery.start_soon(serve.serve_until_finished, pod.supervisor, serve.Clients())
    return pod


# Sidecars and logs.


@pytest.mark.trio
async def test_clients_that_come_and_go_are_counted(make_served: Callable[..., Served], nursery: trio.Nursery) -> None:
    """The state tells how many there are and what the app wrote, the events that they came and went."""
    pod = make_served(STREAM_STREAM)
    nursery.start_soon(serve.serve_until_finished, pod.supervisor, serve.Clients())
    with trio.fail_after(PATIENCE_SECONDS):
        async with pod.client() as client:

            async def attached() -> dict[str, int]:
                [app] = (await client.ask(op="state"))["apps"]
                counters: dict[str, int] = app["attached"]
                return counters

            assert (await attached())["clients"] == 0
            told = ["app.attached", "app.detached"] * 2
            for index in (0, 2):
                with Session(pod.root / "iottymux" / APP, ["stdout"]) as session:
                    assert session.reply["ok"] is True
                    await until(lambda: pod.attachments() == told[: index + 1])  # noqa: B023 - it is waited for here
                    assert (await attached())["clients"] == 1
                    await pod.write(b"hello\n")
                    await trio.lowlevel.wait_readable(session.streams["stdout"])
                await until(lambda: pod.attachments() == told[: index + 2])  # noqa: B023
                assert (await attached())["clients"] == 0
            # The sidecar counts what it has sent, after it has sent it.
            while (await attached())["bytes_out"] < 12:
                pass
            assert (await attached())["bytes_out"] == 12


@pytest.mark.trio
async def test_sidecars_killed_under_load_lose_no_line(served: Served) -> None:
    """Each is renewed while the app goes on writing and others ask; every line is there, and once."""
    lines = [f"{number:06d} {'x' * 60}" for number in range(20_000)]
    part = len(lines) // 5
    async with served.client() as client, trio.open_nursery() as nursery:
        with trio.fail_after(PATIENCE_SECONDS):
            for count in range(5):
                text = "".join(f"{line}\n" for line in lines[count * part : (count + 1) * part])
                nursery.start_soon(served.write, text.encode())
                # Until the pipe is full, or a sidecar was quick enough to take it all.
                await trio.testing.wait_all_tasks_blocked()
                served.kill_sidecar()
                await served.renewed(count + 1)
                assert (await client.ask(op="ping"))["ok"] is True
                # The next part begins when this one is written.
                await until(lambda: len(nursery.child_tasks) == 0)
            await until(lambda: lines[-1] in served.logged())
    assert served.logged() == lines


@pytest.mark.trio
async def test_a_spawner_that_dies_is_replaced(served: Served) -> None:
    """The next sidecar comes from a new one, and goes on where the last one was."""
    assert served.sidecars.spawner is not None
    old = served.sidecars.spawner.pid
    with trio.fail_after(PATIENCE_SECONDS):
        os.kill(old, signal.SIGKILL)
        os.waitid(os.P_PID, old, os.WEXITED | os.WNOWAIT)
        served.deliver(signal.SIGCHLD)
        await until(lambda: "spawner.lost" in served.events)
        assert served.sidecars.spawner is None
        served.kill_sidecar()
        await served.write(b"after\n")
        await served.renewed(1)
        await until(lambda: served.logged()[-1:] == ["after"])
    assert served.sidecars.spawner is not None
    assert served.sidecars.spawner.pid != old


@pytest.mark.trio
async def test_logs_are_reopened_on_request(served: Served) -> None:
    """A file that was moved keeps what it has; what comes later is in a new one."""
    log, moved = served.root / f"log/{APP}.log", served.root / "moved"
    with trio.fail_after(PATIENCE_SECONDS):
        await served.write(b"first\n")
        await until(lambda: served.logged() == ["first"])
        log.rename(moved)
        async with served.client() as client:
            assert (await client.ask(op="reopen-logs", app="other"))["ok"] is False
            assert (await client.ask(op="reopen-logs", app=APP))["ok"] is True
        await until(log.exists)
        await served.write(b"second\n")
        await until(lambda: served.logged() == ["second"])
    assert read_log(moved) == ["first"]


# Deadlines and clients.


@pytest.mark.trio
async def test_a_request_sets_a_deadline_during_a_wait_without_one(
    make_served: Callable[..., Served], nursery: trio.Nursery
) -> None:
    """An app that ignores its stop signal is killed after its grace period, though no event wakes PID 1."""
    pod = make_served(grace_seconds=0.05)
    nursery.start_soon(serve.serve_until_finished, pod.supervisor, serve.Clients())
    with trio.fail_after(PATIENCE_SECONDS):
        await trio.testing.wait_all_tasks_blocked()
        assert pod.supervisor.next_deadline() is None
        async with pod.client() as client:
            assert await client.ask(op="app-stop", app=APP) == {"ok": True}
    assert (pod.app.state, pod.number) == (State.EXITED, 137)


@pytest.mark.trio
async def test_silent_clients_have_their_place_for_a_time(
    served: Served, autojump_clock: trio.testing.MockClock
) -> None:
    """All places taken by clients that say nothing, the next one is answered after the time-out, and then at once."""
    # All events are of this process, and at hand when they are looked for: the clock never jumps ahead of one.
    with trio.fail_after(1000):
        silent = [served.client() for _ in range(PLACES)]
        for each in silent:
            await each.__aenter__()
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        async with served.client() as client:
            assert (await client.ask(op="ping"))["ok"] is True
            assert trio.current_time() - began == pytest.approx(CLIENT_SECONDS, abs=1)
            assert (await client.ask(op="ping"))["ok"] is True
            assert trio.current_time() - began == pytest.approx(CLIENT_SECONDS, abs=1)
        for each in silent:
            assert await each.receive() == {}
            each.socket.close()


@pytest.mark.trio
async def test_who_waits_for_an_app_takes_nobodys_place(served: Served) -> None:
    """More clients than there are places wait for one app; others are answered meanwhile, and all are at its end."""
    answers: list[dict[str, Any]] = []

    async def stop() -> None:
        async with served.client() as client:
            answers.append(await client.ask(op="app-stop", app=APP))

    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            for _ in range(PLACES + 6):
                nursery.start_soon(stop)
            await trio.testing.wait_all_tasks_blocked()
            async with served.client() as client:
                [app] = (await client.ask(op="state"))["apps"]
            assert (app["state"], answers) == ("stopping", [])
            assert served.app.run.pid is not None
            os.kill(served.app.run.pid, signal.SIGKILL)
    assert answers == [{"ok": True}] * (PLACES + 6)


@pytest.mark.trio
async def test_a_start_that_takes_too_long_is_answered(served: Served, autojump_clock: trio.testing.MockClock) -> None:
    """The client that wants an app started which does not end hears so after its time, and can ask again."""
    with trio.fail_after(1000):
        served.supervisor.pod.stop_app(served.app)
        async with served.client() as client:
            began = trio.current_time()
            reply = await client.ask(op="app-start", app=APP)
            assert trio.current_time() - began == pytest.approx(START_SECONDS, abs=1)
        assert reply == {"ok": False, "error": "it is not executed yet after 90 s"}
        async with served.client() as client:
            assert (await client.ask(op="ping"))["ok"] is True


@pytest.mark.trio
async def test_what_one_client_does_ends_with_its_connection(served: Served) -> None:
    """Nonsense is refused, a client that does not wait for its answer is forgotten; descriptors are closed."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with served.client() as steady:
            assert (await steady.ask(op="ping"))["ok"] is True
            await trio.testing.wait_all_tasks_blocked()
            gc.collect()  # what tests before this one left
            before = set(os.listdir("/proc/self/fd"))
            for data in (b"{", b"[]", b"\xff" * 9, b'{"op": "no"}', b"x" * 65537, b'{"op": "events", "since": -1}'):
                async with served.client() as client:
                    await client.socket.send(data)
                    assert (await client.receive())["ok"] is False
                    with suppress(BrokenPipeError):  # where the refusal was the last word
                        await client.socket.send(data)
                await trio.testing.wait_all_tasks_blocked()  # else the one that is idle longest makes room
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, (served.output).to_bytes(4, "little") * 253)]
            async with served.client() as client:
                await client.socket.sendmsg([b'{"op": "ping"}'], rights)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(PLACES):
                async with served.client() as client:
                    await client.socket.send(b'{"op": "state"}')
                await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked()
            assert not set(os.listdir("/proc/self/fd")) - before
            assert (await steady.ask(op="ping"))["ok"] is True


@pytest.mark.trio
async def test_the_loop_ends_with_the_pod(make_served: Callable[..., Served]) -> None:
    """A stop by force is answered; when nothing is left of the app the loop returns, whoever is still connected."""
    pod = make_served()
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve.serve_until_finished, pod.supervisor, serve.Clients())
            async with pod.client() as client, pod.client() as silent:
                await trio.testing.wait_all_tasks_blocked()
                assert await client.ask(op="stop", force=True) == {"ok": True}
                assert await silent.receive() == {}
    assert (pod.supervisor.pod.exit_code, pod.number) == (0, 137)


@pytest.mark.trio
async def test_clients_wait_while_descriptors_are_short(served: Served) -> None:
    """PID 1 without a free descriptor lives on and says so once; who could not be accepted is answered later."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with trio.fail_after(PATIENCE_SECONDS):
        await trio.testing.wait_all_tasks_blocked()
        client = served.client()
        # What earlier tests left to the collector would make room when it is collected.
        gc.collect()
        lowest_free = os.dup(served.output)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            async with client:
                await client.socket.send(b'{"op": "ping"}')
                await until(lambda: "client.not-accepted" in served.events)
                await trio.sleep(2 * serve.ACCEPT_PAUSE_SECONDS)
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                assert (await client.receive())["ok"] is True
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert served.events.count("client.not-accepted") == 1


@pytest.mark.trio
async def test_a_request_that_meets_a_defect_fails_alone(served: Served) -> None:
    """Its client hears of it, the journal has the traceback, what it sent is closed, and PID 1 answers on."""
    spec = os.memfd_create("spec")
    os.write(
        spec,
        encode_spec(
            AppSpec(
                name="other",
                process=ProcessPlan(candidates=("/x",)),
                confinement=Confinement(),
                storage=StoragePlan(volumes=cast(Any, 3)),
            )
        ),
    )
    reader, writer = os.pipe2(os.O_CLOEXEC)
    roles = {"spec": spec, "group": writer, "root": writer}
    request = {"op": "app-add", "app": "other", "version": ADDING_VERSION, "descriptors": [*roles]}
    with trio.fail_after(PATIENCE_SECONDS):
        async with served.client() as client:
            await client.socket.sendmsg(*encode_message(request, [*roles.values()]))
            reply = await client.receive()
            assert reply["ok"] is False
            assert "TypeError" in reply["error"]
            os.close(spec)
            os.close(writer)
            await trio.lowlevel.wait_readable(reader)
            assert os.read(reader, 1) == b""
            assert (await client.ask(op="ping"))["ok"] is True
    os.close(reader)
    assert "request.crashed" in served.events
    assert "in take_in" in served.fields["request.crashed"]["traceback"]


@pytest.mark.trio
async def test_the_state_of_very_many_apps_is_told(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is larger than a message; whoever asks for it gets all of it, and PID 1 keeps no descriptor of it."""
    apps = served.supervisor.apps
    apps.update({f"{APP}{number}": served.app for number in range(1000)})
    monkeypatch.setattr(paths, "POD_CONTROL", served.address)
    before = len(os.listdir("/proc/self/fd"))
    with trio.fail_after(PATIENCE_SECONDS):
        for _ in range(2):
            state = await trio.to_thread.run_sync(ask_state)
            assert len(state.apps) == 1001
        await trio.testing.wait_all_tasks_blocked()
    assert len(os.listdir("/proc/self/fd")) <= before + 1
