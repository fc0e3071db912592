"""minit.reaper.reaper: deaths in batches, with the statuses of those that somebody asks about."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest

from minit.reaper import reaper
from minit.reaper.exit_status import from_wait_status
from minit.reaper.reaper import reap, rescue_ends

CODES = (3, 0, 7, 255, 1)
# Of two of them, about.
ALLOCATIONS = 30


def among_the_dead(act: Callable[[list[int]], object]) -> object:
    """Return what `act` does, as JSON has it, in a process whose only children are dead ones with these codes."""
    reader, writer = os.pipe()
    if (process := os.fork()) == 0:
        try:
            pids = [os.fork() or os._exit(code) for code in CODES]
            for pid in pids:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            os.write(writer, json.dumps(act(pids)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(process, 0)
    with open(reader) as said:
        return json.load(said)


def take(known: set[int]) -> tuple[list[tuple[int, int]], int]:
    """Return pids and exit codes of a batch, and the count of all."""
    dead: list[tuple[int, int]] = []
    count = reap(known, dead)
    return [(pid, from_wait_status(status).number()) for pid, status in dead], count


def numbers(dead: list[tuple[int, int]]) -> list[int]:
    """Return the exit codes of a batch."""
    return [number for _, number in dead]


def test_all_are_reaped_and_those_known_have_a_status() -> None:
    """Others are counted and nothing else; whose status was returned is known no longer."""

    def act(pids: list[int]) -> object:
        known = {pids[0], pids[3], os.getpid()}
        dead, count = take(known)
        return [pid == pids[at] for (pid, _), at in zip(dead, (0, 3))], numbers(dead), count, known == {os.getpid()}

    assert among_the_dead(act) == [[True, True], [3, 255], 5, True]


def test_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is in the next one; a batch that is not full was the last."""
    monkeypatch.setattr(reaper, "_ends", bytearray(4 + 3 * 8))

    def act(pids: list[int]) -> object:
        batches = [take({*pids}) for _ in range(3)]
        return [(numbers(dead), count) for dead, count in batches]

    assert among_the_dead(act) == [[[3, 0, 7], 3], [[255, 1], 2], [[], 0]]


def test_a_child_that_lives_is_not_waited_for() -> None:
    """A batch ends where only the living are left."""

    def act(pids: list[int]) -> object:
        if (living := os.fork()) == 0:
            signal.alarm(60)  # should the other fail
            signal.pause()
        _, count = take({living})
        os.kill(living, signal.SIGKILL)
        os.waitid(os.P_PID, living, os.WEXITED | os.WNOWAIT)
        return count, numbers(take({living})[0])

    assert among_the_dead(act) == [5, [128 + signal.SIGKILL]]


def test_an_allocation_that_fails() -> None:
    """Whichever fails, the next batch has the rest, and each status is there once."""
    interpreter = pytest.importorskip("_testcapi", reason="needs an interpreter with its tests")
    failed = 0
    for at in range(ALLOCATIONS):

        def act(pids: list[int], at: int = at) -> object:
            dead: list[tuple[int, int]] = []
            has_failed = False
            interpreter.set_nomemory(at, at + 1)
            try:
                reap({*pids}, dead)
            except MemoryError:
                has_failed = True
            finally:
                interpreter.remove_mem_hooks()
            reap({*pids}, dead)
            with pytest.raises(ChildProcessError):
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
            return [from_wait_status(status).number() for _, status in dead], has_failed

        outcome = among_the_dead(act)
        assert outcome in ([[*CODES], True], [[*CODES], False]), at
        failed += outcome == [[*CODES], True]
    assert failed > ALLOCATIONS // 2


def test_what_a_failed_batch_took() -> None:
    """Another program of PID 1 gets each end once, with those of orphans."""

    class Full(list[tuple[int, int]]):
        def append(self, end: tuple[int, int]) -> None:
            super().append(end)
            if len(self) == 2:
                raise MemoryError

    def act(pids: list[int]) -> object:
        dead = Full()
        with pytest.raises(MemoryError):
            reap({*pids[1:]}, dead)
        first = len(dead)
        rescue_ends(dead)
        return first, numbers([(pid, from_wait_status(status).number()) for pid, status in dead])

    assert among_the_dead(act) == [2, [0, 7, 3, 255, 1]]
