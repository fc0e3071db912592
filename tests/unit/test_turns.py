"""Turns at the processors: their number, their order, their length, and who gives one back."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minit.cri.hands import Turns


class Workers:
    """Tasks that want a turn, each until it is told to end its work."""

    def __init__(self, nursery: trio.Nursery, turns: Turns) -> None:
        self._nursery = nursery
        self._turns = turns
        self.begun: list[int] = []
        self.ends: list[trio.Event] = []
        self.scopes: list[trio.CancelScope] = []

    async def add(self, *, begins: bool = False) -> None:
        """Add a worker, and return when it has its turn or waits for it."""
        self._nursery.start_soon(self._work, len(self.ends), begins)
        self.ends.append(trio.Event())
        self.scopes.append(trio.CancelScope())
        await wait_all_tasks_blocked()

    async def _work(self, number: int, begins: bool) -> None:
        with self.scopes[number]:
            async with self._turns.taken(begins=begins):
                self.begun.append(number)
                await self.ends[number].wait()


@pytest.mark.trio
async def test_order(mock_clock: MockClock) -> None:
    """So many work at a time, and the others in the order in which they came."""
    async with trio.open_nursery() as nursery:
        workers = Workers(nursery, Turns(nursery, 2))
        for _ in range(5):
            await workers.add()
        assert workers.begun == [0, 1]
        for ended, begun in ((1, [0, 1, 2]), (0, [0, 1, 2, 3]), (2, [0, 1, 2, 3, 4])):
            workers.ends[ended].set()
            await wait_all_tasks_blocked()
            assert workers.begun == begun
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_what_was_begun_goes_on_first(mock_clock: MockClock) -> None:
    """Who begins something waits for all that go on with something, and else for those who came before."""
    async with trio.open_nursery() as nursery:
        workers = Workers(nursery, Turns(nursery, 1))
        for begins in (True, True, True, False, False):
            await workers.add(begins=begins)
        for number, begun in ((0, 3), (3, 4), (4, 1), (1, 2)):
            workers.ends[number].set()
            await wait_all_tasks_blocked()
            assert workers.begun[-1] == begun
        nursery.cancel_scope.cancel()


@pytest.mark.trio
@pytest.mark.parametrize("given_up", [0, 1], ids=["working", "waiting"])
async def test_given_up(mock_clock: MockClock, given_up: int) -> None:
    """Whoever gives up makes room for the next one, whether it had its turn or waited for it."""
    async with trio.open_nursery() as nursery:
        workers = Workers(nursery, Turns(nursery, 1))
        for _ in range(3):
            await workers.add()
        workers.scopes[given_up].cancel()
        await wait_all_tasks_blocked()
        workers.ends[1 - given_up].set()
        await wait_all_tasks_blocked()
        assert workers.begun == [*{0, 1 - given_up}, 2]
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_long_work(mock_clock: MockClock) -> None:
    """Work of more than some seconds holds up nobody, and its end gives no second turn back."""
    async with trio.open_nursery() as nursery:
        workers = Workers(nursery, Turns(nursery, 1))
        for _ in range(3):
            await workers.add()
        mock_clock.jump(4)
        await wait_all_tasks_blocked()
        assert workers.begun == [0, 1]
        workers.ends[0].set()
        await wait_all_tasks_blocked()
        assert workers.begun == [0, 1]
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_end_of_all(mock_clock: MockClock) -> None:
    """Whoever must not be cancelled gets a turn also when all others are."""
    async with trio.open_nursery() as nursery:
        turns = Turns(nursery, 1)
        workers = Workers(nursery, turns)
        await workers.add()
        done = trio.Event()

        async def undo() -> None:
            with trio.CancelScope(shield=True):
                async with turns.taken():
                    done.set()

        nursery.start_soon(undo)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert done.is_set()
