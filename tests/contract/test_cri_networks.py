"""minit cri: what a sandbox has of the host's network, and when it is given back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from minit.cri.api import cri_pb2 as api
from minit.podfiles.networkfiles import CNI_DIRECTORY
from tests.support.commands import Stage0
from tests.support.crinode import CallFailed, CriNode, Daemon, container_config, own_daemon, sandbox_config
from tests.support.hostnet import left_by

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root"), pytest.mark.trio]

PATIENCE_SECONDS = 100
PORTS = [api.PortMapping(container_port=80, host_port=31880)]


@pytest.fixture(autouse=True)
def no_networks_for_all() -> Iterator[None]:
    """The directory for all runtimes is empty before and after each test."""
    yield
    for path in Path(CNI_DIRECTORY).iterdir():
        path.unlink()


@pytest.fixture
def daemon(minit: Stage0, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon whose sandboxes have networks."""
    with own_daemon(minit, tmp_path / "cri.sock", network="default") as daemon:
        daemon.start()
        yield daemon


async def run(node: CriNode, root: Path, attempt: int) -> api.SandboxId:
    """Make a sandbox with a port of the host."""
    metadata = api.PodSandboxMetadata(name="web", namespace="default", uid="5e5b", attempt=attempt)
    config = sandbox_config(root, metadata=metadata, port_mappings=PORTS)
    sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config))
    assert isinstance(sandbox, api.SandboxId)
    return sandbox


async def status(node: CriNode, sandbox: api.SandboxId) -> api.PodSandboxStatus:
    """Return what is known of a sandbox."""
    request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox.pod_sandbox_id)
    found = (await node.ask("PodSandboxStatus", request)).status
    assert isinstance(found, api.PodSandboxStatus)
    return found


async def test_a_stop_gives_networks_back(daemon: Daemon, tmp_path: Path) -> None:
    """Addresses and ports are free when StopPodSandbox returns, and the sandbox is known with its containers."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            first = await run(node, tmp_path, 0)
            container = await node.create(first, container_config("exec sleep 1000"))
            await node.ask("StartContainer", container)
            assert (await status(node, first)).network.ip
            assert left_by(first.pod_sandbox_id)
            await node.ask("StopPodSandbox", first)
            assert not left_by(first.pod_sandbox_id)
            told = await status(node, first)
            assert (told.state, told.network.ip) == (api.SANDBOX_NOTREADY, "")
            asked = api.ContainerStatusRequest(container_id=container.container_id)
            assert (await node.ask("ContainerStatus", asked)).status.exit_code == 137
            second = await run(node, tmp_path, 1)
            daemon.end(kill=True)
    daemon.start()
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            for sandbox in (first, second):
                await node.ask("StopPodSandbox", sandbox)
                await node.ask("RemovePodSandbox", sandbox)
    assert not left_by(second.pod_sandbox_id)
    assert not any((daemon.minit.data / "pods/run").iterdir())


async def test_a_stop_of_what_has_ended(daemon: Daemon, tmp_path: Path) -> None:
    """The networks of a sandbox that was killed are given back by StopPodSandbox, which the kubelet calls then."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox = await run(node, tmp_path, 0)
            [pod] = daemon.minit.data.glob("pods/run/*")
            # The launcher writes the file, and PID 1 says that the sandbox is ready.
            while not (pod / "pid").exists():
                await trio.sleep(0.02)
            os.kill(int((pod / "pid").read_text()), signal.SIGKILL)
            while (await status(node, sandbox)).state == api.SANDBOX_READY:
                await trio.sleep(0.02)
            assert left_by(sandbox.pod_sandbox_id)
            await node.ask("StopPodSandbox", sandbox)
            assert not left_by(sandbox.pod_sandbox_id)
            await node.ask("RemovePodSandbox", sandbox)


async def test_the_network_of_a_cluster(minit: Stage0, tmp_path: Path) -> None:
    """
    A node that waits is not ready until a configuration for all runtimes appears, as flannel's pod writes it, and has
    the first valid one from then on, with the names of the pod for the plugins.
    """
    directory = Path(CNI_DIRECTORY)
    with own_daemon(minit, tmp_path / "cri.sock", network="") as daemon:
        daemon.options = ["--wait-for-cni"]
        daemon.start()
        with trio.fail_after(PATIENCE_SECONDS):
            async with daemon.node() as node:
                (directory / "05-broken.conflist").write_text('{"name": "broken", "plugins": []}')
                (directory / "06-hidden.conf").write_text('{"name": "default", "type": "ptp"}')
                condition = (await node.ask("Status", api.StatusRequest())).status.conditions[1]
                assert (condition.type, condition.status, condition.reason) == (
                    "NetworkReady",
                    False,
                    "NetworkPluginNotReady",
                )
                with pytest.raises(CallFailed, match="there is no network yet: /etc/cni/net.d has no valid"):
                    await run(node, tmp_path, 0)
                write_flannel(directory / "10-flannel.conflist", tmp_path / "subnet.env")
                (directory / "20-later.conf").write_text('{"name": "later", "type": "ptp"}')
                assert (await node.ask("Status", api.StatusRequest())).status.conditions[1].status
                sandbox = await run(node, tmp_path, 0)
                assert (await status(node, sandbox)).network.ip.startswith("10.244.3.")
                record = minit.data / "pods/run" / sandbox.pod_sandbox_id / "net-info.json"
                [network] = json.loads(record.read_text())
                assert network["args"] == (
                    "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_UID=5e5b"
                )
                await node.ask("RemovePodSandbox", sandbox)
    assert not left_by(sandbox.pod_sandbox_id)
    subprocess.run(["ip", "link", "del", "cni0"], check=True)  # a bridge stays


def write_flannel(file: Path, environment: Path) -> None:
    """Write what flannel's DaemonSet writes on a node, and what flanneld does."""
    lines = ("FLANNEL_NETWORK=10.244.0.0/16", "FLANNEL_SUBNET=10.244.3.1/24", "FLANNEL_MTU=1450", "FLANNEL_IPMASQ=true")
    environment.write_text("\n".join(lines) + "\n")
    flannel = {"type": "flannel", "subnetFile": str(environment)}
    flannel |= {"delegate": {"hairpinMode": True, "isDefaultGateway": True}}  # type: ignore[dict-item]
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    file.write_text(json.dumps({"name": "cbr0", "cniVersion": "0.3.1", "plugins": [flannel, portmap]}))
