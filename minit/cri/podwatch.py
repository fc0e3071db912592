"""Noticing what becomes of pods: their events by inotify(7), and the end of PID 1 by a pidfd."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import trio

from minit import paths, syscalls
from minit.cri.node import Node, Sandbox

_IN_MODIFY = 0x2
_IN_CREATE = 0x100
_IN_MOVED_TO = 0x80
_EVENTS_BYTES = 1 << 16
# The lock of a pod is given up, and its last files are written, shortly after its PID 1 has ended.
_PAUSE_SECONDS = 0.05
_MOST_PAUSES = 200
_WITHOUT_EVENTS_SECONDS = 1.0


class PodWatch:
    """Tasks of a nursery that read the state of sandboxes anew whenever something happens to their pods."""

    def __init__(self, nursery: trio.Nursery, node: Node) -> None:
        self._nursery = nursery
        self._node = node
        self._scopes: dict[str, trio.CancelScope] = {}

    def add(self, sandbox: Sandbox) -> None:
        """Follow a sandbox as long as its pod runs."""
        if sandbox.is_ready:
            scope = self._scopes[sandbox.uuid] = trio.CancelScope()
            self._nursery.start_soon(self._follow, sandbox, scope)

    def drop(self, sandbox: Sandbox) -> None:
        """Follow a sandbox no longer."""
        scope = self._scopes.pop(sandbox.uuid, None)
        if scope is not None:
            scope.cancel()

    async def _follow(self, sandbox: Sandbox, scope: trio.CancelScope) -> None:
        with scope:
            # The launcher writes the pid down when PID 1 has told it that there is something to enter.
            while sandbox.is_ready and sandbox.pid is None:
                await trio.sleep(_PAUSE_SECONDS)
                self._look(sandbox)
            if sandbox.pid is not None:
                with suppress(ProcessLookupError):
                    await self._follow_process(sandbox, os.pidfd_open(sandbox.pid))
            await self._follow_end(sandbox)

    async def _follow_process(self, sandbox: Sandbox, process: int) -> None:
        """Follow a sandbox until its PID 1 has ended, whose pidfd is closed then."""
        directory = self._node.data / "pods/run" / sandbox.uuid / paths.POD_STAGE1_ROOTFS / paths.STAGE1_EVENTS[1:]
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow_events, sandbox, directory.parent)
                await trio.lowlevel.wait_readable(process)
                nursery.cancel_scope.cancel()
        finally:
            trio.lowlevel.notify_closing(process)
            os.close(process)

    async def _follow_events(self, sandbox: Sandbox, directory: Path) -> None:
        try:
            changes = syscalls.inotify_watch(str(directory), _IN_MODIFY | _IN_CREATE | _IN_MOVED_TO)
        except OSError:
            # The pod is gone, as its process will say, or others have all watches that root may have.
            while True:
                self._look(sandbox)
                await trio.sleep(_WITHOUT_EVENTS_SECONDS)
        try:
            while True:
                self._look(sandbox)
                await trio.lowlevel.wait_readable(changes)
                with suppress(BlockingIOError):
                    os.read(changes, _EVENTS_BYTES)
        finally:
            trio.lowlevel.notify_closing(changes)
            os.close(changes)

    async def _follow_end(self, sandbox: Sandbox) -> None:
        for _ in range(_MOST_PAUSES):
            self._look(sandbox)
            if not sandbox.is_ready:
                return
            await trio.sleep(_PAUSE_SECONDS)

    def _look(self, sandbox: Sandbox) -> None:
        """Read the state anew; where that fails, for want of descriptors say, it stays as it was."""
        with suppress(OSError):
            self._node.follow(sandbox)
