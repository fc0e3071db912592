"""minit cri: limits of containers, as they are made and while they run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from minit.cri.api import cri_pb2 as api
from minit.linux.mountinfo import find_mounts
from minit.stage0.reports.usage import APPS, find_group, find_hierarchies
from tests.support.crinode import CallFailed, CriNode, Daemon, container_config

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

PATIENCE_SECONDS = 100
IDLE = "exec sleep 1000"
MEBIBYTE = 1 << 20


def limited(name: str = "main", **resources: object) -> api.ContainerConfig:
    """Return a container with limits."""
    limits = api.LinuxContainerResources(**resources)  # type: ignore[arg-type]
    return container_config(IDLE, name, linux=api.LinuxContainerConfig(resources=limits))


def read_limit(daemon: Daemon, sandbox: api.SandboxId, of_v1: str, of_v2: str, app: str = "main-2") -> str:
    """Return what a file of an app's control group has, by its name in each version."""
    [subcgroup] = daemon.minit.data.glob(f"pods/run/{sandbox.pod_sandbox_id}/subcgroup")
    group = f"{subcgroup.read_text().strip().lstrip('/')}/{APPS}/{app}.service"
    for _, directory in find_group(find_hierarchies(find_mounts("cgroup")), group):
        for name in (of_v1, of_v2):
            if (file := Path(directory, name)).exists():
                return file.read_text().strip()
    raise AssertionError(f"no {of_v1} and no {of_v2}")


@pytest.mark.trio
async def test_limits_of_a_new_container(daemon: Daemon, tmp_path: Path) -> None:
    """Quota and period are exact, sets of processors and swap are limited, and what cannot be is refused."""
    asked = limited(
        cpu_quota=33_333,
        cpu_period=50_000,
        cpuset_cpus="0",
        cpuset_mems="0",
        memory_limit_in_bytes=64 * MEBIBYTE,
        memory_swap_limit_in_bytes=64 * MEBIBYTE,
        hugepage_limits=[api.HugepageLimit(page_size="2MB")],
    )
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox, [container] = await node.run(tmp_path, asked)
            assert read_limit(daemon, sandbox, "cpu.cfs_quota_us", "cpu.max") in ("33333", "33333 50000")
            assert read_limit(daemon, sandbox, "cpu.cfs_period_us", "cpu.max") in ("50000", "33333 50000")
            assert read_limit(daemon, sandbox, "cpuset.cpus", "cpuset.cpus") == "0"
            swap = read_limit(daemon, sandbox, "memory.memsw.limit_in_bytes", "memory.swap.max")
            assert swap in (str(64 * MEBIBYTE), "0")
            assert b"Cpus_allowed_list:\t0\n" in await node.execute(container, "cat /proc/self/status")
            for resources, reason in (
                ({"cpuset_cpus": "9999"}, "cpuset.cpus"),
                ({"cpuset_cpus": "x"}, 'a list like "0-2,7"'),
                ({"unified": {"cgroup.procs": "1"}}, "unified"),
                (
                    {"memory_limit_in_bytes": MEBIBYTE, "memory_swap_limit_in_bytes": 5},
                    "at least memory_limit_in_bytes",
                ),
            ):
                with pytest.raises(CallFailed, match=reason):
                    await node.create(sandbox, limited("other", **resources))


def update(container: api.ContainerId, **resources: object) -> api.UpdateContainerResourcesRequest:
    """Return the request for other limits."""
    linux = api.LinuxContainerResources(**resources)  # type: ignore[arg-type]
    return api.UpdateContainerResourcesRequest(container_id=container.container_id, linux=linux)


async def told(node: CriNode, container: api.ContainerId) -> api.LinuxContainerResources:
    """Return the limits that a container has by its status."""
    answer = await node.ask("ContainerStatus", api.ContainerStatusRequest(container_id=container.container_id))
    linux = answer.status.resources.linux
    assert isinstance(linux, api.LinuxContainerResources)
    return linux


@pytest.mark.trio
async def test_other_limits(daemon: Daemon, tmp_path: Path) -> None:
    """They count before and after the start, in the status, and for the next daemon; those not given stay."""
    asked = limited(memory_limit_in_bytes=64 * MEBIBYTE, memory_swap_limit_in_bytes=64 * MEBIBYTE, cpu_shares=100)
    memory = ("memory.limit_in_bytes", "memory.max")
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox, [] = await node.run(tmp_path)
            container = await node.create(sandbox, asked)
            await node.ask("UpdateContainerResources", update(container, memory_limit_in_bytes=128 * MEBIBYTE))
            await node.ask("StartContainer", container)
            assert read_limit(daemon, sandbox, *memory) == str(128 * MEBIBYTE)
            await node.ask("UpdateContainerResources", update(container, cpu_quota=20_000, cpu_period=10_000))
            await node.ask("UpdateContainerResources", update(container, cpuset_cpus="0"))
            assert b"Cpus_allowed_list:\t0\n" in await node.execute(container, "cat /proc/self/status")
            expected = await told(node, container)
            assert (expected.cpu_quota, expected.cpu_shares, expected.cpuset_cpus) == (20_000, 100, "0")
            assert expected.memory_swap_limit_in_bytes == expected.memory_limit_in_bytes == 128 * MEBIBYTE
        assert daemon.end(kill=True) == -9
        daemon.start()
        async with daemon.node() as node:
            assert await told(node, container) == expected
            await node.ask("UpdateContainerResources", update(container, memory_limit_in_bytes=32 * MEBIBYTE))
            assert read_limit(daemon, sandbox, *memory) == str(32 * MEBIBYTE)
            expected = await told(node, container)
            for resources, reason in (
                ({"memory_limit_in_bytes": 99 * MEBIBYTE, "cpuset_cpus": "9999"}, "cpuset.cpus"),
                ({"memory_limit_in_bytes": 99 * MEBIBYTE, "cpuset_mems": "all"}, 'a list like "0-2,7"'),
                ({"cpu_quota": 5}, "cpuQuota"),
            ):
                with pytest.raises(CallFailed, match=reason):
                    await node.ask("UpdateContainerResources", update(container, **resources))
            assert read_limit(daemon, sandbox, *memory) == str(32 * MEBIBYTE)
            assert await told(node, container) == expected
            assert await node.create(sandbox, asked) == container
            await node.ask(
                "UpdatePodSandboxResources", api.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox.pod_sandbox_id)
            )
            await node.ask("StopContainer", api.StopContainerRequest(container_id=container.container_id))
            with pytest.raises(CallFailed, match="has ended"):
                await node.ask("UpdateContainerResources", update(container, cpu_shares=7))
            with pytest.raises(CallFailed, match="no container"):
                await node.ask("UpdateContainerResources", update(api.ContainerId(container_id="0" * 64)))
