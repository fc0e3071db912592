"""minit cri: the end of a daemon by SIGTERM while calls are on their way, and the next one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from google.protobuf.message import Message

from minit.cri.api import cri_pb2 as api
from minit.stage0.files.locks import key_lock
from tests.contract.test_cri_images import BOX, box
from tests.support.commands import Stage0
from tests.support.crinode import (
    CallFailed,
    CriNode,
    Daemon,
    container_config,
    own_daemon,
    pull_request,
    sandbox_config,
)
from tests.support.skopeostandin import SkopeoStandIn
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root"), pytest.mark.trio]

PATIENCE_SECONDS = 100
DEAF = "trap '' TERM; touch /tmp/deaf; while :; do sleep 1; done"


@pytest.fixture
def skopeo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SkopeoStandIn:
    """A stand-in for skopeo."""
    return SkopeoStandIn(tmp_path / "skopeo", monkeypatch)


@pytest.fixture
def daemon(minit: Stage0, tmp_path: Path, skopeo: SkopeoStandIn) -> Iterator[Daemon]:
    """A daemon with an image in its store, and a registry."""
    assert skopeo
    with own_daemon(minit, tmp_path / "cri.sock") as daemon:
        daemon.start()
        yield daemon


async def cut_off(node: CriNode, name: str, request: Message) -> None:
    """Make a call whose answer the end of the daemon cuts off."""
    with pytest.raises((CallFailed, trio.BrokenResourceError)) as caught:
        await node.ask(name, request)
    assert not isinstance(caught.value, CallFailed) or caught.value.code == -1, name


async def end_during(daemon: Daemon, **calls: Message) -> None:
    """End a daemon when calls are on their way."""
    async with daemon.node() as node, trio.open_nursery() as nursery:
        for name, request in calls.items():
            nursery.start_soon(cut_off, node, name, request)
        processes = len(calls.keys() - {"StopContainer"})  # for which PID 1 is asked
        while len(daemon.busy()) < processes:
            await trio.sleep(0.01)
        assert daemon.end() == 0


async def _sandbox(node: CriNode, root: Path) -> api.SandboxId:
    answer = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(root)))
    assert isinstance(answer, api.SandboxId)
    return answer


async def _remove(daemon: Daemon, node: CriNode, sandbox: api.SandboxId) -> None:
    """Remove a sandbox, of which nothing is left then."""
    await node.ask("StopPodSandbox", sandbox)
    await node.ask("RemovePodSandbox", sandbox)
    assert not any((daemon.minit.data / "cri").iterdir())
    assert not [path for path in daemon.minit.data.glob("pods/*/*") if path.exists()]


async def test_calls_that_wait_for_others(daemon: Daemon, skopeo: SkopeoStandIn, tmp_path: Path) -> None:
    """A stop with an hour of grace, a command and a pull do not hold up the end; the container runs on."""
    skopeo.put(BOX, box("1"))
    hold = skopeo.hold()
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox = await _sandbox(node, tmp_path)
            container = await node.create(sandbox, container_config(DEAF))
            await node.ask("StartContainer", container)
            await node.execute(container, "until [ -e /tmp/deaf ]; do sleep 0.02; done")
            images = [one.id for one in (await node.ask("ListImages", api.ListImagesRequest())).images]
        number = container.container_id
        await end_during(
            daemon,
            StopContainer=api.StopContainerRequest(container_id=number, timeout=3600),
            ExecSync=api.ExecSyncRequest(container_id=number, cmd=["busybox", "sleep", "1234"]),
            PullImage=pull_request(f"{BOX}:1"),
        )
        hold.unlink()
        daemon.start()
        async with daemon.node() as node:
            asked = api.ContainerStatusRequest(container_id=number)
            assert (await node.ask("ContainerStatus", asked)).status.state == api.CONTAINER_RUNNING
            assert b"sleep 1234" not in await node.execute(container, "cat /proc/*/cmdline | tr '\\0' ' '")
            assert [one.id for one in (await node.ask("ListImages", api.ListImagesRequest())).images] == images
            await node.ask("StopContainer", api.StopContainerRequest(container_id=number, timeout=0))
            found = (await node.ask("ContainerStatus", asked)).status
            assert (found.state, found.exit_code) == (api.CONTAINER_EXITED, 137)
            await _remove(daemon, node, sandbox)


async def test_what_is_being_made(daemon: Daemon, tmp_path: Path) -> None:
    """Commands that make a sandbox or a container go on; the next daemon undoes it, and there is one of each."""
    run = api.RunPodSandboxRequest(config=sandbox_config(tmp_path))
    locks = daemon.minit.data / "locks"
    with trio.fail_after(PATIENCE_SECONDS):
        with key_lock(locks, "prepareLock", exclusive=True):
            await end_during(daemon, RunPodSandbox=run)
        daemon.start()
        async with daemon.node() as node:
            assert not (await node.ask("ListPodSandbox", api.ListPodSandboxRequest())).items
            sandbox = await _sandbox(node, tmp_path)
            assert [path.name for path in daemon.minit.data.glob("pods/run/*")] == [sandbox.pod_sandbox_id]
        config = container_config("exec sleep 1000")
        create = api.CreateContainerRequest(pod_sandbox_id=sandbox.pod_sandbox_id, config=config)
        with key_lock(locks, "prepareLock", exclusive=True):
            await end_during(daemon, CreateContainer=create)
        daemon.start()
        async with daemon.node() as node:
            assert not (await node.ask("ListContainers", api.ListContainersRequest())).containers
            container = await node.create(sandbox, config)
            await node.ask("StartContainer", container)
            [listed] = (await node.ask("ListContainers", api.ListContainersRequest())).containers
            assert (listed.id, listed.state) == (container.container_id, api.CONTAINER_RUNNING)
            await _remove(daemon, node, sandbox)


async def test_what_is_being_removed(daemon: Daemon, tmp_path: Path) -> None:
    """The removal of a sandbox goes on; the next daemon knows of it until it is asked to remove it again."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox = await _sandbox(node, tmp_path)
            await node.ask("StopPodSandbox", sandbox)
        with key_lock(daemon.minit.data / "locks", "endedPods", exclusive=True):
            await end_during(daemon, RemovePodSandbox=sandbox)
        wait_for(lambda: not any((daemon.minit.data / "pods/run").iterdir()), "the removal of the pod")
        daemon.start()
        async with daemon.node() as node:
            [left] = (await node.ask("ListPodSandbox", api.ListPodSandboxRequest())).items
            assert (left.id, left.state) == (sandbox.pod_sandbox_id, api.SANDBOX_NOTREADY)
            await _remove(daemon, node, sandbox)
