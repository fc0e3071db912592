"""Changes of pods, noticed by inotify(7) and by the pidfd of PID 1, and told to clients that wait for events."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

import trio

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code
from minit.cri.node import Node, Sandbox
from minit.cri.statuses import container_status, sandbox_status
from minit.linux import syscalls
from minit.podfiles import paths

# A file of events that is full makes place for a new one.
_CHANGES = syscalls.IN_MODIFY | syscalls.IN_CREATE
_EVENTS = os.path.basename(paths.STAGE1_EVENTS).encode()
_ALL = -1  # the watch of a change for which there was no room
# The lock of a pod is given up, and its last files are written, shortly after its PID 1 has ended.
_PAUSE_SECONDS = 0.05
_MOST_PAUSES = 200
_WITHOUT_EVENTS_SECONDS = 1.0

MOST_CLIENTS = 8
MOST_WAITING = 256
"""Events that a client has not taken yet."""


class PodWatch:
    """Tasks of a nursery that read the state of sandboxes anew whenever something happens to their pods."""

    def __init__(self, nursery: trio.Nursery, node: Node) -> None:
        self._nursery = nursery
        self._node = node
        self._scopes: dict[str, trio.CancelScope] = {}
        self._changes: int | None = None
        """Of all pods: root may have few of these, and closing one takes the kernel 10 ms."""
        self._watched: dict[int, Sandbox] = {}

    def add(self, sandbox: Sandbox) -> None:
        """Follow a sandbox as long as the pod runs."""
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
            # The launcher writes the pid when PID 1 has reported a process to enter.
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
            watch = syscalls.inotify_add_watch(self._open_changes(), str(directory), _CHANGES)
        except OSError:
            # The pod is gone, as the process will say, or other programs have all watches that root may have.
            while True:
                self._look(sandbox)
                await trio.sleep(_WITHOUT_EVENTS_SECONDS)
        self._watched[watch] = sandbox
        try:
            self._look(sandbox)
            await trio.sleep_forever()
        finally:
            del self._watched[watch]
            if self._changes is not None:
                with suppress(OSError):  # it went with the directory
                    syscalls.inotify_rm_watch(self._changes, watch)

    def _open_changes(self) -> int:
        if self._changes is None:
            self._changes = syscalls.inotify_init()
            self._nursery.start_soon(self._read_changes, self._changes)
        return self._changes

    async def _read_changes(self, changes: int) -> None:
        try:
            while True:
                await trio.lowlevel.wait_readable(changes)
                told = {watch for watch, name in syscalls.read_inotify(changes) if watch == _ALL or name == _EVENTS}
                for watch, sandbox in [*self._watched.items()]:
                    if watch in told or _ALL in told:
                        self._look(sandbox)
        finally:
            self._changes = None
            trio.lowlevel.notify_closing(changes)
            os.close(changes)

    async def _follow_end(self, sandbox: Sandbox) -> None:
        for _ in range(_MOST_PAUSES):
            self._look(sandbox)
            if not sandbox.is_ready:
                return
            await trio.sleep(_PAUSE_SECONDS)

    def _look(self, sandbox: Sandbox) -> None:
        """Read the state anew; after a failure, for want of descriptors say, the state stays as before."""
        with suppress(OSError):
            self._node.follow(sandbox)


class EventCalls:
    """GetContainerEvents."""

    def __init__(self) -> None:
        self._clients: set[trio.MemorySendChannel[api.ContainerEvent]] = set()

    def note(self, sandbox: Sandbox, container_id: str, kind: api.ContainerEventType) -> None:
        """Tell all clients of an event, with the present statuses; a client too far behind is given up."""
        if not self._clients:
            return
        event = api.ContainerEvent(
            container_id=container_id,
            container_event_type=kind,
            created_at=time.time_ns(),
            pod_sandbox_status=sandbox_status(sandbox),
            containers_statuses=[container_status(one) for one in sandbox.containers.values()],
        )
        for client in [*self._clients]:
            try:
                client.send_nowait(event)
            except trio.WouldBlock:
                self._clients.remove(client)
                client.close()

    async def get(self, _: api.Nothing) -> AsyncGenerator[api.ContainerEvent, None]:
        """Yield events; CallError for a client that does not take them, or if there are too many clients."""
        if len(self._clients) >= MOST_CLIENTS:
            raise CallError(Code.RESOURCE_EXHAUSTED, f"there are {MOST_CLIENTS} clients for events already")
        send, receive = trio.open_memory_channel[api.ContainerEvent](MOST_WAITING)
        self._clients.add(send)
        try:
            async for event in receive:
                yield event
        finally:
            self._clients.discard(send)
        raise CallError(Code.RESOURCE_EXHAUSTED, f"{MOST_WAITING} events were not taken: ask for all there is")
