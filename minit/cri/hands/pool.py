"""Processes of the command that carry out one command line after the other, which saves a program's start for each."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import trio

from minit import jsontext
from minit.cri.hands.protocol import CODE, IS_LAST, WORD, WORDS
from minit.cri.openfiles import with_limit_given_back
from minit.messages import MAXIMUM_MESSAGE_BYTES, Socket, receive_message, send_message, socket_pair
from minit.value import Value

_MOST = len(os.sched_getaffinity(0))
"""As many as can work at once: more would take memory, and no time less."""


class Done(Value):
    """A command that has ended: its exit code, which is negative for the signal that killed it, and what it wrote."""

    code: int
    stdout: bytes
    stderr: bytes


class Hands:
    """The hands of a daemon, with tasks of `nursery`; `program` are the words of the command without any options."""

    def __init__(self, nursery: trio.Nursery, program: Sequence[str]) -> None:
        self._nursery = nursery
        self._program = tuple(program)
        self._idle: list[Socket] = []
        self._count = 0
        self._starting = trio.Lock()

    async def run(self, words: Sequence[str], stdin: bytes, held: int | None) -> Done | None:
        """
        Have a hand carry out a command line, with the descriptor `held` until its end; this is not to be cancelled.

        None if no hand is free, or the command line is too long: then nothing has been done.
        """
        request = {WORDS: list(words)}
        if len(jsontext.dump(request)) > MAXIMUM_MESSAGE_BYTES:
            return None
        link = await self._free_hand()
        if link is None:
            return None
        with ExitStack() as stack:
            streams = [_file(stack, data) for data in (stdin, b"", b"")]
            try:
                send_message(link, request, [*streams, *([] if held is None else [held])])
            except OSError:  # it has ended, or was killed
                self._drop(link)
                return None
            code = await self._outcome(link)
            stdout, stderr = (os.pread(fd, os.fstat(fd).st_size, 0) for fd in streams[1:])
        return Done(code=code, stdout=stdout, stderr=stderr)

    async def _free_hand(self) -> Socket | None:
        async with self._starting:  # one that is being started is better than one more
            if self._idle:
                return self._idle.pop()
            return await self._start() if self._count < _MOST else None

    async def _start(self) -> Socket:
        self._count += 1
        link, theirs = socket_pair()
        try:
            process = await trio.lowlevel.open_process(
                with_limit_given_back([*self._program, WORD]), stdin=theirs.fileno(), stdout=subprocess.DEVNULL
            )
        except BaseException:
            self._drop(link)
            raise
        finally:
            theirs.close()
        self._nursery.start_soon(process.wait)
        return link

    async def _outcome(self, link: Socket) -> int:
        """Return the exit code of a command when it has ended, and let its hand have another one if it may."""
        await trio.lowlevel.wait_readable(link)
        answer, _ = receive_message(link)
        if answer is None:
            self._drop(link)
            return -signal.SIGKILL
        if answer[IS_LAST]:
            self._drop(link)
            # The next command need not wait for it.
            self._nursery.start_soon(self._add)
        else:
            self._idle.append(link)
        code = answer[CODE]
        assert isinstance(code, int)
        return code

    async def _add(self) -> None:
        async with self._starting:
            if self._count < _MOST:
                with suppress(OSError):  # the next command tells
                    self._idle.append(await self._start())

    def _drop(self, link: Socket) -> None:
        link.close()
        self._count -= 1


def _file(stack: ExitStack, data: bytes) -> int:
    """Return a file in memory until the end of `stack`, whose reader begins at its beginning."""
    fd = os.memfd_create("stream", os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
