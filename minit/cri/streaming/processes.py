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
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from enum import Enum, auto
from pathlib import Path

import trio

from minit.cri.openfiles import give_back_limit_and_take_terminal, with_limit_given_back
from minit.cri.streaming.channels import Channel, ChannelReset
from minit.terminal import CTRL_D
from minit.value import Value

_READ_BYTES = 1 << 15
_PATIENCE_SECONDS = 5.0
_KILLED = 128


class Input(Enum):
    """When a process's input ends: with the channel, also when its client is gone, or only with the process."""

    WITH_CHANNEL = auto()
    WITH_CLIENT = auto()
    NEVER = auto()


class Streams(Value):
    """The channels of a process's standard streams; None for none."""

    stdin: Channel | None = None
    stdout: Channel | None = None
    stderr: Channel | None = None

    def outputs(self) -> dict[str, Channel | None]:
        """Return the channels that a process writes to, by their names."""
        return {"stdout": self.stdout, "stderr": self.stderr}


class Terminal:
    """
    A terminal for a process of minit, which passes it on to a terminal in the pod.

    Like one that somebody types on it is raw: lines are made, and keys shown, by the one in the pod.
    """

    def __init__(self) -> None:
        master, self.slave = os.openpty()
        tty.setraw(self.slave)
        os.set_blocking(master, False)
        self.master = io.FileIO(master, "r+")

    def resize(self, rows: int, columns: int) -> None:
        """Give it another size, which the process is told by SIGWINCH."""
        with suppress(OSError, ValueError):  # hung up, or closed
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class _Output:
    """What a process writes, on its way to a channel; without one it is dropped."""

    def __init__(self, fd: int, channel: Channel | None) -> None:
        self._fd = fd
        self._channel = channel
        self._waiting = trio.CancelScope()
        self._rest_bytes: int | None = None

    async def pass_on(self) -> None:
        """Pass on all that comes, until its end."""
        while data := await self._read():
            if self._channel is not None:
                try:
                    await self._channel.send_all(data)
                except ChannelReset:
                    self._channel = None

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


async def run_process(
    words: Sequence[str],
    streams: Streams,
    terminal: Terminal | None = None,
    end_of_input: Input = Input.WITH_CHANNEL,
    directory: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> int:
    """
    Run a process, which inherits `pass_fds`, to its end, and return its exit code as shells have it.

    All that it wrote has been sent then. A terminal, which is closed at the end, is its input and its outputs.
    OSError if there is no such program. The process is ended if this is cancelled.
    """
    with ExitStack() as ours:
        with ExitStack() as theirs:
            pipes = _Pipes(streams, terminal, ours, theirs)
            process = await trio.lowlevel.open_process(
                with_limit_given_back(words) if terminal is None else words,
                cwd=directory,
                stdin=pipes.ends[0],
                stdout=pipes.ends[1],
                stderr=pipes.ends[2],
                pass_fds=pass_fds,
                start_new_session=True,
                preexec_fn=None if terminal is None else give_back_limit_and_take_terminal,
            )
        try:
            async with trio.open_nursery() as feeding:
                if streams.stdin is not None:
                    feeding.start_soon(pipes.feed, streams.stdin, end_of_input is not Input.NEVER)
                async with trio.open_nursery() as passing:
                    for output in pipes.outputs:
                        passing.start_soon(output.pass_on)
                    await process.wait()
                    for output in pipes.outputs:
                        output.finish()
                feeding.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                if process.returncode is None and end_of_input is Input.WITH_CLIENT:
                    pipes.end_input()
                    with trio.move_on_after(_PATIENCE_SECONDS):
                        await process.wait()
                await _end(process)  # before its input ends, which it would take for its client's
    assert process.returncode is not None
    return process.returncode if process.returncode >= 0 else _KILLED - process.returncode


class _Pipes:
    """Between a process and its channels: `ends` are its own descriptors, `outputs` what it writes."""

    def __init__(self, streams: Streams, terminal: Terminal | None, ours: ExitStack, theirs: ExitStack) -> None:
        self._is_terminal = terminal is not None
        self._input: io.FileIO | None = None
        if terminal is not None:
            self._input = ours.enter_context(terminal.master)
            theirs.callback(os.close, terminal.slave)
            self.ends = [terminal.slave] * 3
            self.outputs = [_Output(terminal.master.fileno(), streams.stdout)]
            return
        self.ends, self.outputs = [subprocess.DEVNULL] * 3, []
        if streams.stdin is not None:
            self.ends[0], end = os.pipe2(os.O_CLOEXEC)
            theirs.callback(os.close, self.ends[0])
            self._input = ours.enter_context(io.FileIO(end, "w"))
            os.set_blocking(end, False)
        for number, channel in enumerate(streams.outputs().values(), start=1):
            if channel is not None:
                end, self.ends[number] = os.pipe2(os.O_CLOEXEC)
                ours.callback(os.close, end)
                theirs.callback(os.close, self.ends[number])
                os.set_blocking(end, False)
                self.outputs.append(_Output(end, channel))

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
        """Let the process find the end of its input; again is no error."""
        if self._input is not None:
            self._input.close()


async def _write_all(file: io.FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) or 0 :]
        if rest:
            await trio.lowlevel.wait_writable(file)


async def _end(process: trio.Process) -> None:
    if process.returncode is None:
        process.terminate()
        with trio.move_on_after(_PATIENCE_SECONDS):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
