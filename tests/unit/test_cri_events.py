"""minit.cri.podwatch: clients that take no events, too many of them, and those that leave."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code
from minit.cri.node import Sandbox
from minit.cri.podwatch import MOST_CLIENTS, MOST_WAITING, EventCalls


def sandbox() -> Sandbox:
    """Return a sandbox without containers."""
    record: Any = SimpleNamespace(read=api.RunPodSandboxRequest, made_ns=1, path=Path("/"))
    return Sandbox(record, "2d381b2a")


@pytest.mark.trio
async def test_a_client_that_takes_nothing() -> None:
    """It gets what there was room for, and an error; others get all."""
    events = EventCalls()
    slow_ones: list[str] = []
    all_ones: list[str] = []

    async def read(found: list[str], enough: int, go: trio.Event) -> None:
        async with aclosing(events.get(api.Nothing())) as stream:
            async for event in stream:
                found.append(event.container_id)
                if len(found) == enough:
                    return
                await go.wait()

    released, never = trio.Event(), trio.Event()
    never.set()
    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, slow_ones, -1, released)
            nursery.start_soon(read, all_ones, MOST_WAITING + 9, never)
            for number in range(MOST_WAITING + 9):
                await trio.testing.wait_all_tasks_blocked()
                events.note(sandbox(), str(number), api.CONTAINER_CREATED_EVENT)
            released.set()
    [error] = caught.value.exceptions
    assert isinstance(error, CallError) and error.code == Code.RESOURCE_EXHAUSTED
    assert slow_ones == [str(number) for number in range(MOST_WAITING + 1)]
    assert all_ones == [str(number) for number in range(MOST_WAITING + 9)]


@pytest.mark.trio
async def test_too_many_clients() -> None:
    """One more is refused until one has left."""
    events = EventCalls()

    async def read() -> None:
        async with aclosing(events.get(api.Nothing())) as stream:
            await anext(stream)

    async with trio.open_nursery() as nursery:
        for _ in range(MOST_CLIENTS):
            nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(CallError, match="clients for events already"):
            await read()
        events.note(sandbox(), "one", api.CONTAINER_CREATED_EVENT)
    with trio.move_on_after(0) as scope:
        await read()
    assert scope.cancelled_caught
