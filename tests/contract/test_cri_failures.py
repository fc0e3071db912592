"""Codes of calls whose commands fail: a kubelet tells by them what is wrong with a pod, and what with the node."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio
from google.protobuf.message import Message

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import Code
from tests.support.commands import Stage0
from tests.support.crinode import CallFailed, CriNode, Daemon, container_config, sandbox_config
from tests.support.owngroup import find_groups
from tests.support.pods import control_group_name
from tests.support.wantofmemory import memory_group, use_up

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

PATIENCE_SECONDS = 110
IDLE = "exec sleep 1000"


async def code_of(node: CriNode, name: str, request: Message) -> int:
    """Return the code of a call that fails."""
    with pytest.raises(CallFailed) as failed:
        await node.ask(name, request)
    return failed.value.code


def security(**fields: object) -> api.LinuxContainerConfig:
    """Return a container's part for Linux with a security context."""
    return api.LinuxContainerConfig(security_context=api.LinuxContainerSecurityContext(**fields))  # type: ignore[arg-type]


@pytest.mark.trio
async def test_what_nobody_can_have(daemon: Daemon, tmp_path: Path) -> None:
    """A value that the command refuses, that stage1 refuses, or that the machine has not, is an invalid argument."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            other = sandbox_config(tmp_path, hostname="a b", metadata=api.PodSandboxMetadata(name="other"))
            refused = api.RunPodSandboxRequest(config=other)
            assert await code_of(node, "RunPodSandbox", refused) == Code.INVALID_ARGUMENT
            sandbox, _ = await node.run(tmp_path)
            limits = api.LinuxContainerConfig(resources=api.LinuxContainerResources(memory_limit_in_bytes=1))
            for config in (
                container_config(IDLE, "limits", linux=limits),
                container_config(IDLE, "user", linux=security(run_as_username="nobody-here")),
                container_config(IDLE, "device", devices=[api.Device(container_path="/dev/x", host_path="/dev/none")]),
            ):
                asked = api.CreateContainerRequest(pod_sandbox_id=sandbox.pod_sandbox_id, config=config)
                assert await code_of(node, "CreateContainer", asked) == Code.INVALID_ARGUMENT


@pytest.mark.trio
async def test_too_late(daemon: Daemon, tmp_path: Path) -> None:
    """A container for a sandbox that has ended is a failed precondition."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox, _ = await node.run(tmp_path)
            await node.ask("StopPodSandbox", sandbox)
            asked = api.CreateContainerRequest(pod_sandbox_id=sandbox.pod_sandbox_id, config=container_config(IDLE))
            assert await code_of(node, "CreateContainer", asked) == Code.FAILED_PRECONDITION


@pytest.mark.parametrize("is_short_of_memory", [False, True], ids=["by somebody", "for want of memory"])
@pytest.mark.trio
async def test_a_sandbox_whose_pid_1_is_killed(
    daemon: Daemon, minit: Stage0, tmp_path: Path, is_short_of_memory: bool
) -> None:
    """It is not ready, a container that ran has ended in a way that nobody knows, and one that had ended stays so."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox, [runs, ended] = await node.run(
                tmp_path, container_config(IDLE), container_config("exit 3", name="ended")
            )
            while (await status_of(node, ended)).state != api.CONTAINER_EXITED:
                await trio.sleep(0.05)
            pod = minit.data / "pods/run" / sandbox.pod_sandbox_id
            if is_short_of_memory:
                groups = find_groups(control_group_name(sandbox.pod_sandbox_id))
                await trio.to_thread.run_sync(use_up, memory_group(groups, "init.scope"))
            else:
                os.kill(int((pod / "pid").read_text()), signal.SIGKILL)
            while (found := await status_of(node, runs)).state != api.CONTAINER_EXITED:
                await trio.sleep(0.05)
            reason, how = ("OOMKilled", "by the kernel") if is_short_of_memory else ("Error", "by somebody on the host")
            assert (found.exit_code, found.reason) == (137, reason)
            assert found.message.startswith(f"PID 1 of the pod was killed {how}")
            assert found.message.endswith(": how the container has ended is not known")
            found = await status_of(node, ended)
            assert (found.exit_code, found.reason, found.message) == (3, "Error", "")
            asked = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox.pod_sandbox_id)
            assert (await node.ask("PodSandboxStatus", asked)).status.state == api.SANDBOX_NOTREADY
            await node.ask("StopPodSandbox", sandbox)
            await node.ask("RemovePodSandbox", sandbox)


async def status_of(node: CriNode, container: api.ContainerId) -> api.ContainerStatus:
    """Return what is told of a container."""
    asked = api.ContainerStatusRequest(container_id=container.container_id)
    status = (await node.ask("ContainerStatus", asked)).status
    assert isinstance(status, api.ContainerStatus)
    return status
