"""minit cri: the logs of containers, where the kubelet has them, and as it rotates them."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from minit.cri.api import cri_pb2 as api
from tests.support.crinode import CallFailed, CriNode, Daemon, container_config, sandbox_config

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

PATIENCE_SECONDS = 100
RECORD = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z stdout ([FP]) ([^\n]*)\n")
COUNTER = "n=0; until [ -e /end ]; do echo $n; n=$((n+1)); done"
STEPS = "for n in one two three; do until [ -e /$n ]; do sleep 0.02; done; echo $n; : >/$n-; done; exec sleep 1000"


def text(*paths: Path) -> bytes:
    """Return what a container wrote to files that have nothing but records."""
    data = b"".join(path.read_bytes() for path in paths)
    assert RECORD.sub(b"", data) == b""
    return b"".join(text + (b"\n" if tag == b"F" else b"") for tag, text in RECORD.findall(data))


@asynccontextmanager
async def sandbox_of(node: CriNode, root: Path) -> AsyncIterator[api.SandboxId]:
    """Yield a sandbox, which is removed at the end."""
    sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(root)))
    yield sandbox
    await node.ask("RemovePodSandbox", sandbox)


async def created(node: CriNode, sandbox: api.SandboxId, script: str, **fields: object) -> api.ContainerId:
    """Put a container into a sandbox."""
    config = container_config(script, **fields)  # type: ignore[arg-type]
    request = api.CreateContainerRequest(pod_sandbox_id=sandbox.pod_sandbox_id, config=config)
    container = await node.ask("CreateContainer", request)
    assert isinstance(container, api.ContainerId)
    return container


async def has(path: Path, part: bytes) -> None:
    """Return when a log has something."""
    while not path.exists() or part not in path.read_bytes():
        await trio.sleep(0.02)


async def step(node: CriNode, container: api.ContainerId, name: str) -> None:
    """Have a container of STEPS write a line."""
    script = f": >/{name}; until [ -e /{name}- ]; do sleep 0.02; done"
    request = api.ExecSyncRequest(container_id=container.container_id, cmd=["sh", "-c", script])
    assert (await node.ask("ExecSync", request)).exit_code == 0


async def refusal(node: CriNode, name: str, container: api.ContainerId) -> str:
    """Return the message of a call that fails."""
    with pytest.raises(CallFailed) as caught:
        await node.ask(name, container)
    return str(caught.value)


@pytest.mark.trio
@pytest.mark.parametrize("stdin", [False, True])
async def test_a_log_is_rotated_while_it_is_written(daemon: Daemon, tmp_path: Path, stdin: bool) -> None:
    """Nothing is missing in the files or there twice, and the renamed one is complete when the call returns."""
    log = tmp_path / "logs/pods/main/2.log"
    olds = [log.with_name(f"2.log.20261123-00000{number}") for number in range(3)]
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node, sandbox_of(node, tmp_path) as sandbox:
            container = await created(node, sandbox, COUNTER, log_path="pods/main/2.log", stdin=stdin)
            await node.ask("StartContainer", container)
            assert log.stat().st_mode & 0o777 == 0o640
            sizes = []
            for old in olds:
                await has(log, b"\n")
                log.rename(old)
                await node.ask("ReopenContainerLog", container)
                sizes.append(old.stat().st_size)
                assert log.is_file() and not log.is_symlink()
            end = api.ExecSyncRequest(container_id=container.container_id, cmd=["sh", "-c", ": >/end"])
            assert (await node.ask("ExecSync", end)).exit_code == 0
            show = partial(daemon.minit.call, "logs", "--follow", sandbox.pod_sandbox_id)
            shown = (await trio.to_thread.run_sync(show)).stdout
            assert [old.stat().st_size for old in olds] == sizes
            written = text(*olds, log)
            assert written == b"".join(b"%d\n" % number for number in range(written.count(b"\n")))
            assert shown.encode() == written
            message = await refusal(node, "ReopenContainerLog", container)
            assert "not running" in message or "does not run" in message, message


@pytest.mark.trio
async def test_a_write_is_waited_for(daemon: Daemon, tmp_path: Path) -> None:
    """ReopenContainerLog returns when the sidecar is through with what it may be writing to the renamed file."""
    log = tmp_path / "logs/main/2.log"
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node, sandbox_of(node, tmp_path) as sandbox:
            container = await created(node, sandbox, STEPS)
            await node.ask("StartContainer", container)
            await step(node, container, "one")
            await has(log, b"one")
            places = daemon.minit.data / "pods/run" / sandbox.pod_sandbox_id / "stage1/rootfs/rkt/minit/log"
            with (places / "main-2.lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                old = log.rename(log.with_name("2.log.20261123-000000"))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(node.ask, "ReopenContainerLog", container)
                    await has(log, b"")
                    await step(node, container, "two")
                    assert (nursery.child_tasks and log.stat().st_size, text(old)) == (0, b"one\n")
                    fcntl.flock(lock, fcntl.LOCK_UN)
            await has(log, b"two")
            assert (text(old), text(log)) == (b"one\n", b"two\n")


@pytest.mark.trio
async def test_links_are_not_followed(daemon: Daemon, tmp_path: Path) -> None:
    """Neither a directory nor a log is behind a link, and the log says how much was lost by one."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    log = tmp_path / "logs/main/2.log"
    refused = f"log_path: cannot make {log}: "
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node, sandbox_of(node, tmp_path) as sandbox:
            container = await created(node, sandbox, STEPS)
            log.parent.symlink_to(elsewhere)
            assert (await refusal(node, "StartContainer", container)).startswith(refused)
            log.parent.unlink()
            await node.ask("StartContainer", container)
            await step(node, container, "one")
            await has(log, b"one")
            log.unlink()
            log.symlink_to(elsewhere / "file")
            await step(node, container, "two")
            assert (await refusal(node, "ReopenContainerLog", container)).startswith(refused)
            log.unlink()
            await node.ask("ReopenContainerLog", container)
            await step(node, container, "three")
            await has(log, b"three")
            assert re.fullmatch(rb"minit: \d+ bytes of log were lost\nthree\n", text(log))
    assert [path.name for path in elsewhere.iterdir()] == ["file"]
    assert (elsewhere / "file").read_bytes() == b""


@pytest.mark.trio
async def test_a_directory_that_goes(daemon: Daemon, tmp_path: Path) -> None:
    """A container goes on without the directory of its log, which says what was lost when there is one again."""
    log = tmp_path / "logs/main/2.log"
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node, sandbox_of(node, tmp_path) as sandbox:
            container = await created(node, sandbox, STEPS)
            await node.ask("StartContainer", container)
            await step(node, container, "one")
            await has(log, b"one")
            shutil.rmtree(log.parent)
            await step(node, container, "two")
            await node.ask("ReopenContainerLog", container)
            await step(node, container, "three")
            await has(log, b"three")
            assert re.fullmatch(rb"minit: \d+ bytes of log were lost\nthree\n", text(log))


@pytest.mark.trio
async def test_places_of_logs(daemon: Daemon, tmp_path: Path) -> None:
    """A log is below the directory of its sandbox, and not without one."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node, sandbox_of(node, tmp_path) as sandbox:
            with pytest.raises(CallFailed, match="log_path: expected a path below log_directory"):
                await created(node, sandbox, "true", log_path="../other/0.log")
            container = await created(node, sandbox, "true", log_path="")
            await node.ask("StartContainer", container)
            assert not [*(tmp_path / "logs").iterdir()]
