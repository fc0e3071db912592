"""minit cri: calls made twice, at once, of what there is not, and with values that are not meant for options."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import trio
from google.protobuf.message import Message

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import Code
from tests.support.crinode import POD, CallFailed, CriNode, Daemon, container_config, sandbox_config
from tests.support.processes import namespace_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

PATIENCE_SECONDS = 100
AT_ONCE = 6
SHORT = 13
NOBODY = ("", "unknown", "../../run", "0" * 64, "x" * 100_000, "a\0b", "--force")


async def outcome(node: CriNode, name: str, request: Message) -> object:
    """Return the answer of a call, or the code of its failure."""
    try:
        return await node.ask(name, request)
    except CallFailed as error:
        assert "an error in minit itself" not in str(error), str(error)
        return error.code


async def at_once(node: CriNode, *calls: tuple[str, Message]) -> list[object]:
    """Make calls at the same time, each several times; return the outcomes in the order of the calls."""
    outcomes: dict[int, object] = {}

    async def ask(number: int, name: str, request: Message) -> None:
        outcomes[number] = await outcome(node, name, request)

    async with trio.open_nursery() as nursery:
        for number, (name, request) in enumerate(call for call in calls for _ in range(AT_ONCE)):
            nursery.start_soon(ask, number, name, request)
    return [outcomes[number] for number in sorted(outcomes)]


@pytest.mark.trio
async def test_what_there_is_not(daemon: Daemon) -> None:
    """What is not there is stopped and removed already; all else about it is NOT_FOUND."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            for name in NOBODY:
                done = {
                    "StopPodSandbox": api.SandboxId(pod_sandbox_id=name),
                    "RemovePodSandbox": api.SandboxId(pod_sandbox_id=name),
                    "StopContainer": api.StopContainerRequest(container_id=name),
                    "RemoveContainer": api.ContainerId(container_id=name),
                    "RemoveImage": api.RemoveImageRequest(image=api.ImageSpec(image=name)),
                }
                for call, request in done.items():
                    assert await outcome(node, call, request) == api.Nothing(), (call, name)
                create = api.CreateContainerRequest(pod_sandbox_id=name, config=container_config("true"))
                unknown: dict[str, Message] = {
                    "PodSandboxStatus": api.PodSandboxStatusRequest(pod_sandbox_id=name),
                    "CreateContainer": create,
                    "StartContainer": api.ContainerId(container_id=name),
                    "ContainerStatus": api.ContainerStatusRequest(container_id=name),
                    "ExecSync": api.ExecSyncRequest(container_id=name, cmd=["true"]),
                }
                for call, asked in unknown.items():
                    assert await outcome(node, call, asked) == Code.NOT_FOUND, (call, name)
                found = await node.ask("ImageStatus", api.ImageStatusRequest(image=api.ImageSpec(image=name)))
                assert not found.HasField("image")


@pytest.mark.trio
async def test_shortened_ids(daemon: Daemon, tmp_path: Path) -> None:
    """An id may be cut short, as crictl shows it, as long as it is that of one alone."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox, [container] = await node.run(tmp_path, container_config("exec sleep 1000"))
            pod, short = sandbox.pod_sandbox_id[:SHORT], container.container_id[:SHORT]
            status = api.ContainerStatusRequest(container_id=short)
            assert (await node.ask("ContainerStatus", status)).status.id == container.container_id
            seen, name = {short[0]}, "again"
            while True:
                name += "-again"
                more = await node.create(api.SandboxId(pod_sandbox_id=pod), container_config("true", name))
                if more.container_id[0] in seen:
                    break
                seen.add(more.container_id[0])
            several = api.StopContainerRequest(container_id=more.container_id[0])
            assert await outcome(node, "StopContainer", several) == Code.INVALID_ARGUMENT
            await node.ask("StopContainer", api.StopContainerRequest(container_id=short))
            assert (await node.ask("ContainerStatus", status)).status.state == api.CONTAINER_EXITED
            for call in ("StopPodSandbox", "RemovePodSandbox"):
                await node.ask(call, api.SandboxId(pod_sandbox_id=pod))
            assert not (await node.ask("ListPodSandbox", api.ListPodSandboxRequest())).items


@pytest.mark.trio
async def test_verbose_statuses(daemon: Daemon, tmp_path: Path) -> None:
    """A verbose status tells what was asked for, and by which process of the host scripts find the namespaces."""
    config = container_config("sleep 1001 & exec sleep 1000", envs=[api.KeyValue(key="WORD", value="süß".encode())])
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox, [container] = await node.run(tmp_path, config)
            request = api.ContainerStatusRequest(container_id=container.container_id, verbose=True)
            info = json.loads((await node.ask("ContainerStatus", request)).info["info"])
            assert Path(f"/proc/{info['pid']}/cmdline").read_bytes() == b"sleep\0001000\0"
            assert (info["sandboxID"], info["config"]["log_path"]) == (sandbox.pod_sandbox_id, config.log_path)
            assert info["config"]["envs"] == [{"key": "WORD", "value": "süß"}]
            asked = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox.pod_sandbox_id, verbose=True)
            around = json.loads((await node.ask("PodSandboxStatus", asked)).info["info"])
            assert namespace_of(around["pid"], "ipc") == namespace_of(info["pid"], "ipc") != namespace_of("self", "ipc")
            assert around["config"]["metadata"]["uid"] == POD.uid
            await node.ask("StopContainer", api.StopContainerRequest(container_id=container.container_id))
            assert json.loads((await node.ask("ContainerStatus", request)).info["info"])["pid"] == 0
            request.verbose = False
            assert not (await node.ask("ContainerStatus", request)).info


@pytest.mark.trio
async def test_calls_at_once(daemon: Daemon, tmp_path: Path) -> None:
    """Of calls that are made at the same time each has the outcome it has alone: one pod, one container, one end."""
    config = sandbox_config(tmp_path)
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            made = await at_once(node, ("RunPodSandbox", api.RunPodSandboxRequest(config=config)))
            sandbox = made[0]
            assert isinstance(sandbox, api.SandboxId)
            assert made == [sandbox] * AT_ONCE
            assert len(list(daemon.minit.data.glob("pods/run/*"))) == 1
            uuid = sandbox.pod_sandbox_id
            create = api.CreateContainerRequest(pod_sandbox_id=uuid, config=container_config("exec sleep 1000"))
            made = await at_once(node, ("CreateContainer", create))
            container = made[0]
            assert isinstance(container, api.ContainerId)
            assert made == [container] * AT_ONCE
            started = await at_once(node, ("StartContainer", container))
            assert started.count(api.Nothing()) == 1
            assert started.count(Code.FAILED_PRECONDITION) == AT_ONCE - 1
            stop = api.StopContainerRequest(container_id=container.container_id, timeout=5)
            assert await at_once(node, ("StopContainer", stop)) == [api.Nothing()] * AT_ONCE
            assert await at_once(node, ("RemoveContainer", container)) == [api.Nothing()] * AT_ONCE
            ends = await at_once(node, ("StopPodSandbox", sandbox), ("RemovePodSandbox", sandbox))
            assert ends == [api.Nothing()] * 2 * AT_ONCE
            assert not (await node.ask("ListPodSandbox", api.ListPodSandboxRequest())).items
    assert not any((daemon.minit.data / "cri").iterdir())
    assert not any((daemon.minit.data / "pods/run").iterdir())


@pytest.mark.trio
async def test_a_removal_among_others(daemon: Daemon, tmp_path: Path) -> None:
    """A sandbox that is removed while it is worked on is gone, with all that was just being made in it."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            run = api.RunPodSandboxRequest(config=sandbox_config(tmp_path))
            sandbox = await node.ask("RunPodSandbox", run)
            uuid = sandbox.pod_sandbox_id
            create = api.CreateContainerRequest(pod_sandbox_id=uuid, config=container_config("exec sleep 1000"))
            outcomes = await at_once(
                node, ("CreateContainer", create), ("RemovePodSandbox", sandbox), ("RunPodSandbox", run)
            )
            assert outcomes[AT_ONCE : 2 * AT_ONCE] == [api.Nothing()] * AT_ONCE
            # That of the same request is another one, whose record the later removals leave alone.
            [left] = (await node.ask("ListPodSandbox", api.ListPodSandboxRequest())).items
            assert left.id != uuid
            assert not (await node.ask("ListContainers", api.ListContainersRequest())).containers
            assert [path.name for path in daemon.minit.data.glob("pods/run/*")] == [left.id]
            await node.ask("RemovePodSandbox", api.SandboxId(pod_sandbox_id=left.id))
    assert not any((daemon.minit.data / "cri").iterdir())


@pytest.mark.trio
async def test_values_that_look_like_options(daemon: Daemon, tmp_path: Path) -> None:
    """They are values, or refused: no client changes by one how a container is made."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(tmp_path)))
            uuid = sandbox.pod_sandbox_id
            for image in ("--privileged", "-h", "--help", "/etc/passwd", "a\0b"):
                config = container_config("true", image=api.ImageSpec(image=image))
                asked = api.CreateContainerRequest(pod_sandbox_id=uuid, config=config)
                assert await outcome(node, "CreateContainer", asked) in (Code.NOT_FOUND, Code.INVALID_ARGUMENT)
            words = ["--privileged", "--", "---", "--help", "---", "--caps-retain=CAP_SYS_ADMIN", "x y"]
            config = container_config('for word; do echo "$word"; done; exec sleep 1000', "words")
            odd = {"-x": "1", ".y": "2", "3 z": "4"}
            config.envs.extend(api.KeyValue(key=key, value=value.encode()) for key, value in odd.items())
            config.args.extend(["sh", *words])
            asked = api.CreateContainerRequest(pod_sandbox_id=uuid, config=config)
            container = await node.ask("CreateContainer", asked)
            await node.ask("StartContainer", container)
            command = ["sh", "-c", 'for word; do echo "$word"; done', "sh", "---", *words]
            execute = api.ExecSyncRequest(container_id=container.container_id, cmd=command)
            assert (await node.ask("ExecSync", execute)).stdout.decode().splitlines() == ["---", *words]
            execute = api.ExecSyncRequest(container_id=container.container_id, cmd=["busybox", "env"])
            told = (await node.ask("ExecSync", execute)).stdout.decode().splitlines()
            assert {f"{key}={value}" for key, value in odd.items()} <= {*told}
            execute = api.ExecSyncRequest(container_id=container.container_id, cmd=["--privileged", "sh"])
            assert (await node.ask("ExecSync", execute)).exit_code != 0
            log = tmp_path / "logs/words/2.log"
            while len(lines := log.read_text().splitlines()) < len(words):
                await trio.sleep(0.02)
            assert [line.split(" ", 3)[3] for line in lines] == words
            equals = container_config("true", "equals", envs=[api.KeyValue(key="a=b")])
            for config in (equals, container_config("a\0b", "nul"), container_config("x" * 200_000, "long")):
                asked = api.CreateContainerRequest(pod_sandbox_id=uuid, config=config)
                assert await outcome(node, "CreateContainer", asked) == Code.INVALID_ARGUMENT
            broken = sandbox_config(tmp_path, hostname="a\0b", metadata=api.PodSandboxMetadata(name="other"))
            assert (
                await outcome(node, "RunPodSandbox", api.RunPodSandboxRequest(config=broken)) == Code.INVALID_ARGUMENT
            )
            listed = (await node.ask("ListContainers", api.ListContainersRequest())).containers
            assert [one.id for one in listed] == [container.container_id]
            [left] = (await node.ask("ListPodSandbox", api.ListPodSandboxRequest())).items
            assert left.metadata == POD
            await node.ask("RemovePodSandbox", sandbox)
