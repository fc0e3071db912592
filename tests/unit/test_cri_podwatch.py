"""minit.cri.podwatch: pods are followed by their events, and where descriptors, watches or pids are missing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from minit.cri.podwatch import PodWatch
from minit.linux import syscalls
from tests.support.waiting import TIMEOUT_SECONDS

LOOKS = 5


def missing(*_: object) -> int:
    """Fail as inotify_init1(2) does when a user has all instances there may be."""
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.trio
async def test_a_pod_that_cannot_be_watched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """It is looked at again and again, also after looks that fail."""
    monkeypatch.setattr(syscalls, "inotify_init", missing)
    looks: list[object] = []

    def follow(sandbox: object) -> None:
        looks.append(sandbox)
        if len(looks) == LOOKS:
            nursery.cancel_scope.cancel()
        missing()

    node: Any = SimpleNamespace(data=tmp_path, follow=follow)
    sandbox: Any = SimpleNamespace(pid=os.getpid(), uuid="2d381b2a", is_ready=True)
    with trio.fail_after(2 * LOOKS):
        async with trio.open_nursery() as nursery:
            PodWatch(nursery, node).add(sandbox)
    assert looks == [sandbox] * LOOKS


@pytest.mark.trio
async def test_a_pod_without_a_pid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """It is ready before its launcher writes the pid down, and followed from then on."""
    monkeypatch.setattr(syscalls, "inotify_init", missing)
    pids: list[int | None] = []

    def follow(sandbox: Any) -> None:
        pids.append(sandbox.pid)
        if len(pids) == LOOKS:
            sandbox.pid = os.getpid()
        if len(pids) == 2 * LOOKS:
            nursery.cancel_scope.cancel()

    node: Any = SimpleNamespace(data=tmp_path, follow=follow)
    sandbox: Any = SimpleNamespace(pid=None, uuid="2d381b2a", is_ready=True)
    with trio.fail_after(2 * LOOKS):
        async with trio.open_nursery() as nursery:
            PodWatch(nursery, node).add(sandbox)
    assert pids == [None] * LOOKS + [os.getpid()] * LOOKS


@pytest.mark.trio
async def test_events(tmp_path: Path) -> None:
    """A pod is looked at when it is added and when it has new events, not when its PID 1 or another pod writes."""
    send, receive = trio.open_memory_channel[str](LOOKS)
    node: Any = SimpleNamespace(data=tmp_path, follow=lambda sandbox: send.send_nowait(sandbox.uuid))
    sandboxes: list[Any] = [SimpleNamespace(pid=os.getpid(), uuid=uuid, is_ready=True) for uuid in ("a", "b")]
    places = {one.uuid: tmp_path / "pods/run" / one.uuid / "stage1/rootfs/rkt/minit" for one in sandboxes}
    with trio.fail_after(TIMEOUT_SECONDS):
        async with trio.open_nursery() as nursery:
            watch = PodWatch(nursery, node)
            for sandbox in sandboxes:
                places[sandbox.uuid].mkdir(parents=True)
                for name in ("supervisor.log", "events.log"):
                    (places[sandbox.uuid] / name).touch()
                watch.add(sandbox)
                assert await receive.receive() == sandbox.uuid
            for pod, name in (("a", "supervisor.log"), ("b", "events.log")):
                (places[pod] / name).write_text("{}\n")
            assert await receive.receive() == "b"
            watch.drop(sandboxes[0])
            await trio.testing.wait_all_tasks_blocked()
            for place in places.values():
                (place / "events.log").open("a").write("{}\n")
            assert await receive.receive() == "b"
            nursery.cancel_scope.cancel()
