"""Turns at the processors: who wants to work waits for one, and who goes on with something before who begins it."""

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
        self._free = most
        self._going_on = trio.lowlevel.ParkingLot()
        self._beginning = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def taken(self, *, begins: bool = False) -> AsyncIterator[None]:
        """
        Have a turn for the length of a with block, or for its first seconds.

        Those wait in the order in which they came, but who `begins` something longer after all others: of many such
        things at once the first are done early, and not all of them at the end.
        """
        await trio.lowlevel.checkpoint()
        if self._free:
            self._free -= 1
        else:
            await (self._beginning if begins else self._going_on).park()
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
            if not self._going_on.unpark() and not self._beginning.unpark():
                self._free += 1
