"""minit cri: the processes that carry out its commands, one after the other in each."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from minit.cri.api import cri_pb2 as api
from tests.support.commands import Stage0
from tests.support.crinode import CallFailed, CriNode, Daemon, container_config, own_daemon, sandbox_config

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

PATIENCE_SECONDS = 110
IDLE = "exec sleep 1000"
ONE_PROCESSOR = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
"""In front of a daemon, which has one hand then and one command at a time."""


async def until(condition: Callable[[], object]) -> None:
    """Return when a condition holds."""
    while not condition():
        await trio.sleep(0.01)


def a_sandbox(root: Path, name: str) -> api.RunPodSandboxRequest:
    """Return the request for a sandbox of this name."""
    metadata = api.PodSandboxMetadata(name=name, uid=name)
    return api.RunPodSandboxRequest(config=sandbox_config(root, metadata=metadata))


async def sandbox_and_hand(daemon: Daemon, node: CriNode, root: Path) -> tuple[api.SandboxId, int]:
    """Make a sandbox with a container, and return it with the hand that made that, when no other one is left."""
    sandbox = await node.run(root)
    await node.create(sandbox[0], container_config(IDLE, "first"))
    await until(lambda: len(daemon.hands()) == 1)
    return sandbox[0], daemon.hands().pop()


@pytest.mark.trio
async def test_commands_of_one_process(minit: Stage0, tmp_path: Path) -> None:
    """One process makes, starts, stops and removes containers, and goes on after a command that failed."""
    with own_daemon(minit, tmp_path / "cri.sock") as daemon, trio.fail_after(PATIENCE_SECONDS):
        daemon.start()
        async with daemon.node() as node:
            sandbox, hand = await sandbox_and_hand(daemon, node, tmp_path)
            nobody = api.LinuxContainerSecurityContext(run_as_username="nobody-here")
            missing = container_config(IDLE, "missing", linux=api.LinuxContainerConfig(security_context=nobody))
            with pytest.raises(CallFailed, match="user not found"):
                await node.create(sandbox, missing)
            container = await node.create(sandbox, container_config(IDLE))
            await node.ask("StartContainer", container)
            await node.ask("StopContainer", api.StopContainerRequest(container_id=container.container_id))
            await node.ask("RemoveContainer", container)
            assert daemon.hands() == {hand}


@pytest.mark.trio
async def test_a_hand_that_was_killed(minit: Stage0, tmp_path: Path) -> None:
    """The call whose command it carried out fails, with all undone; without any call nobody notices."""
    with own_daemon(minit, tmp_path / "cri.sock") as daemon, trio.fail_after(PATIENCE_SECONDS):
        daemon.start()
        async with daemon.node() as node:
            sandbox, hand = await sandbox_and_hand(daemon, node, tmp_path)
            os.kill(hand, signal.SIGSTOP)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_fail_to_create, node, sandbox)
                await until(lambda: len(list(minit.data.glob("cri/*/*/request"))) == 2)
                os.kill(hand, signal.SIGKILL)
            assert len(list(minit.data.glob("cri/*/*/request"))) == 1
            container = await node.create(sandbox, container_config(IDLE))
            [hand] = daemon.hands()
            process = os.pidfd_open(hand)
            os.kill(hand, signal.SIGKILL)
            await trio.lowlevel.wait_readable(process)
            os.close(process)
            await node.ask("StartContainer", container)


async def _fail_to_create(node: CriNode, sandbox: api.SandboxId) -> None:
    with pytest.raises(CallFailed, match="was killed"):
        await node.create(sandbox, container_config(IDLE))


@pytest.mark.trio
async def test_long_command_lines(minit: Stage0, tmp_path: Path) -> None:
    """A container may have more words than a hand takes."""
    with own_daemon(minit, tmp_path / "cri.sock") as daemon, trio.fail_after(PATIENCE_SECONDS):
        daemon.start()
        async with daemon.node() as node:
            words = ["x" * 1000] * 100
            script = f"echo $# >/tmp/words; {IDLE}"
            _, [container] = await node.run(tmp_path, container_config(script, args=[script, "sh", *words]))
            assert (
                await node.execute(container, "until [ -s /tmp/words ]; do sleep 0.02; done; cat /tmp/words")
                == b"100\n"
            )


@pytest.mark.trio
@pytest.mark.parametrize("kill", [False, True], ids=["ended", "killed"])
async def test_hands_of_a_daemon_that_has_ended(minit: Stage0, tmp_path: Path, *, kill: bool) -> None:
    """They end with it, and the pod goes on."""
    with own_daemon(minit, tmp_path / "cri.sock") as daemon, trio.fail_after(PATIENCE_SECONDS):
        daemon.start()
        async with daemon.node() as node:
            _, hand = await sandbox_and_hand(daemon, node, tmp_path)
        process = os.pidfd_open(hand)
        daemon.end(kill=kill)
        await trio.lowlevel.wait_readable(process)
        os.close(process)
        daemon.start()
        async with daemon.node() as node:
            [sandbox] = (await node.ask("ListPodSandbox", api.ListPodSandboxRequest())).items
            assert sandbox.state == api.SANDBOX_READY


@pytest.mark.trio
async def test_many_at_once(minit: Stage0, tmp_path: Path) -> None:
    """Calls that come together are carried out one after the other, not each by a process of its own."""
    most, made = 0, []
    with own_daemon(minit, tmp_path / "cri.sock") as daemon, trio.fail_after(PATIENCE_SECONDS):
        daemon.start(under=ONE_PROCESSOR)
        async with daemon.node() as node, trio.open_nursery() as nursery:
            sandboxes = [await node.ask("RunPodSandbox", a_sandbox(tmp_path, f"pod-{number}")) for number in range(6)]

            async def make(sandbox: api.SandboxId) -> None:
                made.append(await node.create(sandbox, container_config(IDLE)))

            for sandbox in sandboxes:
                nursery.start_soon(make, sandbox)
            while len(made) < len(sandboxes):
                most = max(most, len(daemon.busy()))
                await trio.sleep(0.001)
    assert 0 < most < len(sandboxes) - 1


@pytest.mark.trio
async def test_pods_at_once(minit: Stage0, tmp_path: Path) -> None:
    """Of pods that are asked for together the first one runs before the last one has its sandbox."""
    steps: list[str] = []
    with own_daemon(minit, tmp_path / "cri.sock") as daemon, trio.fail_after(PATIENCE_SECONDS):
        daemon.start(under=ONE_PROCESSOR)
        async with daemon.node() as node, trio.open_nursery() as nursery:

            async def make(name: str) -> None:
                sandbox = await node.ask("RunPodSandbox", a_sandbox(tmp_path, name))
                steps.append("sandbox")
                await node.ask("StartContainer", await node.create(sandbox, container_config(IDLE)))
                steps.append("started")

            for number in range(6):
                nursery.start_soon(make, f"pod-{number}")
    assert steps.index("started") < len(steps) - 1 - steps[::-1].index("sandbox")


@pytest.mark.trio
async def test_a_hand_that_does_not_go_on(minit: Stage0, tmp_path: Path) -> None:
    """It holds up other calls for a while, and not until its command ends."""
    with own_daemon(minit, tmp_path / "cri.sock") as daemon, trio.fail_after(PATIENCE_SECONDS):
        daemon.start(under=ONE_PROCESSOR)
        async with daemon.node() as node:
            sandbox, hand = await sandbox_and_hand(daemon, node, tmp_path)
            os.kill(hand, signal.SIGSTOP)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.create, sandbox, container_config(IDLE))
                await until(lambda: len(list(minit.data.glob("cri/*/*/request"))) == 2)
                other = await node.ask("RunPodSandbox", a_sandbox(tmp_path, "other"))
                await node.ask("RemovePodSandbox", other)
                os.kill(hand, signal.SIGCONT)
            assert len((await node.ask("ListContainers", api.ListContainersRequest())).containers) == 2


@pytest.mark.trio
async def test_a_call_that_is_given_up_early(minit: Stage0, tmp_path: Path) -> None:
    """A call that is given up while it waits for a hand leaves a whole sandbox or nothing, and can be made again."""
    with own_daemon(minit, tmp_path / "cri.sock") as daemon, trio.fail_after(PATIENCE_SECONDS):
        daemon.start(under=ONE_PROCESSOR)
        async with daemon.node() as node:
            sandbox, hand = await sandbox_and_hand(daemon, node, tmp_path)
            os.kill(hand, signal.SIGSTOP)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.create, sandbox, container_config(IDLE))
                await until(lambda: len(list(minit.data.glob("cri/*/*/request"))) == 2)
                async with node.giving_up("RunPodSandbox", a_sandbox(tmp_path, "other")):
                    await until(lambda: len(list(minit.data.glob("cri/*/request"))) == 2)
                records = minit.data / "cri"
                await until(lambda: len([*records.glob("*/request")]) == 1 or len([*records.glob("*/made")]) == 2)
                os.kill(hand, signal.SIGCONT)
            again = await node.ask("RunPodSandbox", a_sandbox(tmp_path, "other"))
            listed = (await node.ask("ListPodSandbox", api.ListPodSandboxRequest())).items
            assert {one.id for one in listed} == {sandbox.pod_sandbox_id, again.pod_sandbox_id}
            assert len(list(minit.data.glob("pods/run/*"))) == 2
