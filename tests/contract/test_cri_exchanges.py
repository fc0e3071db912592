"""minit cri, while the sandboxes of the node get other versions of minit: a kubelet notices nothing."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from minit.cri.api import cri_pb2 as api
from tests.contract.test_exchanges import EXCHANGES, Exchange, exchange
from tests.support.campaign import LONG
from tests.support.crinode import CriNode, Daemon, container_config
from tests.support.spdyclient import SpdyClient, Stream, exit_code, spdy_client

__all__ = ["exchange"]  # a fixture

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root"),
    pytest.mark.timeout(7200 if LONG else 300),
]

COUNTING = "n=0; while [ ! -e /end ]; do n=$((n+1)); echo $n; sleep 0.02; done; exit 3"
ANSWERING = 'while read x; do echo "o:$x"; done'
STUBBORN = "trap 'until [ -e /go ]; do sleep 0.05; done; exit 5' TERM; while :; do sleep 0.1; done"
AFTER_ALL = "until [ -e /after ]; do sleep 0.05; done; rm /after; echo done"


def attempt(name: str, number: int, script: str, stdin: bool = False) -> api.ContainerConfig:
    """Return the next container of a name, as a kubelet makes one anew for each start."""
    metadata = api.ContainerMetadata(name=name, attempt=number)
    log = f"{name}/{number}.log"
    return container_config(script, name, metadata=metadata, log_path=log, stdin=stdin)


class Kubelet:
    """Asks for everything all the time; `count` is how often nothing had changed."""

    def __init__(self, node: CriNode, sandbox: api.SandboxId, containers: list[api.ContainerId]) -> None:
        self._node = node
        self._sandbox = sandbox
        self._containers = containers
        self.count = 0

    async def ask(self) -> list[object]:
        """Return all that is known of the sandbox and the containers."""
        request = api.PodSandboxStatusRequest(pod_sandbox_id=self._sandbox.pod_sandbox_id)
        found: list[object] = [(await self._node.ask("PodSandboxStatus", request)).status]
        listed = (await self._node.ask("ListContainers", api.ListContainersRequest())).containers
        found += [each for _, each in sorted((each.id, each) for each in listed)]
        return [*found, *[await status(self._node, each) for each in self._containers]]

    async def live(self) -> None:
        """Ask until cancelled: statuses stay the same, probes succeed, statistics are there."""
        before = await self.ask()
        ids = {each.container_id for each in self._containers}
        while True:
            assert await self.ask() == before
            assert await self._node.execute(self._containers[0], "echo probe") == b"probe\n"
            stats = (await self._node.ask("ListContainerStats", api.ListContainerStatsRequest())).stats
            assert {each.attributes.id for each in stats} == ids
            self.count += 1


async def status(node: CriNode, container: api.ContainerId) -> api.ContainerStatus:
    """Return what is known of a container."""
    answer = await node.ask("ContainerStatus", api.ContainerStatusRequest(container_id=container.container_id))
    found = answer.status
    assert isinstance(found, api.ContainerStatus)
    return found


async def exit_of(node: CriNode, container: api.ContainerId) -> int:
    """Return the exit code of a container when it has ended."""
    while (found := await status(node, container)).state != api.CONTAINER_EXITED:
        await trio.sleep(0.02)
    return int(found.exit_code)


async def start(node: CriNode, sandbox: api.SandboxId, config: api.ContainerConfig) -> api.ContainerId:
    """Put a container into a sandbox and start it."""
    container = await node.create(sandbox, config)
    await node.ask("StartContainer", container)
    return container


class Talk:
    """A client of the input and the output of a container, or of a command in it."""

    def __init__(self, client: SpdyClient, error: Stream, stdin: Stream, stdout: Stream) -> None:
        self._client = client
        self._error = error
        self._stdin = stdin
        self._stdout = stdout
        self._count = 0

    async def say(self, *, last: bool = False) -> None:
        """Say a number, which comes back."""
        self._count += 1
        await self._client.write(self._stdin, b"%d\n" % self._count, fin=last)
        await self._stdout.until(b"o:%d\n" % self._count)

    async def exit_code(self) -> int:
        """Return the exit code of the command when it has ended."""
        return exit_code(await self._error.whole())


@asynccontextmanager
async def talking(node: CriNode, request: api.AttachRequest | api.ExecRequest) -> AsyncIterator[Talk]:
    """Attach to a container, or run a command in it, for the length of a with block."""
    url = (await node.ask("Exec" if isinstance(request, api.ExecRequest) else "Attach", request)).url
    async with spdy_client(url) as client:
        yield Talk(client, *await client.open_all("error", "stdin", "stdout"))


def numbers(*logs: Path) -> list[int]:
    """Return what has been written to logs."""
    lines = b"".join(log.read_bytes() for log in logs).splitlines()
    return [int(line.split(b" ", 3)[3]) for line in lines]


async def remove(node: CriNode, daemon: Daemon, sandbox: api.SandboxId) -> None:
    """Remove a sandbox, of which nothing is left then."""
    await node.ask("StopPodSandbox", sandbox)
    await node.ask("RemovePodSandbox", sandbox)
    assert not list((daemon.minit.data / "cri").iterdir())
    assert not list(daemon.minit.data.glob("pods/*/*"))


@pytest.mark.trio
async def test_a_kubelet_notices_nothing(daemon: Daemon, exchange: Exchange, tmp_path: Path) -> None:
    """Statuses, probes, streams, logs and new containers go on, with one daemon and the next; no event comes."""
    main = attempt("main", 0, ANSWERING, stdin=True)
    async with daemon.node() as node:
        sandbox, [first, counting] = await node.run(tmp_path, main, attempt("counting", 0, COUNTING))
    for number in range(EXCHANGES):
        async with daemon.node() as node:
            kubelet = Kubelet(node, sandbox, [first, counting])
            watch = await node.watch()
            while "content-type" not in watch.headers:
                await trio.sleep(0.01)
            request = api.AttachRequest(container_id=first.container_id, stdin=True, stdout=True)
            async with talking(node, request) as talk, trio.open_nursery() as nursery:
                nursery.start_soon(kubelet.live)
                await talk.say()
                await trio.to_thread.run_sync(exchange, daemon.minit.data, sandbox.pod_sandbox_id)
                await talk.say()
                count = kubelet.count
                while kubelet.count < count + 2:
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
            assert not watch.messages()
            log = tmp_path / f"logs/counting/{number}.log"
            log.rename(log.with_suffix(".old"))
            await node.ask("ReopenContainerLog", counting)
            await node.execute(counting, ": >/end")
            assert await exit_of(node, counting) == 3
            written = numbers(log.with_suffix(".old"), log)
            assert written == [*range(1, len(written) + 1)]
            last, counting = counting, await start(node, sandbox, attempt("counting", number + 1, COUNTING))
            await node.ask("RemoveContainer", last)
            before = await Kubelet(node, sandbox, [first, counting]).ask()
        if number % 3 == 1:
            daemon.end(kill=number % 2 == 0)
            daemon.start()
            assert daemon.notes == []
        async with daemon.node() as node:
            assert await Kubelet(node, sandbox, [first, counting]).ask() == before
    async with daemon.node() as node:
        await node.ask("StopContainer", api.StopContainerRequest(container_id=first.container_id, timeout=30))
        await node.ask("RemoveContainer", first)
        await remove(node, daemon, sandbox)


@pytest.mark.trio
async def test_calls_under_way(daemon: Daemon, exchange: Exchange, tmp_path: Path) -> None:
    """Commands, a stop that takes long and the lives of other containers go on while versions change twice."""
    lives = 0
    answers: dict[str, object] = {}
    async with daemon.node() as node:
        sandbox, [main, stubborn] = await node.run(
            tmp_path, attempt("main", 0, "exec sleep 10000"), attempt("stubborn", 0, STUBBORN)
        )

        async def execute() -> None:
            answers["execute"] = await node.execute(main, AFTER_ALL)

        async def stop() -> None:
            request = api.StopContainerRequest(container_id=stubborn.container_id, timeout=3600)
            answers["stop"] = await node.ask("StopContainer", request)

        async def live() -> None:
            nonlocal lives
            while "execute" not in answers:
                container = await start(node, sandbox, attempt("life", lives, "exec sleep 1000"))
                assert await node.execute(container, "echo x") == b"x\n"
                request = api.StopContainerRequest(container_id=container.container_id, timeout=5)
                await node.ask("StopContainer", request)
                await node.ask("RemoveContainer", container)
                lives += 1

        command = api.ExecRequest(container_id=main.container_id, cmd=["sh", "-c", ANSWERING], stdin=True, stdout=True)
        async with talking(node, command) as talk, trio.open_nursery() as nursery:
            for task in (execute, stop, live):
                nursery.start_soon(task)
            await talk.say()
            for _ in range(EXCHANGES):
                before = lives
                await trio.to_thread.run_sync(exchange, daemon.minit.data, sandbox.pod_sandbox_id)
                await talk.say()
                while lives < before + 2:
                    await trio.sleep(0.01)
            assert not answers
            await node.execute(main, ": >/after")
            await node.execute(stubborn, ": >/go")
            await talk.say(last=True)
            assert await talk.exit_code() == 0
        assert answers["execute"] == b"done\n" and "stop" in answers
        assert await exit_of(node, stubborn) == 5
        await remove(node, daemon, sandbox)
