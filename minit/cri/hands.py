"""
Hands of the daemon: processes of the command that carry out one request after the other to the service of pods.

A hand saves each request the start of a program: `minit/pods/hand.py`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import trio

from minit.cri.grpc.framing import CallError, Code, code_of
from minit.linux.messages import Socket, memory_file, receive_message, send_message, socket_pair
from minit.pods.hand import CODEC, IS_LAST, WORD, HandRequest, read_answer

MOST_IDLE = len(os.sched_getaffinity(0))
"""As many as can work at once: more would take memory, and no time less."""
_TURN_SECONDS = 3.0
"""What takes longer waits for something itself, or has so much to do that others must not wait for it."""
_PATIENCE_SECONDS = 60.0
_LONGEST_SECONDS = 365 * 24 * 3600


class Hands:
    """
    The hands of a daemon, with tasks of `nursery`.

    `program` are the words of the command without any options. The pods are those of `data`.
    """

    def __init__(
        self, nursery: trio.Nursery, program: Sequence[str], data: Path, local_config: str, system_config: str
    ) -> None:
        self._nursery = nursery
        self._program = tuple(program)
        self._data = data
        self._local_config = local_config
        self._system_config = system_config
        self._idle: list[Socket] = []
        self._starting = trio.Lock()
        self._turns = Turns(nursery, MOST_IDLE)

    async def carry_out(
        self, request: Any, *, held: int | None = None, lasts: bool = False, begins: bool = False
    ) -> str:
        """
        Carry out a request to its end and return what it results in; CallError if it fails.

        A request waits for its turn, but for one that `lasts`, which mostly waits for something itself; one that
        `begins` a pod lets all others go first. A call that is cancelled before has done nothing. What has begun goes
        on when the call that wanted it is cancelled: the caller asks again. The hand has the descriptor `held`
        meanwhile.
        """
        async with nullcontext() if lasts else self._turns.taken(begins=begins):
            with trio.CancelScope(shield=True):
                link = await self._send(request, held)
                answer = await _receive(link)
                if answer is None or answer[IS_LAST]:
                    link.close()
                    if answer is not None:
                        # The next request need not wait for the hand's end.
                        self._nursery.start_soon(self._add)
                else:
                    self._keep(link)
        return _result(answer)

    async def carry_out_cancellable(self, request: Any) -> str:
        """Carry out a request as `carry_out` does, by a hand of its own, which is told to end when it is cancelled."""
        link, process = await self._start()
        with link:
            self._ask(link, request, None)
            try:
                return _result(await _receive(link))
            except trio.Cancelled:
                # The hand undoes half-done work, and ends.
                process.terminate()
                with trio.move_on_after(_PATIENCE_SECONDS, shield=True) as scope:
                    await process.wait()
                if scope.cancelled_caught:
                    process.kill()
                raise

    async def _send(self, request: Any, held: int | None) -> Socket:
        """Give a request to a hand that is free, or to a new one."""
        while True:
            async with self._starting:  # one that is being started is better than one more
                link = self._idle.pop() if self._idle else (await self._start())[0]
            try:
                self._ask(link, request, held)
            except OSError:  # it has ended, or was killed
                link.close()
            else:
                return link

    def _ask(self, link: Socket, request: Any, held: int | None) -> None:
        asked = HandRequest(
            data=self._data, local_config=self._local_config, system_config=self._system_config, request=request
        )
        fd = memory_file("request", CODEC.encode(asked))
        try:
            send_message(link, {}, [fd, *([] if held is None else [held])])
        finally:
            os.close(fd)

    async def _start(self) -> tuple[Socket, trio.Process]:
        link, theirs = socket_pair()
        try:
            process = await trio.lowlevel.open_process(
                [*self._program, WORD], stdin=theirs.fileno(), stdout=subprocess.DEVNULL
            )
        except BaseException:
            link.close()
            raise
        finally:
            theirs.close()
        self._nursery.start_soon(process.wait)
        return link, process

    async def _add(self) -> None:
        async with self._starting:
            if len(self._idle) < MOST_IDLE:
                with suppress(OSError):  # the next request tells
                    self._keep((await self._start())[0])

    def _keep(self, link: Socket) -> None:
        """Let a hand wait for the next request, or end the hand if enough hands wait."""
        if len(self._idle) < MOST_IDLE:
            self._idle.append(link)
        else:
            link.close()


async def _receive(link: Socket) -> dict[str, object] | None:
    """Return the answer of a hand, None if it has ended without one."""
    await trio.lowlevel.wait_readable(link)
    return receive_message(link)[0]


def _result(answer: dict[str, object] | None) -> str:
    if answer is None:
        raise CallError(Code.UNKNOWN, "the process that carried this out was killed")
    result, error, kind = read_answer(answer)
    if error is not None:
        raise CallError(code_of(kind), error)
    return result


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
                await trio.sleep(_TURN_SECONDS)
        finally:
            if not self._going_on.unpark() and not self._beginning.unpark():
                self._free += 1


def limited(seconds: int) -> int:
    """Return a time that is not negative, and no more than a year, longer than anybody waits."""
    return min(max(seconds, 0), _LONGEST_SECONDS)
