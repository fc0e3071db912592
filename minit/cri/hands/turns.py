"""Turns at the processors: who wants to work waits until it is his turn, first come, first served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

_SECONDS = 3.0
"""What takes longer waits for something itself, or has so much to do that others must not wait for it."""


class Turns:
    """So many turns at a time; `nursery` has a task for each that is taken."""

    def __init__(self, nursery: trio.Nursery, most: int) -> None:
        self._nursery = nursery
        self._free = trio.Semaphore(most)

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Have a turn for the length of a with block, or for its first seconds."""
        await self._free.acquire()
        scope = trio.CancelScope()
        self._nursery.start_soon(self._give_back, scope)
        try:
            yield
        finally:
            scope.cancel()

    async def _give_back(self, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await trio.sleep(_SECONDS)
        finally:
            self._free.release()
