"""Processes of the command that carry out one command line after the other, which saves a program's start for each."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import trio

from minit.base.errors import FailureKind
from minit.base.value import Value
from minit.cri.hands.protocol import CODE, IS_LAST, KIND, WORD
from minit.cri.openfiles import with_limit_given_back
from minit.linux.messages import Socket, receive_message, send_message, socket_pair

MOST_IDLE = len(os.sched_getaffinity(0))
"""As many as can work at once: more would take memory, and no time less."""


class Done(Value):
    """
    A command that has ended: its exit code, which is negative for the signal that killed it, and what it wrote.

    `kind` is that of its failure, if it is known.
    """

    code: int
    kind: FailureKind | None
    stdout: bytes
    stderr: bytes


class Hands:
    """The hands of a daemon, with tasks of `nursery`; `program` are the words of the command without any options."""

    def __init__(self, nursery: trio.Nursery, program: Sequence[str]) -> None:
        self._nursery = nursery
        self._program = tuple(program)
        self._idle: list[Socket] = []
        self._starting = trio.Lock()

    async def run(self, words: Sequence[str], stdin: bytes, held: int | None) -> Done:
        """
        Have a hand carry out a command line, with the descriptor `held` until its end; this is not to be cancelled.

        OSError if none can be started.
        """
        with ExitStack() as stack:
            command = b"".join(os.fsencode(word) + b"\0" for word in words)
            files = [_file(stack, data) for data in (command, stdin, b"", b"")]
            link = await self._send([*files, *([] if held is None else [held])])
            code, kind = await self._outcome(link)
            stdout, stderr = (os.pread(fd, os.fstat(fd).st_size, 0) for fd in files[2:])
        return Done(code=code, kind=kind, stdout=stdout, stderr=stderr)

    async def _send(self, descriptors: Sequence[int]) -> Socket:
        """Give a command to a hand that is free, or to a new one."""
        while True:
            async with self._starting:  # one that is being started is better than one more
                link = self._idle.pop() if self._idle else await self._start()
            try:
                send_message(link, {}, descriptors)
            except OSError:  # it has ended, or was killed
                link.close()
            else:
                return link

    async def _start(self) -> Socket:
        link, theirs = socket_pair()
        try:
            process = await trio.lowlevel.open_process(
                with_limit_given_back([*self._program, WORD]), stdin=theirs.fileno(), stdout=subprocess.DEVNULL
            )
        except BaseException:
            link.close()
            raise
        finally:
            theirs.close()
        self._nursery.start_soon(process.wait)
        return link

    async def _outcome(self, link: Socket) -> tuple[int, FailureKind | None]:
        """Return exit code and kind of a command when it has ended, and let its hand have another one if it may."""
        await trio.lowlevel.wait_readable(link)
        answer, _ = receive_message(link)
        if answer is None:
            link.close()
            return -signal.SIGKILL, None
        if answer[IS_LAST]:
            link.close()
            # The next command need not wait for it.
            self._nursery.start_soon(self._add)
        else:
            self._keep(link)
        code, kind = answer[CODE], answer[KIND]
        assert isinstance(code, int)
        return code, FailureKind(kind) if isinstance(kind, str) else None

    async def _add(self) -> None:
        async with self._starting:
            if len(self._idle) < MOST_IDLE:
                with suppress(OSError):  # the next command tells
                    self._keep(await self._start())

    def _keep(self, link: Socket) -> None:
        """Let a hand wait for its next command, or end it if enough of them do."""
        if len(self._idle) < MOST_IDLE:
            self._idle.append(link)
        else:
            link.close()


def _file(stack: ExitStack, data: bytes) -> int:
    """Return a file in memory until the end of `stack`, whose reader begins at its beginning."""
    fd = os.memfd_create("stream", os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
