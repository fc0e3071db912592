"""The call that is answered with all that becomes of sandboxes and containers from then on."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

import trio

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code
from minit.cri.node import Sandbox
from minit.cri.statuses import container_status, sandbox_status

MOST_CLIENTS = 8
MOST_WAITING = 256
"""Events that a client has not taken yet."""


class EventCalls:
    """GetContainerEvents."""

    def __init__(self) -> None:
        self._clients: set[trio.MemorySendChannel[api.ContainerEvent]] = set()

    def note(self, sandbox: Sandbox, container_id: str, kind: api.ContainerEventType) -> None:
        """Tell all clients of an event, with the statuses of the moment; one that is too far behind is given up."""
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
