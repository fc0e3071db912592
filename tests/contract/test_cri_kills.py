"""SIGKILL for the daemon of `minit cri` at any step of a pod's life, and the next daemon right after it."""

from __future__ import annotations

import os
import select
import signal
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from minit.base.jsontext import parse
from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import Code
from tests.support.campaign import LONG
from tests.support.commands import Stage0
from tests.support.crinode import CallFailed, CriNode, Daemon, container_config, own_daemon, sandbox_config
from tests.support.faults import KILL, LAUNCHER, Call, Faults
from tests.support.hostnet import left_by
from tests.support.processes import descriptors_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

PATIENCE_SECONDS = 100
# Steps of an ordinary run, about, by the pod's network; a long one has all of them.
SAMPLES = {"none": 4, "default": 2}
# `python -m minit`, and the daemon that it executes.
EXECS = 2
IDLE = "epoll_wait"
# What leaves a trace, what hands on to a command or hears of its end, and answers.
STEPS = {
    "mkdir",
    "rename",
    "fsync",
    "unlink",
    "unlinkat",
    "rmdir",
    "symlink",
    "flock",
    "waitid",
    "sendmsg",
    "recvmsg",
    "epoll_wait",
    "sendto",
}


class Life:
    """The life of a pod as a kubelet has it, a call a step; a step that was cut off is asked for again."""

    def __init__(self, daemon: Daemon, root: Path) -> None:
        self._daemon = daemon
        self._config = sandbox_config(root)
        self._sandbox = api.SandboxId()
        self._container = api.ContainerId()
        self.pods: set[str] = set()
        self.step = 0
        self._steps: list[Callable[[CriNode], Awaitable[None]]] = [
            *(self.run, self.create, self.start, self.execute, self.stop_container, self.remove_container),
            *(self.stop, self.remove),
        ]

    async def run(self, node: CriNode) -> None:
        """Make the sandbox."""
        self._sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=self._config))
        self.pods.add(self._sandbox.pod_sandbox_id)

    async def create(self, node: CriNode) -> None:
        """Make the container."""
        config = container_config("exec sleep 1000")
        request = api.CreateContainerRequest(pod_sandbox_id=self._sandbox.pod_sandbox_id, config=config)
        self._container = await node.ask("CreateContainer", request)

    async def start(self, node: CriNode) -> None:
        """Start the container; one that a killed daemon has started already is not started twice."""
        try:
            await node.ask("StartContainer", self._container)
        except CallFailed as error:
            if error.code != Code.FAILED_PRECONDITION:
                raise
        request = api.ContainerStatusRequest(container_id=self._container.container_id)
        assert (await node.ask("ContainerStatus", request)).status.state == api.CONTAINER_RUNNING

    async def execute(self, node: CriNode) -> None:
        """Run a command in the container."""
        request = api.ExecSyncRequest(container_id=self._container.container_id, cmd=["sh", "-c", "echo x"])
        assert (await node.ask("ExecSync", request)).stdout == b"x\n"

    async def stop_container(self, node: CriNode) -> None:
        """Stop the container."""
        await node.ask("StopContainer", api.StopContainerRequest(container_id=self._container.container_id))

    async def remove_container(self, node: CriNode) -> None:
        """Remove the container."""
        await node.ask("RemoveContainer", self._container)

    async def stop(self, node: CriNode) -> None:
        """Stop the sandbox."""
        await node.ask("StopPodSandbox", self._sandbox)

    async def remove(self, node: CriNode) -> None:
        """Remove the sandbox."""
        await node.ask("RemovePodSandbox", self._sandbox)

    async def live(self, until: int = 8) -> bool:
        """Do the steps that are left, or those before a number; return whether the daemon has lived as long."""
        try:
            async with self._daemon.node() as node:
                while self.step < until:
                    await self._steps[self.step](node)
                    self.step += 1
        except OSError:
            return False  # it was killed before it took the connection
        except ExceptionGroup as group:
            if group.split(_is_cut_off)[1] is not None:
                raise
            return False
        return True

    async def check(self) -> None:
        """Compare what the daemon tells with what it has answered, and with what there is."""
        async with self._daemon.node() as node:
            sandboxes = (await node.ask("ListPodSandbox", api.ListPodSandboxRequest())).items
            containers = (await node.ask("ListContainers", api.ListContainersRequest())).containers
        listed = {one.id for one in sandboxes}
        data = self._daemon.minit.data
        assert {path.name for place in ("prepare", "run") for path in data.glob(f"pods/{place}/*")} <= listed
        if self.step == 0:
            assert not containers
            assert not listed or self._sandbox.pod_sandbox_id in ("", *listed)
        elif self.step < 7:
            assert listed == {self._sandbox.pod_sandbox_id}
            state = api.SANDBOX_READY if self.step < 6 else sandboxes[0].state
            assert sandboxes[0].state == state
        if self.step == 1:
            assert not containers or self._apps() == 1
        elif 1 < self.step < 5:
            assert [one.id for one in containers] == [self._container.container_id]
            expected = {3: {api.CONTAINER_RUNNING}, 2: {api.CONTAINER_CREATED, api.CONTAINER_RUNNING}}
            if self.step in expected:
                assert containers[0].state in expected[self.step]

    def _apps(self) -> int:
        [manifest] = self._daemon.minit.data.glob("pods/run/*/pod")
        found = parse(manifest.read_bytes(), "manifest")
        assert isinstance(found, dict)
        return len(found["apps"] or ())


def _is_cut_off(error: BaseException) -> bool:
    return isinstance(error, trio.BrokenResourceError) or (isinstance(error, CallFailed) and error.code == -1)


def _victims(calls: list[Call], sample: int) -> list[Call]:
    """Return the steps of a daemon from its first client on."""
    own = [call for call in calls if call.who == LAUNCHER]
    first = next(number for number, call in enumerate(own) if call.name.startswith("accept"))
    steps = [call for call in own[first:] if call.name in STEPS and (call.name != IDLE or call.nth % 10 == 0)]
    return steps if LONG else steps[:: max(1, len(steps) // sample)]


@pytest.mark.trio
@pytest.mark.parametrize("step", [0, 1], ids=["sandbox", "container"])
async def test_a_command_that_outlives_its_daemon(minit: Stage0, tmp_path: Path, step: int) -> None:
    """The next daemon waits for what it makes, and the client's next try leaves no second one of it."""
    with own_daemon(minit, tmp_path / "cri.sock") as daemon:
        daemon.start()
        life = Life(daemon, tmp_path)
        with trio.fail_after(PATIENCE_SECONDS):
            assert await life.live(step)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(life.live)
                while not _is_commanded(daemon):
                    await trio.sleep(0.001)
                daemon.end(kill=True)
            assert life.step == step
            daemon.start()
            await life.check()
            assert await life.live()
        assert not list((minit.data / "cri").iterdir())
        assert not list(minit.data.glob("pods/*/*"))


def _is_commanded(daemon: Daemon) -> bool:
    """Tell whether a hand has been given a command, with which it holds the record of a sandbox."""
    records = f"{daemon.minit.data}/cri/"
    with suppress(FileNotFoundError, ProcessLookupError):
        return any(held.startswith(records) for hand in daemon.hands() for held in descriptors_of(hand).values())
    return False


@pytest.mark.timeout(7200 if LONG else 600)
@pytest.mark.trio
@pytest.mark.parametrize("network", ["none", pytest.param("default", marks=pytest.mark.long)])
async def test_kills_of_the_daemon(minit: Stage0, tmp_path: Path, network: str) -> None:
    """Nothing is lost, doubled or left by whatever step a daemon was killed in, and its client's next try succeeds."""
    faults = Faults(tmp_path, EXECS, alone=True)
    with own_daemon(minit, tmp_path / "cri.sock", network) as daemon:
        victims = _victims(await _record(daemon, faults, tmp_path), SAMPLES[network])
        reached = [await _kill_at(daemon, faults, victim, tmp_path) for victim in victims]
    assert sum(reached) > len(victims) // 2


async def _record(daemon: Daemon, faults: Faults, root: Path) -> list[Call]:
    """Return the calls of a daemon and of the commands that it has made."""
    with tempfile.TemporaryFile("w+") as log:
        daemon.start(faults.recording(log.fileno()), (log.fileno(),))
        with trio.fail_after(PATIENCE_SECONDS):
            assert await Life(daemon, root).live()
        assert daemon.process is not None
        [traced] = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split()
        os.kill(int(traced), signal.SIGTERM)
        daemon.wait()
        log.seek(0)
        return faults.read_calls(log)


async def _kill_at(daemon: Daemon, faults: Faults, victim: Call, root: Path) -> bool:
    """Let a pod live with a daemon that is killed at a call, and then with another; return whether it was killed."""
    reader, writer = os.pipe()
    daemon.start(faults.fault(writer, victim, KILL), (writer,))
    os.close(writer)
    life = Life(daemon, root)
    with trio.fail_after(PATIENCE_SECONDS):
        has_lived = await life.live()
        if has_lived:
            assert daemon.process is not None
            daemon.process.kill()
        daemon.wait()
        was_reached = bool(select.select([reader], [], [], 0)[0] and os.read(reader, 1))
        os.close(reader)
        assert was_reached or has_lived, victim
        daemon.start()
        try:
            await life.check()
            assert await life.live()
        except BaseException as error:
            error.add_note(f"killed at {victim}")
            raise
    assert daemon.end() == 0
    assert not list((daemon.minit.data / "cri").iterdir()), victim
    assert not [path for path in daemon.minit.data.glob("pods/*/*") if path.exists()], victim
    assert not [left for pod in life.pods for left in left_by(pod)], victim
    return was_reached
