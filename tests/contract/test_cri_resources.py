"""minit cri: limits of containers, as they are made and while they run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from minit.cri.api import cri_pb2 as api
from minit.mountinfo import find_mounts
from minit.stage0.reports.usage import APPS, find_group, find_hierarchies
from tests.support.commands import Stage0
from tests.support.crinode import CallFailed, Daemon, container_config, own_daemon

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

PATIENCE_SECONDS = 100
IDLE = "exec sleep 1000"
MEBIBYTE = 1 << 20


@pytest.fixture
def daemon(minit: Stage0, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with an image in its store, on a data directory of its own."""
    with own_daemon(minit, tmp_path / "cri.sock") as daemon:
        daemon.start()
        yield daemon


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
