"""Processes of minit whose standard streams are channels: pipes between them, or a terminal."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import struct
import subprocess
import sys
import termios
import tty
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from enum import Enum, auto
from typing import Self

import trio

from minit.base.value import Value
from minit.cri.node import Program
from minit.cri.streaming.channels import Channel, ChannelReset
from minit.linux.terminal import CTRL_D

_READ_BYTES = 1 << 15
_PATIENCE_SECONDS = 2.0
_KILLED = 128
_NAMES = ("stdin", "stdout", "stderr")


class Input(Enum):
    """The end of a process's input: with the channel, also when the client is gone, or only with the process."""

    WITH_CHANNEL = auto()
    WITH_CLIENT = auto()
    NEVER = auto()


class Streams(Value):
    """The channels of a process's standard streams; None for none."""

    stdin: Channel | None = None
    stdout: Channel | None = None
    stderr: Channel | None = None

    def items(self) -> Iterable[tuple[str, Channel | None]]:
        """Return the channels by name."""
        return zip(_NAMES, (self.stdin, self.stdout, self.stderr), strict=True)


class Terminal:
    """
    A terminal for a process of minit, which passes input on to a terminal in the pod.

    Like one that somebody types on it is raw: lines are made, and keys shown, by the one in the pod.
    """

    def __init__(self) -> None:
        master, slave = os.openpty()
        tty.setraw(slave)
        os.set_blocking(master, False)
        self.master = io.FileIO(master, "r+")
        self.slave = io.FileIO(slave, "r+")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.master.close()
        self.slave.close()

    def resize(self, rows: int, columns: int) -> None:
        """Set another size, which the process is told by SIGWINCH."""
        with suppress(OSError, ValueError):  # hung up, or closed
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class _Output:
    """Output of a process, on the way to a channel."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiting = trio.CancelScope()
        self._rest_bytes: int | None = None

    async def pass_on(self, channel: Channel | None) -> None:
        """Pass on all that comes, until its end; without a channel it is dropped."""
        while data := await self._read():
            if channel is not None:
                try:
                    await channel.send_all(data)
                except ChannelReset:
                    channel = None

    def finish(self) -> None:
        """Take only what is there: the process has ended, though others may have its pipe and write to it for ever."""
        # A terminal's end comes by itself.
        if not os.isatty(self._fd):
            self._rest_bytes = int.from_bytes(fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)), sys.byteorder)
            self._waiting.cancel()

    async def _read(self) -> bytes:
        while self._rest_bytes is None or self._rest_bytes > 0:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                with self._waiting:
                    await trio.lowlevel.wait_readable(self._fd)
                if self._rest_bytes is None:
                    self._waiting = trio.CancelScope()
                continue
            except OSError as error:
                if error.errno != errno.EIO:  # a terminal that nobody has any more
                    raise
                return b""
            if self._rest_bytes is not None:
                self._rest_bytes -= len(data)
            return data
        return b""


class Process:
    """A process of minit that runs."""

    def __init__(self, process: trio.Process, pipes: _Pipes, end_of_input: Input) -> None:
        self._process = process
        self._pipes = pipes
        self._ends_input = end_of_input is not Input.NEVER

    async def serve(self, streams: Streams) -> int:
        """
        Connect it to channels until it has ended, and return its exit code as shells have it.

        All that it wrote has been sent then.
        """
        channels = dict(streams.items())
        async with trio.open_nursery() as feeding:
            if streams.stdin is not None and self._pipes.has_input:
                feeding.start_soon(self._pipes.feed, streams.stdin, self._ends_input)
            async with trio.open_nursery() as passing:
                for name, output in self._pipes.outputs.items():
                    passing.start_soon(output.pass_on, channels[name])
                await self._process.wait()
                for output in self._pipes.outputs.values():
                    output.finish()
            feeding.cancel_scope.cancel()
        code = await self._process.wait()
        return code if code >= 0 else _KILLED - code


@asynccontextmanager
async def running_process(
    program: Program,
    names: Collection[str],
    terminal: Terminal | None = None,
    end_of_input: Input = Input.WITH_CHANNEL,
    pass_fds: Sequence[int] = (),
) -> AsyncIterator[Process]:
    """
    Have a process, which is ended at the end, with those standard streams that are among `names`.

    A terminal is its input and its outputs. It inherits `pass_fds`. OSError if there is no such program.
    """
    with ExitStack() as ours:
        with ExitStack() as theirs:
            pipes = _Pipes(names, terminal, ours, theirs)
            process = await trio.lowlevel.open_process(
                program.words,
                cwd=program.directory,
                env=program.environment,
                stdin=pipes.ends[0],
                stdout=pipes.ends[1],
                stderr=pipes.ends[2],
                pass_fds=pass_fds,
                start_new_session=True,
                preexec_fn=None if terminal is None else _take_terminal,
            )
        try:
            yield Process(process, pipes, end_of_input)
        finally:
            with trio.CancelScope(shield=True):
                if process.returncode is None and end_of_input is Input.WITH_CLIENT:
                    pipes.end_input()
                    with trio.move_on_after(_PATIENCE_SECONDS):
                        await process.wait()
                await _end(process)  # before its input ends, which it would take for its client's


class _Pipes:
    """Between a process and channels: `ends` are the process's descriptors, `outputs` the output, by name."""

    def __init__(self, names: Collection[str], terminal: Terminal | None, ours: ExitStack, theirs: ExitStack) -> None:
        self._is_terminal = terminal is not None
        self._input: io.FileIO | None = None
        self.ends, self.outputs = [subprocess.DEVNULL] * 3, dict[str, _Output]()
        if terminal is not None:
            self._input = terminal.master
            theirs.enter_context(terminal.slave)
            self.ends = [terminal.slave.fileno()] * 3
            self.outputs["stdout"] = _Output(terminal.master.fileno())
            return
        if "stdin" in names:
            self.ends[0], end = os.pipe2(os.O_CLOEXEC)
            theirs.callback(os.close, self.ends[0])
            self._input = ours.enter_context(io.FileIO(end, "w"))
            os.set_blocking(end, False)
        for number, name in enumerate(_NAMES[1:], start=1):
            if name in names:
                end, self.ends[number] = os.pipe2(os.O_CLOEXEC)
                ours.callback(os.close, end)
                theirs.callback(os.close, self.ends[number])
                os.set_blocking(end, False)
                self.outputs[name] = _Output(end)

    @property
    def has_input(self) -> bool:
        """Tell whether the process reads what a client sends."""
        return self._input is not None

    async def feed(self, channel: Channel, ends_input: bool) -> None:
        """Pass on what the client sends, and its end; when nobody reads it any more it is dropped."""
        assert self._input is not None
        try:
            while data := await channel.receive_some():
                await _write_all(self._input, data)
            if ends_input and self._is_terminal:
                await _write_all(self._input, CTRL_D)
            elif ends_input:
                self.end_input()
        except (OSError, ChannelReset):
            pass
        finally:
            channel.discard()

    def end_input(self) -> None:
        """Let the process find the end of the input; again is no error."""
        if self._input is not None:
            self._input.close()


async def _write_all(file: io.FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) or 0 :]
        if rest:
            await trio.lowlevel.wait_writable(file)


def _take_terminal() -> None:
    """
    Make the standard input of a process its terminal, by which it gets SIGWINCH.

    For between fork and exec: it is one call of the kernel, and takes no lock.
    """
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


async def _end(process: trio.Process) -> None:
    if process.returncode is None:
        process.terminate()
        with trio.move_on_after(_PATIENCE_SECONDS):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
