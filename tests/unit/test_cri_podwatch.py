"""minit.cri.podwatch: pods are followed where descriptors, watches or pids are missing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from minit import syscalls
from minit.cri.podwatch import PodWatch

LOOKS = 5


def missing(*_: object) -> int:
    """Fail as inotify_init1(2) does when a user has all instances there may be."""
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.trio
async def test_a_pod_that_cannot_be_watched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """It is looked at again and again, also after looks that fail."""
    monkeypatch.setattr(syscalls, "inotify_watch", missing)
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
    monkeypatch.setattr(syscalls, "inotify_watch", missing)
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
