"""minit cri: hundreds of calls that wait for the end of containers, what else is answered meanwhile, and full nodes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
import trio.testing

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import Code, frame
from tests.support.campaign import LONG, campaign
from tests.support.commands import Stage0
from tests.support.crinode import CallFailed, CriNode, Daemon, container_config, own_daemon, sandbox_config
from tests.support.grpcclient import grpc_client

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root"), pytest.mark.timeout(1200)]

PATIENCE_SECONDS = campaign(110)
HOUR_SECONDS = 3600
STUBBORN = 'trap "" TERM; mkfifo /tmp/end; read word </tmp/end; exit 3'
"""Takes no notice of being stopped, and ends when it is told a word."""
CALLS = campaign(600)
DRAINED = 110 if LONG else 2
REMOVED = campaign(13)
CALLS_TO_REMOVE = 10
WAITING_BYTES = 24 << 10
"""More than a call that waits may take of the daemon."""


async def make(node: CriNode, root: Path, number: int, *scripts: str) -> tuple[api.SandboxId, list[api.ContainerId]]:
    """Make a sandbox and start containers in it."""
    name = f"pod-{number}"
    config = sandbox_config(root, metadata=api.PodSandboxMetadata(name=name, uid=name), log_directory="")
    sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config))
    containers = [await node.create(sandbox, container_config(script, log_path="")) for script in scripts]
    for container in containers:
        await node.ask("StartContainer", container)
    return sandbox, containers


async def states(node: CriNode) -> set[api.ContainerState]:
    """Return the states that containers are in."""
    return {one.state for one in (await node.ask("ListContainers", api.ListContainersRequest())).containers}


@pytest.mark.trio
async def test_a_drain(minit: Stage0, tmp_path: Path) -> None:
    """Stops that wait take no process and little memory, hold up no other call, and end with their containers."""
    stopped = 0
    with own_daemon(minit, tmp_path / "cri.sock") as daemon, trio.fail_after(PATIENCE_SECONDS):
        daemon.start()
        async with daemon.node() as node, daemon.node() as other:
            made = [(await make(node, tmp_path, number, STUBBORN))[1][0] for number in range(DRAINED)]
            for container in made:
                await node.execute(container, "until [ -p /tmp/end ]; do sleep 0.02; done")
            before = daemon.memory_bytes()

            async def stop(container: api.ContainerId) -> None:
                nonlocal stopped
                request = api.StopContainerRequest(container_id=container.container_id, timeout=HOUR_SECONDS)
                await node.ask("StopContainer", request)
                stopped += 1

            async with trio.open_nursery() as nursery:
                for number in range(CALLS):
                    nursery.start_soon(stop, made[number % len(made)])
                await trio.testing.wait_all_tasks_blocked()
                for asking in (node, other):
                    assert await states(asking) == {api.CONTAINER_RUNNING}
                    for container in made:
                        assert await asking.execute(container, "echo here") == b"here\n"
                        status = api.ContainerStatusRequest(container_id=container.container_id)
                        assert (await asking.ask("ContainerStatus", status)).status.state == api.CONTAINER_RUNNING
                assert (daemon.busy(), stopped) == (set(), 0)
                assert daemon.memory_bytes() - before < CALLS * WAITING_BYTES
                *told, killed = made
                for container in told:
                    await other.execute(container, "echo >/tmp/end")
                now = api.StopContainerRequest(container_id=killed.container_id, timeout=0)
                await node.ask("StopContainer", now)
            assert stopped == CALLS
            ends = {one.container_id: 3 for one in told} | {killed.container_id: 137}
            for id_, code in ends.items():
                status = (await node.ask("ContainerStatus", api.ContainerStatusRequest(container_id=id_))).status
                assert (status.state, status.exit_code) == (api.CONTAINER_EXITED, code)


@pytest.mark.trio
async def test_a_stop_that_is_given_up(daemon: Daemon, tmp_path: Path) -> None:
    """Its time ends the call and not the stop, whose container is killed as the next call says."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            _, [container] = await make(node, tmp_path, 1, STUBBORN)
            await node.execute(container, "until [ -p /tmp/end ]; do sleep 0.02; done")
            stop = api.StopContainerRequest(container_id=container.container_id, timeout=HOUR_SECONDS)
            stream = await trio.open_unix_socket(os.fspath(daemon.socket))
            async with grpc_client(stream) as client:
                path = "/runtime.v1.RuntimeService/StopContainer"
                answer = await client.call(path, stop, [("grpc-timeout", "100m")])
                assert answer.code == Code.DEADLINE_EXCEEDED
                await client.start(path, frame(stop.SerializeToString()))
            assert await states(node) == {api.CONTAINER_RUNNING}
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.ask, "StopContainer", stop)
                await node.execute(container, "echo >/tmp/end")
            assert await states(node) == {api.CONTAINER_EXITED}


@pytest.mark.trio
async def test_a_stop_whose_pod_is_killed(daemon: Daemon, tmp_path: Path) -> None:
    """The calls that wait for containers of a pod have done what they should when the pod is no more."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox, [container] = await make(node, tmp_path, 1, STUBBORN)
            await node.execute(container, "until [ -p /tmp/end ]; do sleep 0.02; done")
            stop = api.StopContainerRequest(container_id=container.container_id, timeout=HOUR_SECONDS)
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(node.ask, "StopContainer", stop)
                await trio.testing.wait_all_tasks_blocked()
                assert await states(node) == {api.CONTAINER_RUNNING}
                await node.ask("StopPodSandbox", sandbox)
            assert await states(node) == {api.CONTAINER_EXITED}


@pytest.mark.trio
async def test_a_node_that_is_emptied(daemon: Daemon, tmp_path: Path) -> None:
    """Sandboxes that are removed all at once, each by several calls, are all removed."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandboxes = [(await make(node, tmp_path, number))[0] for number in range(REMOVED)]
            refused: list[CallFailed] = []

            async def remove(sandbox: api.SandboxId) -> None:
                try:
                    await node.ask("RemovePodSandbox", sandbox)
                except CallFailed as error:
                    refused.append(error)

            async with trio.open_nursery() as nursery:
                for sandbox in sandboxes * CALLS_TO_REMOVE:
                    nursery.start_soon(remove, sandbox)
            assert refused == []
            assert not (await node.ask("ListPodSandbox", api.ListPodSandboxRequest())).items
    assert not any((daemon.minit.data / "cri").iterdir())
    assert not any((daemon.minit.data / "pods/run").iterdir())
