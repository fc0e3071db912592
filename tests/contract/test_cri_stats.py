"""minit cri: what containers and sandboxes use."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import Code
from tests.support.commands import Stage0
from tests.support.crinode import IMAGE, CallFailed, CriNode, Daemon, container_config, own_daemon

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

PATIENCE_SECONDS = 100
IDLE = "exec sleep 1000"
WRITTEN_BYTES = 3 << 20
LIMIT_BYTES = 64 << 20


@pytest.fixture
def daemon(minit: Stage0, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with an image in its store, on a data directory of its own."""
    with own_daemon(minit, tmp_path / "cri.sock", network="default") as daemon:
        daemon.start()
        yield daemon


async def stats(node: CriNode, container: api.ContainerId) -> api.ContainerStats:
    """Return what a container uses."""
    found = (await node.ask("ContainerStats", container)).stats
    assert isinstance(found, api.ContainerStats)
    return found


async def listed(node: CriNode, **wanted: object) -> list[str]:
    """Return the names of the containers in a list."""
    request = api.ListContainerStatsRequest(filter=api.ContainerStatsFilter(**wanted))  # type: ignore[arg-type]
    return [one.attributes.metadata.name for one in (await node.ask("ListContainerStats", request)).stats]


@pytest.mark.trio
@pytest.mark.parametrize("package", ["runtime.v1", "runtime.v1alpha2"])
async def test_what_a_container_uses(daemon: Daemon, tmp_path: Path, package: str) -> None:
    """Processor time grows, memory is within the limit, and the writable layer has what was written."""
    resources = api.LinuxContainerResources(memory_limit_in_bytes=LIMIT_BYTES)
    writer = f"head -c {WRITTEN_BYTES} /dev/zero >/file; : >/written; while :; do :; done"
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node(package) as node:
            limited = api.LinuxContainerConfig(resources=resources)
            _, [container] = await node.run(tmp_path, container_config(writer, labels={"a": "b"}, linux=limited))
            await node.execute(container, "until [ -e /written ]; do sleep 0.02; done")
            first = await stats(node, container)
            while (last := await stats(node, container)).cpu.usage_core_nano_seconds.value <= (
                first.cpu.usage_core_nano_seconds.value
            ):
                await trio.sleep(0.02)
            assert (last.attributes.id, dict(last.attributes.labels)) == (container.container_id, {"a": "b"})
            assert 0 < first.cpu.timestamp < last.cpu.timestamp
            assert first.writable_layer == last.writable_layer  # it is not measured each time
            assert WRITTEN_BYTES <= last.writable_layer.used_bytes.value < 2 * WRITTEN_BYTES
            assert last.writable_layer.inodes_used.value >= 3
            assert last.writable_layer.fs_id.mountpoint == str(daemon.minit.data)
            assert last.writable_layer.timestamp > 0
            memory = last.memory
            assert 0 < memory.rss_bytes.value <= memory.usage_bytes.value <= LIMIT_BYTES
            assert memory.working_set_bytes.value + memory.available_bytes.value == LIMIT_BYTES
            assert memory.page_faults.value > 0 and memory.timestamp > 0
            assert last.swap.swap_usage_bytes.value == 0 and last.swap.timestamp > 0
            if Path("/proc/pressure").exists():
                assert last.cpu.HasField("psi") and last.memory.HasField("psi") and last.io.HasField("psi")


@pytest.mark.trio
async def test_lists(daemon: Daemon, tmp_path: Path) -> None:
    """Containers are listed until they have ended, as a filter says; a sandbox has them with its network."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox, [one, two] = await node.run(
                tmp_path, container_config(IDLE, "one", labels={"n": "1"}), container_config(IDLE, "two")
            )
            created = await node.create(sandbox, container_config(IDLE, "created"))
            assert await listed(node) == ["one", "two", "created"]
            assert await listed(node, id=two.container_id[:20]) == ["two"]
            assert await listed(node, label_selector={"n": "1"}) == ["one"]
            assert await listed(node, pod_sandbox_id="0" * 36) == []
            assert (await stats(node, created)).memory.timestamp > 0

            [pod] = (await node.ask("ListPodSandboxStats", api.ListPodSandboxStatsRequest())).stats
            assert pod.attributes.id == sandbox.pod_sandbox_id
            assert [each.attributes.metadata.name for each in pod.linux.containers] == ["one", "two", "created"]
            assert pod.linux.cpu.usage_core_nano_seconds.value > 0
            assert pod.linux.memory.working_set_bytes.value > 0
            assert pod.linux.process.process_count.value >= 2
            assert pod.linux.network.default_interface.name == "eth0"
            assert pod.linux.network.default_interface.tx_bytes.value > 0
            streamed = await node.stream("StreamContainerStats", api.ListContainerStatsRequest())
            found = [api.ListContainerStatsResponse.FromString(each).stats for each in streamed]
            assert [[each.attributes.metadata.name for each in stats] for stats in found] == [
                ["one"],
                ["two"],
                ["created"],
            ]

            await node.ask("StopContainer", api.StopContainerRequest(container_id=one.container_id))
            assert await listed(node) == ["two", "created"]
            ended = await stats(node, one)
            assert ended.writable_layer.timestamp > 0 and not ended.HasField("memory")
            await node.ask("StopPodSandbox", sandbox)
            assert await listed(node) == []
            assert (await node.ask("ListPodSandboxStats", api.ListPodSandboxStatsRequest())).stats == []
            pod = (await node.ask("PodSandboxStats", sandbox)).stats
            assert pod.attributes.id == sandbox.pod_sandbox_id and not pod.HasField("linux")
            await node.ask("RemovePodSandbox", sandbox)
            for name, request in (("ContainerStats", one), ("PodSandboxStats", sandbox)):
                with pytest.raises(CallFailed) as caught:
                    await node.ask(name, request)
                assert caught.value.code == Code.NOT_FOUND


@pytest.mark.trio
async def test_metrics(daemon: Daemon, tmp_path: Path) -> None:
    """Each has a description with as many labels as it has values, and the figures of its container or sandbox."""
    resources = api.LinuxContainerConfig(resources=api.LinuxContainerResources(memory_limit_in_bytes=LIMIT_BYTES))
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox, [container] = await node.run(tmp_path, container_config(IDLE, linux=resources))
            descriptors = (await node.ask("ListMetricDescriptors")).descriptors
            labels = {one.name: list(one.label_keys) for one in descriptors}
            assert len(labels) == len(descriptors) and all(one.help for one in descriptors)
            [pod] = (await node.ask("ListPodSandboxMetrics")).pod_metrics
            [of_container] = pod.container_metrics
            assert (pod.pod_sandbox_id, of_container.container_id) == (sandbox.pod_sandbox_id, container.container_id)
            for metric in (*pod.metrics, *of_container.metrics):
                assert len(metric.label_values) == len(labels[metric.name]), metric.name
            by_name = {one.name: one for one in of_container.metrics}
            limit = by_name["container_spec_memory_limit_bytes"]
            assert (limit.value.value, limit.metric_type) == (LIMIT_BYTES, api.GAUGE)
            assert limit.label_values[1:] == [container.container_id, IMAGE]
            status = (await node.ask("ContainerStatus", request_of(container))).status
            assert by_name["container_start_time_seconds"].value.value == status.started_at // 10**9
            assert 0 < by_name["container_memory_working_set_bytes"].value.value <= LIMIT_BYTES
            assert by_name["container_cpu_usage_seconds_total"].metric_type == api.COUNTER
            assert "container_network_receive_bytes_total" not in by_name
            sent = {
                one.label_values[3]: one for one in pod.metrics if one.name == "container_network_transmit_bytes_total"
            }
            assert sent["eth0"].value.value > 0
            await node.ask("StopPodSandbox", sandbox)
            assert not (await node.ask("ListPodSandboxMetrics")).pod_metrics


@pytest.mark.trio
async def test_verbose_statuses(daemon: Daemon, tmp_path: Path) -> None:
    """They have what crictl's users ask for as JSON: the first process, its control group, an image's configuration."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox, [container] = await node.run(tmp_path, container_config("sleep 999 & exec sleep 1000"))
            assert not (await node.ask("ContainerStatus", request_of(container))).info
            info = parsed(await node.ask("ContainerStatus", request_of(container, verbose=True)))
            assert info["sandboxID"] == sandbox.pod_sandbox_id
            assert Path(f"/proc/{info['pid']}/cmdline").read_bytes() == b"sleep\x001000\0"
            group = info["runtimeSpec"]["linux"]["cgroupsPath"]
            assert f":{group}\n" in Path(f"/proc/{info['pid']}/cgroup").read_text()
            asked = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox.pod_sandbox_id, verbose=True)
            info = parsed(await node.ask("PodSandboxStatus", asked))
            [network] = [each for each in info["runtimeSpec"]["linux"]["namespaces"] if each["type"] == "network"]
            assert os.readlink(network["path"]) not in ("", os.readlink("/proc/self/ns/net"))
            of_image = api.ImageStatusRequest(image=api.ImageSpec(image=IMAGE), verbose=True)
            config = parsed(await node.ask("ImageStatus", of_image))["imageSpec"]["config"]
            assert (config["User"], config["Cmd"]) == ("0", ["/bin/sh"])
            info = parsed(await node.ask("Status", api.StatusRequest(verbose=True)))
            assert info["config"]["dataDirectory"] == str(daemon.minit.data)
            await node.ask("RemovePodSandbox", sandbox)


def request_of(container: api.ContainerId, *, verbose: bool = False) -> api.ContainerStatusRequest:
    """Return the request for a container's status."""
    return api.ContainerStatusRequest(container_id=container.container_id, verbose=verbose)


def parsed(answer: Any) -> Any:
    """Return what a verbose status tells."""
    return json.loads(answer.info["info"])
