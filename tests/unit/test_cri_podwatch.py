"""minit.cri.podwatch: pods are followed where descriptors or watches are missing."""

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
