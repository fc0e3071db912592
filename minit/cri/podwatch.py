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
        if sandbox.pid is None:
            return
        try:
            process = os.pidfd_open(sandbox.pid)
        except ProcessLookupError:
            self._nursery.start_soon(self._follow_end, sandbox)
            return
        events = self._node.data / "pods/run" / sandbox.uuid / paths.POD_STAGE1_ROOTFS / paths.STAGE1_EVENTS[1:]
        scope = self._scopes[sandbox.uuid] = trio.CancelScope()
        self._nursery.start_soon(self._follow, sandbox, process, events.parent, scope)

    def drop(self, sandbox: Sandbox) -> None:
        """Follow a sandbox no longer."""
        scope = self._scopes.pop(sandbox.uuid, None)
        if scope is not None:
            scope.cancel()

    async def _follow(self, sandbox: Sandbox, process: int, directory: Path, scope: trio.CancelScope) -> None:
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._follow_events, sandbox, directory)
                    await trio.lowlevel.wait_readable(process)
                    nursery.cancel_scope.cancel()
                await self._follow_end(sandbox)
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
